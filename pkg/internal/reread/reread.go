// Package reread keeps a value that was parsed from files equal to their content.
//
// The files are looked at when the value is asked for, at most once per [Interval], and compared by content:
// modification times lie. There is no goroutine and nothing to close. Content that cannot be read or parsed, or that
// changes while it is read, leaves the last good value in place; that is logged at WARN once per content.
package reread

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Interval is how long a value is used before its files are looked at again.
const Interval = time.Second

// MaxBytes is the size above which a file is refused.
const MaxBytes = 1 << 20

// Source names the files of a value and says how to parse them.
type Source[T any] struct {
	What  string   // for messages, such as "tokens file"
	Paths []string // at least one
	Parse func(contents [][]byte) (T, error)
	Log   *slog.Logger
}

// Value is a value that follows its files. Its methods may be called concurrently.
type Value[T any] struct {
	source Source[T]
	start  time.Time
	next   atomic.Int64 // time since start at which the files are looked at again
	good   atomic.Pointer[T]

	mu      sync.Mutex // held while the files are looked at
	seen    [sha256.Size]byte
	problem string // the last problem logged
}

// Open reads and parses the files and fails where Get could have no value to fall back on.
func Open[T any](s Source[T]) (*Value[T], error) {
	v := &Value[T]{source: s, start: time.Now()}
	contents, sum, err := v.read()
	if err != nil {
		return nil, err
	}
	t, err := s.Parse(contents)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", s.What, s.Paths[0], err)
	}
	v.good.Store(&t)
	v.seen = sum
	v.next.Store(int64(Interval))
	return v, nil
}

// Get returns the value of the last good content.
func (v *Value[T]) Get() T {
	now := int64(time.Since(v.start))
	if now >= v.next.Load() && v.mu.TryLock() {
		v.refresh()
		v.next.Store(now + int64(Interval))
		v.mu.Unlock()
	}
	return *v.good.Load()
}

// refresh is called with mu held.
func (v *Value[T]) refresh() {
	contents, sum, err := v.read()
	if err != nil {
		v.warn(err)
		return
	}
	if sum == v.seen {
		v.problem = ""
		return
	}
	t, err := v.source.Parse(contents)
	if err != nil {
		v.warn(fmt.Errorf("%s %s: %w", v.source.What, v.source.Paths[0], err))
		return
	}
	v.good.Store(&t)
	v.seen = sum
	v.problem = ""
	v.source.Log.Info("file re-read", "what", v.source.What, "path", v.source.Paths[0])
}

func (v *Value[T]) warn(err error) {
	if err.Error() == v.problem {
		return
	}
	v.problem = err.Error()
	v.source.Log.Warn("file not usable, its last good content stays in use", "what", v.source.What, "path", v.source.Paths[0], "err", err)
}

// read returns the contents of all files and one digest over them. It reads twice and refuses a difference, so that
// a half-written file is not taken for its content.
func (v *Value[T]) read() ([][]byte, [sha256.Size]byte, error) {
	first, err := v.readOnce()
	if err != nil {
		return nil, [sha256.Size]byte{}, err
	}
	second, err := v.readOnce()
	if err != nil {
		return nil, [sha256.Size]byte{}, err
	}
	h := sha256.New()
	for i := range first {
		if !bytes.Equal(first[i], second[i]) {
			return nil, [sha256.Size]byte{}, fmt.Errorf("%s %s: changed while it was read", v.source.What, v.source.Paths[i])
		}
		fmt.Fprintf(h, "%d:", len(first[i]))
		h.Write(first[i])
	}
	return first, [sha256.Size]byte(h.Sum(nil)), nil
}

func (v *Value[T]) readOnce() ([][]byte, error) {
	contents := make([][]byte, len(v.source.Paths))
	for i, path := range v.source.Paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.source.What, err)
		}
		contents[i], err = io.ReadAll(io.LimitReader(f, MaxBytes+1))
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.source.What, err)
		}
		if len(contents[i]) > MaxBytes {
			return nil, fmt.Errorf("%s %s: larger than %d bytes", v.source.What, path, MaxBytes)
		}
	}
	return contents, nil
}
