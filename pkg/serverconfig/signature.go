package serverconfig

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/toolherd/toolherd/pkg/fault"
)

// Signature tells one state of a file from another. Two signatures are compared with == and !=: any difference is a
// change, whichever is newer.
type Signature struct {
	Path    string // what the path leads to, links followed
	ModTime int64  // nanoseconds since 1970
	Size    int64  // bytes
	SHA256  string // hex, over the whole content; empty if it could not be read
}

// maxTries bounds how often a file that is being written is read again.
const maxTries = 5

// Sign returns the signature of the file at path. The content is hashed on every call: a change that keeps size and time
// is still a change. If the content cannot be read, the signature has no digest and err says why; a missing file is
// [os.ErrNotExist].
func Sign(path string) (Signature, error) {
	return sign(path, io.Discard)
}

// ReadSigned returns the content of the file at path together with its signature. The file is signed, read and signed
// again, and all of it once more where something moved meanwhile or could not be hashed, so that no half-written content
// is returned with a valid signature; a file that does not come to rest is an error. A missing file is [os.ErrNotExist]. A file larger than [MaxBytes] is an error too, with
// its signature, so that the caller can tell when it changes.
func ReadSigned(path string) ([]byte, Signature, error) {
	return reader{sign: sign}.readSigned(path)
}

// reader leaves open how a file is signed, so that a test can move it in between.
type reader struct {
	sign func(path string, content io.Writer) (Signature, error)
}

func (r reader) readSigned(path string) ([]byte, Signature, error) {
	var last error
	for range maxTries {
		content := &bounded{limit: MaxBytes}
		before, err := r.sign(path, content)
		if errors.Is(err, os.ErrNotExist) || fault.Is(err, fault.ConfigInvalid) {
			return nil, before, err
		}
		after, again := r.sign(path, io.Discard)
		last = cmp.Or(err, again)
		if last != nil || before != after {
			continue
		}
		if content.exceeded {
			return nil, after, fault.New(fault.ConfigInvalid, "%s is larger than the limit of %d MiB: make it smaller", path, MaxBytes>>20)
		}
		return content.bytes, after, nil
	}
	if last != nil {
		return nil, Signature{}, last
	}
	return nil, Signature{}, fmt.Errorf("%s keeps changing while it is read: it is tried again when it comes to rest", path)
}

// sign returns the signature of the file at path, whose content it copies to content.
func sign(path string, content io.Writer) (Signature, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return Signature{}, fmt.Errorf("sign file: %w", err)
	}
	if resolved, err = filepath.Abs(resolved); err != nil {
		return Signature{}, fmt.Errorf("sign file: %w", err)
	}
	f, err := os.OpenFile(resolved, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a named pipe must not block
	if err != nil {
		s := Signature{Path: resolved}
		if info, statErr := os.Stat(resolved); statErr == nil {
			s.ModTime, s.Size = info.ModTime().UnixNano(), info.Size()
		}
		return s, fmt.Errorf("sign file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Signature{Path: resolved}, fmt.Errorf("sign file: %w", err)
	}
	s := Signature{Path: resolved, ModTime: info.ModTime().UnixNano(), Size: info.Size()}
	if !info.Mode().IsRegular() {
		return s, fault.New(fault.ConfigInvalid, "%s is not a regular file", path)
	}
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(hash, content), f); err != nil {
		return s, fmt.Errorf("sign file: %w", err)
	}
	s.SHA256 = hex.EncodeToString(hash.Sum(nil))
	return s, nil
}

// bounded keeps what is written to it up to limit bytes, and nothing of what is longer.
type bounded struct {
	limit    int
	bytes    []byte
	exceeded bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.exceeded || len(b.bytes)+len(p) > b.limit {
		b.exceeded, b.bytes = true, nil
		return len(p), nil
	}
	b.bytes = append(b.bytes, p...)
	return len(p), nil
}
