-- owner: registry
-- +goose Up

create table registry_snapshot (
    snapshot_id  text        not null,
    content      json        not null,
    server_count integer     not null default 0,
    create_time  timestamptz not null,

    constraint registry_snapshot_pk primary key (snapshot_id),
    constraint registry_snapshot_snapshot_id_ck check (snapshot_id ~ '^snap_[0-9a-f]{32}$')
);

comment on table registry_snapshot is
    'Immutable configurations, content-addressed: rows are inserted and pruned, never updated. Content is json, not jsonb: it keeps the bytes that snapshot_id hashes, and holds no secret.';

create table registry_activation (
    revision      bigint      not null generated always as identity,
    snapshot_id   text        not null,
    activate_time timestamptz not null,
    actor         text        not null,
    reason        text        not null,

    constraint registry_activation_pk primary key (revision),
    constraint registry_activation_snapshot_id_fk foreign key (snapshot_id) references registry_snapshot (snapshot_id)
);

create index registry_activation_snapshot_id_ix on registry_activation (snapshot_id, revision);

comment on table registry_activation is
    'Which snapshot was made the effective one, when, by whom and why. The highest revision is in force. Revisions rise and may have gaps; a snapshot may be activated many times.';

create table registry_secret (
    server      text        not null,
    field_path  text        not null,
    mac         text        not null,
    ciphertext  bytea       not null,
    key_id      text        not null,
    create_time timestamptz not null,

    constraint registry_secret_pk primary key (server, field_path, mac)
);

comment on table registry_secret is
    'Literal secrets of server entries, encrypted. A snapshot refers to one by server, field path and keyed MAC, so the secrets of older snapshots stay resolvable. key_id names the encryption key, for rotation.';
