-- owner: outbox
-- +goose Up

-- Task events on their way to the notifier. A row is inserted in the transaction that changes its task and deleted in
-- the one that records its delivery. Body is not checked: one that is no JSON is the reader's to deal with.
create table outbox (
    outbox_id     integer not null,
    task_id       text    not null,
    event_version integer not null,
    user_id       text    not null,
    thread_id     text    not null,
    sink          text    not null,
    task_name     text    not null,
    body          text    not null,
    run_id        text    not null,
    traceparent   text    not null,
    create_time   integer not null, -- milliseconds since 1970, UTC

    constraint outbox_pk primary key (outbox_id),
    constraint outbox_task_id_ck check (length(task_id) between 1 and 128),
    constraint outbox_event_version_ck check (event_version > 0),
    constraint outbox_sink_ck check (length(sink) <= 128)
) strict;
