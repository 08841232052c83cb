package write

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// file is what is written to.
type file interface {
	Name() string
	Write(b []byte) (int, error)
	Truncate(size int64) error
	Chmod(mode fs.FileMode) error
	Chown(uid, gid int) error
	Sync() error
	Close() error
}

// system is what a write asks of the operating system, so that a test can let any step of it fail.
type system struct {
	temp    func(dir, pattern string) (file, error) // a new file that its owner alone may read
	open    func(path string) (file, error)         // for writing from its beginning
	rename  func(from, to string) error
	syncDir func(dir string) error
}

func operatingSystem() system {
	return system{
		temp:   func(dir, pattern string) (file, error) { return os.CreateTemp(dir, pattern) },
		open:   func(path string) (file, error) { return os.OpenFile(path, os.O_WRONLY, 0) },
		rename: os.Rename,
		syncDir: func(dir string) error {
			d, err := os.Open(dir)
			if err != nil {
				return err
			}
			return errors.Join(d.Sync(), d.Close())
		},
	}
}

// Write replaces the content of the file. It keeps the mode of a file that is there; a new one has mode 0600. An error
// leaves the old content. It names no content.
func (l *Locked) Write(content []byte) error {
	sys := l.w.sys
	dir, name := filepath.Split(l.target)
	tmp, err := sys.temp(dir, "."+name+".*.tmp")
	if err != nil {
		return fmt.Errorf("write %s: %w", l.target, err)
	}
	err = l.fill(tmp, content)
	if err == nil {
		err = sys.rename(tmp.Name(), l.target)
	}
	if err != nil {
		// Best effort: what cannot be removed is not the file.
		os.Remove(tmp.Name()) //nolint:errcheck // the first error says more
	}
	if errors.Is(err, syscall.EBUSY) {
		err = l.overwrite(content)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", l.target, err)
	}
	if err := sys.syncDir(dir); err != nil {
		l.w.log.Debug("directory not synced", "dir", dir, "err", err)
	}
	return nil
}

// fill writes content to the temporary file tmp, gives it the mode and the owner of the file, syncs and closes it.
func (l *Locked) fill(tmp file, content []byte) error {
	err := func() error {
		if _, err := tmp.Write(content); err != nil {
			return err
		}
		if info, err := os.Stat(l.target); err == nil {
			if s, ok := info.Sys().(*syscall.Stat_t); ok && (int(s.Uid) != os.Geteuid() || int(s.Gid) != os.Getegid()) {
				tmp.Chown(int(s.Uid), int(s.Gid)) //nolint:errcheck // only root may, and the content is the same
			}
			if err := tmp.Chmod(info.Mode().Perm()); err != nil {
				return err
			}
		}
		return tmp.Sync()
	}()
	return errors.Join(err, tmp.Close())
}

// overwrite writes content into the file itself. If that fails it puts back what was there.
func (l *Locked) overwrite(content []byte) error {
	before, err := os.ReadFile(l.target)
	if err != nil {
		return err
	}
	l.warn()
	if err = l.into(content); err == nil {
		return nil
	}
	if again := l.into(before); again != nil {
		if now, readErr := os.ReadFile(l.target); readErr != nil || !bytes.Equal(now, before) {
			return fmt.Errorf("overwrite in place: %w; the old content could not be put back (%w)", err, again)
		}
	}
	return fmt.Errorf("overwrite in place: %w", err)
}

// into writes content from the beginning of the file, cuts off what is behind it, and syncs.
func (l *Locked) into(content []byte) error {
	f, err := l.w.sys.open(l.target)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Truncate(int64(len(content)))
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// warn says, once per file, that it is overwritten in place.
func (l *Locked) warn() {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if !l.w.warned[l.target] {
		l.w.warned[l.target] = true
		l.w.log.Warn("file cannot be replaced because it is mounted, it is overwritten in place: mount its directory instead", "file", l.target)
	}
}
