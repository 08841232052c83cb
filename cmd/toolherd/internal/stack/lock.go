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

	"github.com/toolherd/toolherd/pkg/backoff"
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

// RunningError says that an all-in-one runs on the state directory, and where.
type RunningError struct{ Address Address }

// Error names the address.
func (e *RunningError) Error() string {
	return fmt.Sprintf("a toolherd with process id %d runs at %s", e.Address.PID, e.Address.GRPC)
}

// Find returns the address of the all-in-one that runs on a state directory; false means that none does, or none yet.
func Find(stateDir string) (Address, bool, error) {
	lock := flock.New(filepath.Join(stateDir, lockName))
	if _, err := os.Stat(lock.Path()); errors.Is(err, fs.ErrNotExist) {
		return Address{}, false, nil
	}
	free, err := lock.TryRLock()
	if err != nil {
		return Address{}, false, lockFault(stateDir, err)
	}
	if free {
		return Address{}, false, lock.Close()
	}
	return published(stateDir)
}

// published reads the address file. There is none while its owner starts or stops, and none of a client's own composition.
func published(stateDir string) (Address, bool, error) {
	content, err := os.ReadFile(filepath.Join(stateDir, addressName))
	if errors.Is(err, fs.ErrNotExist) {
		return Address{}, false, nil
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

// acquire takes the lock of a state directory. While another process has it, acquire waits up to patience: for a client
// that ends, or, if the caller is one too, for an `up` that has just begun, whose address is then a *RunningError.
func acquire(ctx context.Context, stateDir string, patience time.Duration, client bool) (release func() error, err error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory (--state-dir): %w", err)
	}
	lock := flock.New(filepath.Join(stateDir, lockName), flock.SetPermissions(0o600))
	for deadline := time.Now().Add(patience); ; {
		ok, err := lock.TryLock()
		if err != nil {
			return nil, lockFault(stateDir, err)
		}
		if ok {
			break
		}
		address, found, err := published(stateDir)
		switch {
		case client && err == nil && found:
			return nil, &RunningError{address}
		case time.Now().After(deadline):
			return nil, inUse(stateDir, address, found)
		}
		if err := backoff.Sleep(ctx, lockRetry); err != nil {
			return nil, fmt.Errorf("wait for state directory %s: %w", stateDir, err)
		}
	}
	// An address that a killed process left behind is no longer anybody's, or a stranger's.
	if err := os.Remove(filepath.Join(stateDir, addressName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("remove an old address file: %w", err), lock.Close())
	}
	return lock.Close, nil
}

func inUse(stateDir string, a Address, known bool) error {
	holder := "another toolherd"
	if known {
		holder = fmt.Sprintf("toolherd with process id %d at %s", a.PID, a.GRPC)
	}
	return fault.New(fault.ConfigConflict,
		"state directory %s is in use by %s: use that one, stop it, or give another --state-dir", stateDir, holder)
}

// lockFault says that a lock cannot be had at all: not every network file system has them.
func lockFault(stateDir string, err error) error {
	return fault.Of(fault.FailedPrecondition,
		"the lock of state directory %s cannot be used: %v: let this user write there, or give a --state-dir on a file system with locks", stateDir, err).Because(err)
}

// publish writes the address file; the returned function removes it.
func publish(stateDir string, a Address) (remove func() error, err error) {
	content, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(stateDir, addressName)
	if err := replace(path, content); err != nil {
		return nil, fmt.Errorf("write address file: %w", err)
	}
	return func() error { return os.Remove(path) }, nil
}

// replace writes path as a whole, through a file of its own that only this user can read and that follows no link.
func replace(path string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
