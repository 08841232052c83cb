-- owner: registry
-- +goose Up

alter table registry_activation add column hold_time timestamptz;

comment on column registry_activation.hold_time is
    'Since when the activation holds; null if it does not. While the newest activation holds, what files say is recorded as a candidate and not activated.';

create table registry_candidate (
    candidate_id bigint      not null generated always as identity,
    snapshot_id  text        not null,
    record_time  timestamptz not null,
    actor        text        not null,
    reason       text        not null,

    constraint registry_candidate_pk primary key (candidate_id),
    constraint registry_candidate_snapshot_id_fk foreign key (snapshot_id) references registry_snapshot (snapshot_id)
);

create index registry_candidate_snapshot_id_ix on registry_candidate (snapshot_id);

comment on table registry_candidate is
    'What waits behind an activation that holds, from what was in force before it on. The newest is activated when the hold is released; then all rows go.';

alter table registry_secret add column use_time timestamptz not null default now();

create index registry_secret_use_time_ix on registry_secret (use_time);

comment on column registry_secret.use_time is
    'When the secret was last in force or handed out, within an hour. One that no stored snapshot refers to is deleted long after it.';
