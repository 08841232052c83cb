-- owner: notifier
-- +goose Up

create table notification_delivery (
    notification_id text        not null,
    task_id         text        not null,
    sink            text        not null,
    user_id         text        not null,
    thread_id       text        not null,
    task_name       text        not null,
    run_id          text        not null,
    traceparent     text        not null,

    event_version   bigint      not null,
    body            text        not null,
    event_time      timestamptz not null,
    event_sequence  bigint      not null,

    waiting_version bigint,
    waiting_body    text,
    waiting_time    timestamptz,

    status           text        not null,
    due_time         timestamptz,
    lease_owner      text,
    fence            bigint      not null default 0,
    dispatch_attempt integer     not null default 0,
    dispatch_run_id  text        not null default '',
    failure_count    integer     not null default 0,
    attempt_number   bigint      not null default 0,
    last_error       text        not null default '',
    deliver_time     timestamptz,

    redriven      boolean     not null default false,
    redrive_time  timestamptz,
    redrive_actor text        not null default '',

    constraint notification_delivery_pk primary key (notification_id),
    constraint notification_delivery_task_uq unique (task_id, sink),
    constraint notification_delivery_id_ck check (notification_id ~ '^ntf_[0-9a-f]{32}$'),
    constraint notification_delivery_version_ck check (event_version > 0 and (waiting_version is null or waiting_version > event_version)),
    constraint notification_delivery_waiting_ck check (
        (waiting_version is null) = (waiting_body is null) and (waiting_version is null) = (waiting_time is null)
        and (waiting_version is null or status in ('claimed', 'dispatched'))
    ),
    constraint notification_delivery_status_ck check (
        status in ('pending', 'claimed', 'dispatched', 'retry', 'delivered', 'dead_letter')
    ),
    constraint notification_delivery_due_ck check ((due_time is null) = (status in ('delivered', 'dead_letter'))),
    constraint notification_delivery_lease_ck check (lease_owner is null or status in ('claimed', 'dispatched'))
) with (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

create index notification_delivery_due_ix on notification_delivery (sink, due_time, notification_id) where due_time is not null;
create index notification_delivery_redriven_ix on notification_delivery (due_time, notification_id) where redriven and due_time is not null;
create index notification_delivery_dead_ix on notification_delivery (sink, event_time, notification_id) where status = 'dead_letter';
create index notification_delivery_time_ix on notification_delivery (event_time, notification_id);

comment on table notification_delivery is
    'Deliveries, one for each task and sink, of the task''s newest event. While an attempt is under way its event stays and a newer one waits in waiting_*. due_time is when it may be claimed: the next attempt, or the end of the lease while lease_owner is set; null when nothing is to be done. redriven: an operator wants it delivered though the sink is paused.';

create table notification_attempt (
    notification_id text        not null,
    attempt_number  bigint      not null,
    event_version   bigint      not null,
    end_time        timestamptz not null,
    outcome         text        not null,
    sink_status     text        not null,
    excerpt         text        not null,

    constraint notification_attempt_pk primary key (notification_id, attempt_number),
    constraint notification_attempt_notification_id_fk foreign key (notification_id) references notification_delivery (notification_id) on delete cascade,
    constraint notification_attempt_outcome_ck check (outcome in ('delivered', 'retry', 'deferred', 'dead_letter'))
);

comment on table notification_attempt is
    'The newest attempts of each delivery, at most 20, each with a bounded and redacted excerpt of the sink''s answer.';

create table notification_sink (
    sink         text        not null,
    paused       boolean     not null,
    pause_reason text        not null,
    update_time  timestamptz not null,

    constraint notification_sink_pk primary key (sink)
);

comment on table notification_sink is
    'Sinks that are or were paused. A sink without a row is not paused.';

create table notification_group (
    sink       text        not null,
    group_name text        not null,
    user_id    text        not null,
    thread_id  text        not null,
    seen_time  timestamptz not null,

    constraint notification_group_pk primary key (sink, user_id, thread_id, group_name)
);

create index notification_group_seen_time_ix on notification_group (seen_time);

comment on table notification_group is
    'Which groups of consumers read which part of a stream sink; an empty user or thread is any. Groups that nobody reads for long are forgotten.';

create table notification_offer (
    notification_id   text        not null,
    group_name        text        not null,
    sink              text        not null,
    user_id           text        not null,
    thread_id         text        not null,
    event_sequence    bigint      not null,
    lease_owner       text,
    lease_expire_time timestamptz,

    constraint notification_offer_pk primary key (notification_id, group_name),
    constraint notification_offer_notification_id_fk foreign key (notification_id) references notification_delivery (notification_id) on delete cascade,
    constraint notification_offer_lease_ck check ((lease_owner is null) = (lease_expire_time is null))
) with (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

create index notification_offer_sequence_ix on notification_offer (sink, group_name, event_sequence);
create index notification_offer_scope_ix on notification_offer (sink, group_name, user_id, thread_id, event_sequence);

comment on table notification_offer is
    'What a group of consumers has not acknowledged. The acknowledgement deletes the row; a lease gives the event to one consumer for a while.';

create table notification_sequence (
    sequence_name text   not null,
    last_sequence bigint not null,

    constraint notification_sequence_pk primary key (sequence_name)
);

comment on table notification_sequence is
    'The last sequence number given to an event. The row is locked from giving to commit, so numbers become visible in order and a reader who goes on after one misses none.';

insert into notification_sequence (sequence_name, last_sequence) values ('event', 0);
