package secret

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/toolherd/toolherd/pkg/fault"
)

// maxKeyFile is more than any spelling of a key needs.
const maxKeyFile = 4096

// LoadKey reads the key file at path: [KeySize] random bytes as 64 hex digits or in base64, white space around them
// ignored. A file that others than its owner may read or write is refused, and so is anything but a regular file.
// A missing file gives an error that is [fs.ErrNotExist].
func LoadKey(path string) (*Key, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a named pipe must not block
	if err != nil {
		return nil, fmt.Errorf("secret key file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("secret key file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fault.Of(fault.FailedPrecondition, "secret key file %s is not a regular file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fault.Of(fault.FailedPrecondition,
			"secret key file %s can be read or written by others than its owner (mode %04o): run `chmod 600 %s`", path, mode, path)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, fmt.Errorf("secret key file: %w", err)
	}
	material, ok := decodeKey(content)
	if !ok {
		return nil, fault.Of(fault.FailedPrecondition,
			"secret key file %s does not hold %d bytes in hex or base64: restore it, or if nothing was stored under it yet, make one with `openssl rand -hex %d`",
			path, KeySize, KeySize)
	}
	return NewKey(material)
}

// LoadOrCreateKey is [LoadKey], but where path does not exist it makes a random key first, in a file of mode 0600
// that appears complete and synced to disk or, on a file system with hard links, not at all. Of several processes that do so at once one wins, and all
// return its key. A missing directory is made with mode 0700.
func LoadOrCreateKey(path string) (*Key, error) {
	key, err := LoadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := createKey(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create secret key file: %w", err)
	}
	return LoadKey(path)
}

func createKey(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	material := make([]byte, KeySize)
	_, _ = rand.Read(material) // never fails
	content := append(hex.AppendEncode(nil, material), '\n')
	temp := filepath.Join(dir, "."+filepath.Base(path)+"."+rand.Text()+".tmp")
	if err := writeNew(temp, content); err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp) }()
	// A hard link gives the complete file its name, and fails where the name is taken.
	if err := os.Link(temp, path); errors.Is(err, fs.ErrExist) {
		return err
	} else if err != nil { // a file system without hard links
		if err := writeNew(path, content); err != nil {
			return err
		}
	}
	return syncDir(dir)
}

// writeNew creates path, which must not exist, with content that is on disk when it returns.
func writeNew(path string, content []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	if _, err := f.Write(content); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func decodeKey(content []byte) ([]byte, bool) {
	text := string(bytes.TrimSpace(content))
	if material, err := hex.DecodeString(text); err == nil {
		return material, len(material) == KeySize
	}
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		if material, err := encoding.DecodeString(text); err == nil && len(material) == KeySize {
			return material, true
		}
	}
	return nil, false
}
