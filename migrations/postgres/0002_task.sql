-- owner: taskworker
-- +goose Up

create table task_binding (
    fingerprint text        not null,
    binding     bytea       not null,
    create_time timestamptz not null,

    constraint task_binding_pk primary key (fingerprint)
);

comment on table task_binding is
    'Server entries that tasks were submitted under, without secrets, once per fingerprint. A row goes when no task and no reservation uses it.';

create table task_request (
    principal    text not null,
    user_id      text not null,
    request_id   text not null,
    request_hash text not null,
    task_id      text not null collate "C",

    constraint task_request_pk primary key (principal, user_id, request_id)
);

comment on table task_request is
    'Which task, or which reservation, a caller''s request_id stands for. A row lives as long as what it names, so that a repeated submit finds the first one.';

create table task_reservation (
    task_id      text        not null collate "C",
    fence        bigint      not null,
    principal    text        not null,
    user_id      text        not null,
    thread_id    text        not null,
    request_id   text        not null,
    request_hash text        not null,
    fingerprint  text        not null,
    server       text        not null,
    task_name    text        not null,
    run_id       text        not null,
    tool_call_id text        not null,
    notify_sink  text        not null,
    ttl_ms       bigint      not null,
    traceparent  text        not null,
    create_time  timestamptz not null,
    expire_time  timestamptz not null,

    constraint task_reservation_pk primary key (task_id),
    constraint task_reservation_fingerprint_fk foreign key (fingerprint) references task_binding (fingerprint)
);

create index task_reservation_expire_time_ix on task_reservation (expire_time);
create index task_reservation_fingerprint_ix on task_reservation (fingerprint);

comment on table task_reservation is
    'Submits that are under way. A row becomes a task, or vanishes if the remote provably did nothing; one that outlives expire_time becomes a failed task.';

create table task_task (
    task_id               text             not null collate "C",
    reserve_fence         bigint           not null,
    principal             text             not null,
    user_id               text             not null,
    thread_id             text             not null,
    request_id            text             not null,
    request_hash          text             not null,
    fingerprint           text             not null,
    server                text             not null,
    task_name             text             not null,
    run_id                text             not null,
    tool_call_id          text             not null,
    notify_sink           text             not null,
    traceparent           text             not null,
    unasked               boolean          not null,
    handle                bytea,
    remote_id             text,
    status                text             not null,
    status_message        text             not null,
    progress_current      double precision,
    progress_total        double precision,
    version               bigint           not null,
    event_version         bigint           not null,
    event_fingerprint     text             not null,
    input_round           integer          not null,
    is_error              boolean          not null,
    failure_reason        text             not null,
    error                 text             not null,
    result_json           text,
    result_preview        text             not null,
    result_stored         boolean          not null,
    result_truncated      boolean          not null,
    result_artifact_json  text,
    input_required_json   text,
    tracking_degraded     boolean          not null,
    cancel_requested_time timestamptz,
    last_poll_time        timestamptz,
    last_poll_error       text             not null,
    create_time           timestamptz      not null,
    commit_time           timestamptz,
    update_time           timestamptz      not null,
    end_time              timestamptz,
    expire_time           timestamptz,
    expire_limit_time     timestamptz,

    constraint task_task_pk primary key (task_id),
    constraint task_task_remote_id_uq unique (user_id, server, remote_id),
    constraint task_task_fingerprint_fk foreign key (fingerprint) references task_binding (fingerprint),
    constraint task_task_status_ck check (status in ('submitted', 'working', 'input_required', 'completed', 'failed', 'cancelled')),
    constraint task_task_end_time_ck check ((end_time is not null) = (status in ('completed', 'failed', 'cancelled')))
) with (fillfactor = 80);

create index task_task_scope_ix on task_task (user_id, thread_id, create_time desc, task_id desc);
create index task_task_create_time_ix on task_task (create_time desc, task_id desc);
create index task_task_fingerprint_ix on task_task (fingerprint);
create index task_task_expire_time_ix on task_task (expire_time) where end_time is null;
create index task_task_end_time_ix on task_task (end_time) where end_time is not null;

comment on table task_task is
    'Durable tasks as their owners see them, and what their remotes need to know them by. While a task runs, last_poll_time and last_poll_error are those of task_live. Payloads are text, not jsonb: they keep their tokens. commit_time is null where no remote is known to have taken the submit in time.';

create table task_live (
    task_id              text        not null collate "C",
    fence                bigint      not null,
    due_time             timestamptz not null,
    lease_kind           text,
    poll_time            timestamptz,
    cancel_time          timestamptz,
    last_poll_time       timestamptz,
    last_poll_error      text        not null,
    error_count          integer     not null,
    unchanged_count      integer     not null,
    cancel_failure_count integer     not null,
    attempt_count        bigint      not null,

    constraint task_live_pk primary key (task_id),
    constraint task_live_lease_kind_ck check (lease_kind in ('poll', 'cancel', 'answer', 'fenced'))
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);

-- The one index that claims use. A leased row is due when its lease ends, so neither leases nor final tasks are in the way.
create index task_live_due_time_ix on task_live (due_time, task_id);

comment on table task_live is
    'Schedule and lease of each task that is not final; the row goes when the task ends. Its lock guards the task. due_time says when it may be claimed: when the next call is due or, while lease_kind is set, when the lease ends. lease_kind fenced is a poll whose outcome no longer counts.';

create table task_attempt (
    task_id       text        not null collate "C",
    slot          smallint    not null,
    number        bigint      not null,
    kind          text        not null,
    end_time      timestamptz not null,
    worker        text        not null,
    outcome       text        not null,
    next_due_time timestamptz,

    constraint task_attempt_pk primary key (task_id, slot),
    constraint task_attempt_kind_ck check (kind in ('poll', 'cancel', 'answer'))
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

comment on table task_attempt is
    'The newest tries to reach the remote: a ring for each task, slot being number modulo the size of the ring. Rows go with their task; there is no foreign key, since its checks would cost more than the write.';

create table task_result (
    task_id text not null collate "C",
    result  text not null,

    constraint task_result_pk primary key (task_id),
    constraint task_result_task_id_fk foreign key (task_id) references task_task (task_id)
);

comment on table task_result is
    'Results that are too large for the task itself, as the JSON that came.';

create table task_worker (
    worker      text        not null,
    expire_time timestamptz not null,

    constraint task_worker_pk primary key (worker)
);

comment on table task_worker is
    'Workers that live, until expire_time unless they say so again.';
