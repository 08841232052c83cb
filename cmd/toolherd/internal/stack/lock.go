package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"github.com/toolherd/toolherd/pkg/fault"
)

// Address is where a running all-in-one can be reached. It stands in the address file of its state directory.
type Address struct {
	GRPC string `json:"grpc"`
	HTTP string `json:"http"`
	PID  int    `json:"pid"`
}

const (
	lockName    = "toolherd.lock"
	addressName = "address.json"
	lockRetry   = 25 * time.Millisecond
)

// Find returns the address of the all-in-one that runs on a state directory; false means that none does.
func Find(stateDir string) (Address, bool, error) {
	lock := flock.New(filepath.Join(stateDir, lockName))
	if _, err := os.Stat(lock.Path()); errors.Is(err, fs.ErrNotExist) {
		return Address{}, false, nil
	}
	free, err := lock.TryRLock()
	if err != nil {
		return Address{}, false, fmt.Errorf("look at the lock of state directory %s: %w", stateDir, err)
	}
	if free {
		return Address{}, false, lock.Close()
	}
	content, err := os.ReadFile(filepath.Join(stateDir, addressName))
	if errors.Is(err, fs.ErrNotExist) {
		return Address{}, false, nil // starting, stopping, or a client's own composition
	}
	if err != nil {
		return Address{}, false, fmt.Errorf("read the address of the running toolherd: %w", err)
	}
	var a Address
	if err := json.Unmarshal(content, &a); err != nil {
		return Address{}, false, fmt.Errorf("read the address of the running toolherd in %s: %w", stateDir, err)
	}
	return a, true, nil
}

// acquire takes the lock of a state directory, waiting up to patience for another client's short composition.
func acquire(ctx context.Context, stateDir string, patience time.Duration) (release func() error, err error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory (--state-dir): %w", err)
	}
	lock := flock.New(filepath.Join(stateDir, lockName), flock.SetPermissions(0o600))
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ok, err := lock.TryLockContext(ctx, lockRetry)
	if ok {
		return lock.Close, nil
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("lock state directory %s: %w", stateDir, err)
	}
	holder := "another toolherd"
	if content, err := os.ReadFile(filepath.Join(stateDir, addressName)); err == nil {
		var a Address
		if json.Unmarshal(content, &a) == nil {
			holder = fmt.Sprintf("toolherd with process id %d at %s", a.PID, a.GRPC)
		}
	}
	return nil, fault.New(fault.ConfigConflict,
		"state directory %s is in use by %s: use that one, stop it, or give another --state-dir", stateDir, holder)
}

// publish writes the address file; the returned function removes it.
func publish(stateDir string, a Address) (remove func() error, err error) {
	content, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(stateDir, addressName)
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		return nil, fmt.Errorf("write address file: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return nil, fmt.Errorf("write address file: %w", err)
	}
	return func() error { return os.Remove(path) }, nil
}
