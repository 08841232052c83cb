// Package write changes configuration files: one writer at a time over all processes, and the old content or the new one,
// never a mix of both.
//
//	Lock ──▶ Read ──▶ (caller: merge, validate) ──▶ Write ──▶ (caller: publish) ──▶ Close
//
// # Locks
//
// A writer holds a lock of its process and an advisory lock on `.<name>.lock` beside the file, links resolved, from before
// it reads until its caller is done. Whoever follows the protocol loses no update of another, in this process or the
// next. The lock file stays where it is: to remove it would let two writers in.
//
// # Writing
//
//	.<name>.*.tmp in the same directory ──▶ mode and owner of the file ──▶ fsync ──▶ rename ──▶ directory synced
//
// Any failure leaves the old file byte for byte and no temporary file. A file that cannot be replaced because something is
// mounted on it (EBUSY) is overwritten in place and synced: then a crash in the middle can leave a mix, of which a
// warning tells once per file. A failure there that is no crash puts the old content back.
//
// [Compose] makes the content: what a write does not touch stands in it byte for byte.
package write

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// ReadFunc returns the content of a file; a missing one is [fs.ErrNotExist].
type ReadFunc func(path string) ([]byte, error)

// Writer writes one file. It is safe for concurrent use.
type Writer struct {
	path string
	read ReadFunc
	log  *slog.Logger
	sys  system
	turn chan struct{} // holds one value while nobody has the lock

	mu     sync.Mutex
	warned map[string]bool // files that were overwritten in place
}

// New returns a writer of the file at path, which may be a symlink and need not exist. It opens nothing.
func New(path string, read ReadFunc, log *slog.Logger) *Writer {
	w := &Writer{path: path, read: read, log: log, sys: operatingSystem(), turn: make(chan struct{}, 1), warned: map[string]bool{}}
	w.turn <- struct{}{}
	return w
}

const (
	retryInterval = 20 * time.Millisecond // between attempts at a lock that another process has
	privateDir    = 0o700
	privateFile   = 0o600
)

// Locked is a file that nobody else writes. Its methods are for one goroutine.
type Locked struct {
	w      *Writer
	target string // links resolved
	lock   *flock.Flock
}

// Lock waits until no other writer has the file, or until ctx ends. Directories that are missing are made. A context that
// ends later changes nothing: the caller holds the lock until it calls Close.
func (w *Writer) Lock(ctx context.Context) (*Locked, error) {
	select {
	case <-w.turn:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the writer before: %w", ctx.Err())
	}
	l, err := w.lock(ctx)
	if err != nil {
		w.turn <- struct{}{}
		return nil, err
	}
	return l, nil
}

// lock takes the lock of the file that the path leads to. Should it lead elsewhere by then, it begins anew.
func (w *Writer) lock(ctx context.Context) (*Locked, error) {
	for {
		target, err := resolve(w.path)
		if err != nil {
			return nil, fmt.Errorf("resolve %s: %w", w.path, err)
		}
		dir, name := filepath.Split(target)
		if err := os.MkdirAll(dir, privateDir); err != nil {
			return nil, fmt.Errorf("make directory: %w", err)
		}
		lock := flock.New(filepath.Join(dir, "."+name+".lock"), flock.SetPermissions(privateFile))
		if _, err := lock.TryLockContext(ctx, retryInterval); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", target, err), lock.Close())
		}
		if again, err := resolve(w.path); err == nil && again == target {
			return &Locked{w: w, target: target, lock: lock}, nil
		}
		if err := lock.Close(); err != nil {
			return nil, fmt.Errorf("unlock %s: %w", target, err)
		}
	}
}

// Close lets the next writer in.
func (l *Locked) Close() error {
	err := l.lock.Close()
	l.w.turn <- struct{}{}
	if err != nil {
		return fmt.Errorf("unlock %s: %w", l.target, err)
	}
	return nil
}

// Read returns the content of the file, or nil if there is none.
func (l *Locked) Read() ([]byte, error) {
	content, err := l.w.read(l.target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case content == nil:
		return []byte{}, nil
	}
	return content, nil
}

// maxHops bounds how many links lead to a file, as the system does.
const maxHops = 40

// resolve returns what path leads to, which need not exist: neither the file, nor the end of a link, nor directories.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for range maxHops {
		dir, err := existing(filepath.Dir(path))
		if err != nil {
			return "", err
		}
		path = filepath.Join(dir, filepath.Base(path))
		next := link(path)
		if next == "" {
			return path, nil
		}
		if !filepath.IsAbs(next) {
			next = filepath.Join(dir, next)
		}
		path = next
	}
	return "", fmt.Errorf("%s: more than %d links", path, maxHops)
}

// link returns what the link at path says, or "" if it is none or not there: what is wrong with it shows when it is read.
func link(path string) string {
	next, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	return next
}

// existing resolves the links of a directory as far as it exists.
func existing(dir string) (string, error) {
	resolved, err := filepath.EvalSymlinks(dir)
	if err == nil {
		return resolved, nil
	}
	parent := filepath.Dir(dir)
	if !errors.Is(err, fs.ErrNotExist) || parent == dir {
		return "", err
	}
	resolved, err = existing(parent)
	return filepath.Join(resolved, filepath.Base(dir)), err
}
