-- owner: outbox
-- +goose Up

create table outbox (
    outbox_id     bigint      not null generated always as identity,
    task_id       text        not null,
    event_version bigint      not null,
    user_id       text        not null,
    thread_id     text        not null,
    sink          text        not null,
    task_name     text        not null,
    body          text        not null,
    run_id        text        not null,
    traceparent   text        not null,
    create_time   timestamptz not null,

    constraint outbox_pk primary key (outbox_id),
    constraint outbox_task_id_ck check (length(task_id) between 1 and 128),
    constraint outbox_event_version_ck check (event_version > 0),
    constraint outbox_sink_ck check (length(sink) <= 128)
) with (
    -- Rows live for moments, so the dead outnumber the living: clean up by their number, not by their share.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);

comment on table outbox is
    'Task events on their way to the notifier. A row is inserted in the transaction that changes its task and deleted in the one that records its delivery. Ids rise but commit out of order, so nobody remembers the last one. Body is text, not json: a body that is no JSON is the reader''s to deal with.';
