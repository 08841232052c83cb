package dbtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// server is a Postgres server in a directory of its own, and the guard that outlives us.
//
//	dir/
//	  data/            the cluster
//	  .s.PGSQL.5432    the socket
//	  log              what initdb and postgres said
type server struct {
	bin      binaries
	dir      string
	settings []string
	owner    *syscall.Credential // whom to run as; nil is ourselves
	guard    *guard
	running  *os.Process // nil while stopped
}

// startTimeout bounds initdb and the start, on a machine that is busy with other tests.
const startTimeout = 2 * time.Minute

// newServer makes a cluster and starts it.
func newServer(ctx context.Context, settings []string) (*server, error) {
	s := &server{settings: settings}
	var err error
	if s.owner, err = unprivileged(); err != nil {
		return nil, err
	}
	if s.bin, err = findBinaries(ctx, s.owner != nil); err != nil {
		return nil, err
	}
	if s.dir, err = makeDir(s.owner); err != nil {
		return nil, err
	}
	if s.guard, err = newGuard(s.dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	if err := s.initdb(ctx); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// dsn names the server for its superuser. The socket's directory takes the place of a host.
func (s *server) dsn() string {
	q := url.Values{"host": {s.dir}, "sslmode": {"disable"}}
	return "postgres://postgres@/postgres?" + q.Encode()
}

func (s *server) initdb(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, err := s.launch(s.bin.initdb, "-D", filepath.Join(s.dir, "data"), "-U", "postgres", "-A", "trust",
		"-E", "UTF8", "--no-locale", "-N", "--no-instructions")
	if err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	defer context.AfterFunc(ctx, func() { p.Kill() })() // it may have just ended
	state, err := p.Wait()
	if err == nil && !state.Success() {
		err = fmt.Errorf("%s; it said:\n%s", state, s.logTail())
	}
	if err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	return s.guard.watch(0)
}

// start starts the server and waits until it answers.
func (s *server) start(ctx context.Context) error {
	if s.running != nil {
		return errors.New("it runs already")
	}
	args := []string{"-D", filepath.Join(s.dir, "data"), "-k", s.dir}
	for _, setting := range append([]string{
		"listen_addresses=", "unix_socket_permissions=0700", "max_connections=300",
		"fsync=off", "full_page_writes=off",
	}, s.settings...) {
		args = append(args, "-c", setting)
	}
	p, err := s.launch(s.bin.postgres, args...)
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	s.running = p

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.dsn())
		if err == nil {
			return conn.Close(ctx)
		}
		// Not p.Wait: it could not be called off while the server runs.
		if pid, waitErr := syscall.Wait4(p.Pid, nil, syscall.WNOHANG, nil); waitErr == nil && pid == p.Pid {
			s.running = nil
			return errors.Join(fmt.Errorf("postgres ended at once; it said:\n%s", s.logTail()), s.guard.watch(0))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("postgres does not answer after %s: %w; it said:\n%s", startTimeout, err, s.logTail())
		case <-tick.C:
		}
	}
}

// stop ends the server at once and returns when it has gone.
func (s *server) stop() error {
	if s.running == nil {
		return nil
	}
	p := s.running
	s.running = nil
	if err := p.Signal(syscall.SIGQUIT); err != nil {
		return err
	}
	killer := time.AfterFunc(10*time.Second, func() { p.Kill() }) // it may have just ended
	defer killer.Stop()
	if _, err := p.Wait(); err != nil {
		return err
	}
	return s.guard.watch(0)
}

// remove stops the server and has the guard remove its directory.
func (s *server) remove() error {
	return errors.Join(s.stop(), s.guard.close())
}

// launch runs a program as the owner of the cluster, known to the guard before its first instruction: a shell waits
// for our word and then becomes the program. If we end before, the shell reads the end of its input and ends too.
func (s *server) launch(program string, args ...string) (*os.Process, error) {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	cmd := exec.Command("/bin/sh", append([]string{"-c", `read -r word && exec "$@" </dev/null`, "sh", program}, args...)...)
	cmd.Dir = s.dir
	// Nothing of ours: a PGOPTIONS or a LANG would change the server.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "LC_ALL=C", "TZ=UTC"}
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own, so that an interrupt at the terminal reaches the tests and not their database.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.owner}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	cmd.Stdin = r
	err = cmd.Start()
	r.Close() // as of this
	if err != nil {
		return nil, err
	}
	if err := s.guard.watch(cmd.Process.Pid); err != nil {
		cmd.Process.Kill() // it ends anyway when w is closed
		return nil, err
	}
	if _, err := w.WriteString("go\n"); err != nil {
		return nil, err
	}
	return cmd.Process, nil
}

func (s *server) logTail() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-2000):]))
}

// unprivileged returns whom to run as: Postgres refuses to run as root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr == nil && gidErr == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("we run as root, and there is no user postgres or nobody to run a server as: create one")
}

// makeDir makes the server's directory. Its path is short, since a socket's path is limited to 107 bytes (103 on
// some systems), and everyone may pass through its parents, since the owner may be someone else.
func makeDir(owner *syscall.Credential) (string, error) {
	parent := "/tmp"
	if tmp := os.TempDir(); len(tmp) <= 60 && (owner == nil || traversable(tmp)) {
		parent = tmp
	}
	dir, err := os.MkdirTemp(parent, "toolherd-pg-")
	if err != nil {
		return "", err
	}
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			return "", errors.Join(err, os.Remove(dir))
		}
	}
	return dir, nil
}

// traversable reports whether every user may pass through dir and all its parents.
func traversable(dir string) bool {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		return true
	}
}
