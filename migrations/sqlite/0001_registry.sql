-- owner: registry
-- +goose Up

-- Immutable configurations, content-addressed: rows are inserted and pruned, never updated. Content keeps the bytes
-- that snapshot_id hashes, and holds no secret.
create table registry_snapshot (
    snapshot_id  text    not null,
    content      text    not null,
    server_count integer not null default 0,
    create_time  integer not null, -- milliseconds since 1970, UTC

    constraint registry_snapshot_pk primary key (snapshot_id),
    constraint registry_snapshot_snapshot_id_ck check (
        length(snapshot_id) = 37 and snapshot_id glob 'snap_*' and substr(snapshot_id, 6) not glob '*[^0-9a-f]*'
    ),
    constraint registry_snapshot_content_ck check (json_valid(content))
) strict;

-- Which snapshot was made the effective one, when, by whom and why. The highest revision is in force. Revisions rise
-- and may have gaps; a snapshot may be activated many times.
create table registry_activation (
    revision      integer not null,
    snapshot_id   text    not null,
    activate_time integer not null, -- milliseconds since 1970, UTC
    actor         text    not null,
    reason        text    not null,

    constraint registry_activation_pk primary key (revision autoincrement),
    constraint registry_activation_snapshot_id_fk foreign key (snapshot_id) references registry_snapshot (snapshot_id)
) strict;

create index registry_activation_snapshot_id_ix on registry_activation (snapshot_id, revision);

-- Literal secrets of server entries, encrypted. A snapshot refers to one by server, field path and keyed MAC, so the
-- secrets of older snapshots stay resolvable. key_id names the encryption key, for rotation.
create table registry_secret (
    server      text    not null,
    field_path  text    not null,
    mac         text    not null,
    ciphertext  blob    not null,
    key_id      text    not null,
    create_time integer not null, -- milliseconds since 1970, UTC

    constraint registry_secret_pk primary key (server, field_path, mac)
) strict;
