-- owner: registry
-- +goose Up

create table registry_overlay (
    path        text        not null,
    server      text        not null,
    enabled     boolean     not null,
    actor       text        not null,
    update_time timestamptz not null,

    constraint registry_overlay_pk primary key (path, server)
);

comment on table registry_overlay is
    'Entries of files that the API may not write, switched on or off all the same. path is the file, as it is found.';

create table registry_written (
    path       text        not null,
    server     text        not null,
    definition text        not null,
    write_time timestamptz not null,

    constraint registry_written_pk primary key (path, server, definition)
);

comment on table registry_written is
    'Definitions that were written through the API: hex SHA-256 of an entry without its literals and its switch. Such an entry resolves only what registry.env_refs lists. While a write is under way the definition before it is here too.';
