-- owner: registry
-- +goose Up

-- Since when the activation holds, in milliseconds since 1970, UTC; null if it does not. While the newest activation
-- holds, what files say is recorded as a candidate and not activated.
alter table registry_activation add column hold_time integer;

-- What waits behind an activation that holds, from what was in force before it on. The newest is activated when the hold
-- is released; then all rows go.
create table registry_candidate (
    candidate_id integer not null,
    snapshot_id  text    not null,
    record_time  integer not null, -- milliseconds since 1970, UTC
    actor        text    not null,
    reason       text    not null,

    constraint registry_candidate_pk primary key (candidate_id autoincrement),
    constraint registry_candidate_snapshot_id_fk foreign key (snapshot_id) references registry_snapshot (snapshot_id)
) strict;

create index registry_candidate_snapshot_id_ix on registry_candidate (snapshot_id);

-- When the secret was last in force or handed out, within an hour, in milliseconds since 1970, UTC. One that no stored
-- snapshot refers to is deleted long after it.
alter table registry_secret add column use_time integer not null default 0;

update registry_secret set use_time = cast(unixepoch('subsec') * 1000 as integer);

create index registry_secret_use_time_ix on registry_secret (use_time);
