package dbtest_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
)

func TestEachGivesEveryTestAnEmptyMigratedDatabase(t *testing.T) {
	for range 2 {
		dbtest.Each(t, func(t *testing.T, d *db.DB) {
			if err := d.CheckVersion(t.Context()); err != nil {
				t.Error(err)
			}
			const insert = "insert into registry_secret (server, field_path, mac, ciphertext, key_id, create_time) values ('a', 'env.B', 'c', "
			var err error
			if d.Engine() == db.Postgres {
				_, err = d.Pool().Exec(t.Context(), insert+"'', 'k', now())")
			} else {
				_, err = d.SQL().ExecContext(t.Context(), insert+"x'', 'k', 0)")
			}
			if err != nil { // the second round would meet the row of the first
				t.Error(err)
			}
		})
	}
}

func TestSQLiteWorksInABubbleOfVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := dbtest.SQLite(t)
		tick := time.NewTicker(time.Hour)
		defer tick.Stop()
		for range 24 {
			<-tick.C
			if err := d.CheckVersion(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestUnmigratedDatabaseIsEmpty(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		if err := d.CheckVersion(t.Context()); err == nil {
			t.Error("an unmigrated database has every migration")
		}
	}, dbtest.Unmigrated())
}

func TestSchemaIsDroppedWhenTheTestEnds(t *testing.T) {
	var dsn string
	t.Run("inner", func(t *testing.T) { dsn = dbtest.DSN(t) })
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	schema := cfg.RuntimeParams["search_path"]
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var exists bool
	if err := conn.QueryRow(t.Context(), "select to_regnamespace($1) is not null", schema).Scan(&exists); err != nil {
		t.Fatal(err)
	}
	if schema == "" || exists {
		t.Errorf("schema %q exists: %t", schema, exists)
	}
}

func TestMaxConnsBoundsThePool(t *testing.T) {
	if got := dbtest.Postgres(t, dbtest.MaxConns(1)).Pool().Config().MaxConns; got != 1 {
		t.Errorf("the pool has up to %d connections, want 1", got)
	}
}

func TestClusterKeepsWhatWasCommittedOverStopAndStart(t *testing.T) {
	c := dbtest.NewCluster(t)
	d := c.Open(t)
	if _, err := d.Pool().Exec(t.Context(), "create table kept (n int); insert into kept values (7)"); err != nil {
		t.Fatal(err)
	}
	c.Stop()
	if err := d.Ping(t.Context()); err == nil {
		t.Error("a stopped server answers")
	}
	c.Start()
	if err := d.Ping(t.Context()); err != nil {
		t.Fatalf("the pool does not heal: %v", err)
	}
	var n int
	if err := d.Pool().QueryRow(t.Context(), "select n from kept").Scan(&n); err != nil || n != 7 {
		t.Errorf("read %d, %v, want 7", n, err)
	}
}

func TestClusterTakesSettings(t *testing.T) {
	d := dbtest.NewCluster(t, "fsync=on").Open(t, dbtest.Unmigrated())
	var fsync string
	if err := d.Pool().QueryRow(t.Context(), "show fsync").Scan(&fsync); err != nil || fsync != "on" {
		t.Errorf("fsync is %q, %v, want on", fsync, err)
	}
}

func TestGivenServerIsUsed(t *testing.T) {
	c := dbtest.NewCluster(t)
	given, err := pgx.ParseConfig(c.DSN(t, dbtest.Unmigrated()))
	if err != nil {
		t.Fatal(err)
	}
	for _, dsn := range []string{given.ConnString(), "host=" + given.Host + " user=postgres dbname=postgres"} {
		t.Run(dsn[:4], func(t *testing.T) {
			t.Setenv("TOOLHERD_TEST_POSTGRES", dsn)
			d := dbtest.Postgres(t)
			if got := d.Pool().Config().ConnConfig; got.Host != given.Host || got.RuntimeParams["search_path"] == given.RuntimeParams["search_path"] {
				t.Errorf("the test is on %s with search_path %s, want a schema of its own on %s", got.Host, got.RuntimeParams["search_path"], given.Host)
			}
			if err := d.CheckVersion(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// The server's directory, where a child reports it; the name makes this binary act as that child.
const childEnv = "TOOLHERD_DBTEST_CHILD"

func TestServerIsGoneHoweverTheTestBinaryEnds(t *testing.T) {
	if how := os.Getenv(childEnv); how != "" {
		actAsChild(t, how)
		return
	}
	for _, how := range []string{"return", "exit", "panic", "kill"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()[:strings.Index(t.Name(), "/")]+"$")
			// Not with the server that these tests may have been given: the child shall start its own.
			child.Env = append(os.Environ(), childEnv+"="+how, "TOOLHERD_TEST_POSTGRES=")
			out, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			var dir string
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if d, ok := strings.CutPrefix(lines.Text(), "server in "); ok {
					dir = d
					break
				}
			}
			if dir == "" {
				t.Fatal("the child reported no server")
			}
			postmaster := readPID(t, dir)
			if how == "kill" {
				child.Process.Signal(syscall.SIGKILL)
			}
			child.Wait() // its status differs by how it ends

			eventually(t, "the server's directory is removed", func() bool {
				_, err := os.Stat(dir)
				return os.IsNotExist(err)
			})
			eventually(t, "the server's process is gone", func() bool {
				// One that has ended stays visible until its parent, now init, collects its status.
				stat, _ := os.ReadFile("/proc/" + strconv.Itoa(postmaster) + "/stat")
				return syscall.Kill(postmaster, 0) == syscall.ESRCH || strings.Contains(string(stat), ") Z ")
			})
		})
	}
}

func actAsChild(t *testing.T, how string) {
	cfg, err := pgx.ParseConfig(dbtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("server in " + cfg.Host + "\n")
	switch how {
	case "exit":
		os.Exit(3)
	case "panic":
		go panic("on another goroutine")
		select {}
	case "kill":
		select {}
	}
}

func readPID(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline, tick := time.After(15*time.Second), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("timed out waiting until %s", what)
		case <-tick.C:
		}
	}
}
