package partners

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// cached returns dir, which fill makes the first time. Fill is given an empty directory beside it, which
// is renamed when fill has succeeded; the lock makes other processes wait meanwhile.
func cached(dir string, fill func(tmp string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	return locked(dir+".lock", func() error {
		if _, err := os.Stat(dir); err == nil {
			return nil // another process was faster
		}
		tmp, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".tmp-")
		if err != nil {
			return err
		}
		if err := fill(tmp); err != nil {
			return errors.Join(err, os.RemoveAll(tmp))
		}
		return os.Rename(tmp, dir)
	})
}

// locked runs f while no other process is in locked with the same path.
func locked(path string, f func() error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	for {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("lock %s: %w", path, err), lock.Close())
	}
	return errors.Join(f(), lock.Close()) // closing unlocks
}
