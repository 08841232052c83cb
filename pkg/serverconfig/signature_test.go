package serverconfig

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func mustSign(t *testing.T, path string) Signature {
	t.Helper()
	s, err := Sign(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// SNAP-001
func TestSignatureIsPathTimeSizeAndHash(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file, link := filepath.Join(dir, "a.json"), filepath.Join(dir, "link.json")
	write(t, file, "hello")
	at := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	if err := errors.Join(os.Chtimes(file, at, at), os.Symlink("a.json", link)); err != nil {
		t.Fatal(err)
	}
	want := Signature{Path: file, ModTime: at.UnixNano(), Size: 5, SHA256: "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}
	for _, path := range []string{file, link} {
		content, s, err := ReadSigned(path)
		if err != nil || string(content) != "hello" || s != want || mustSign(t, path) != want {
			t.Errorf("%s: %q %+v %v", path, content, s, err)
		}
	}
}

// SNAP-001, SNAP-002
func TestEveryKindOfEditChangesTheSignature(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.json")
	at := time.Unix(1_700_000_000, 0)
	reset := func(t *testing.T) Signature {
		t.Helper()
		_ = os.Remove(file)
		write(t, file, "AAAA")
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
		return mustSign(t, file)
	}
	for name, edit := range map[string]func() error{
		"same size, same time": func() error {
			return errors.Join(os.WriteFile(file, []byte("BBBB"), 0o600), os.Chtimes(file, at, at))
		},
		"same size, time goes back": func() error {
			return errors.Join(os.WriteFile(file, []byte("BBBB"), 0o600), os.Chtimes(file, at, at.Add(-time.Hour)))
		},
		"same content, time goes back": func() error { return os.Chtimes(file, at, at.Add(-time.Hour)) },
		"other size, same time": func() error {
			return errors.Join(os.WriteFile(file, []byte("BBBBB"), 0o600), os.Chtimes(file, at, at))
		},
		"atomic replace by a file of the same time and size": func() error {
			other := filepath.Join(dir, "other")
			return errors.Join(os.WriteFile(other, []byte("BBBB"), 0o600), os.Chtimes(other, at, at), os.Rename(other, file))
		},
		"a link to other content takes its place": func() error {
			other := filepath.Join(dir, "target.json")
			return errors.Join(os.WriteFile(other, []byte("AAAA"), 0o600), os.Chtimes(other, at, at), os.Remove(file), os.Symlink(other, file))
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := reset(t)
			if err := edit(); err != nil {
				t.Fatal(err)
			}
			if after := mustSign(t, file); after == before {
				t.Errorf("not noticed: %+v", after)
			}
		})
	}
	before := reset(t)
	if after := mustSign(t, file); after != before {
		t.Errorf("no edit, but %+v is not %+v", after, before)
	}
}

// SNAP-002
func TestRetargetedLinkIsAChangeEvenIfTheFilesAreEqual(t *testing.T) {
	dir := t.TempDir()
	at := time.Unix(1_700_000_000, 0)
	for _, name := range []string{"a", "b"} {
		write(t, filepath.Join(dir, name), "same")
		if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "link")
	var seen []Signature
	for _, target := range []string{"a", "b"} {
		_ = os.Remove(link)
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		seen = append(seen, mustSign(t, link))
	}
	if seen[0] == seen[1] {
		t.Errorf("not noticed: %+v", seen)
	}
}

// moving signs files and calls move after each signature, with how many were made.
func moving(move func(n int)) reader {
	n := 0
	return reader{sign: func(path string, content io.Writer) (Signature, error) {
		s, err := sign(path, content)
		n++
		move(n)
		return s, err
	}}
}

// SNAP-003
func TestFileThatMovesWhileItIsReadIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.json")
	write(t, file, "half")
	content, s, err := moving(func(n int) {
		if n == 1 { // the writer goes on between the first signature and the second
			write(t, file, "the whole")
		}
	}).readSigned(file)
	if err != nil || string(content) != "the whole" || s != mustSign(t, file) {
		t.Errorf("%q %+v %v", content, s, err)
	}
}

// SNAP-003
func TestFileThatVanishesWhileItIsReadIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.json")
	write(t, file, "old")
	content, _, err := moving(func(n int) {
		switch n {
		case 1:
			_ = os.Remove(file)
		case 2:
			write(t, file, "new")
		}
	}).readSigned(file)
	if err != nil || string(content) != "new" {
		t.Errorf("%q %v", content, err)
	}
}

// SNAP-003
func TestFileThatNeverRestsIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.json")
	write(t, file, "x")
	calls := 0
	content, _, err := moving(func(n int) {
		calls = n
		write(t, file, strings.Repeat("x", n+1))
	}).readSigned(file)
	if err == nil || content != nil || !strings.Contains(err.Error(), "keeps changing") || calls != 2*maxTries {
		t.Errorf("%q %v after %d signatures", content, err, calls)
	}
}

// SNAP-003
func TestSignatureWithoutDigestIsNeverAccepted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.json")
	write(t, file, "x")
	broken := errors.New("input/output error")
	failing := func(when func(n int) bool) (reader, *int) {
		n := new(int)
		return reader{sign: func(path string, content io.Writer) (Signature, error) {
			*n++
			s, err := sign(path, content)
			if when(*n) {
				s.SHA256 = ""
				return s, broken
			}
			return s, err
		}}, n
	}
	for _, failed := range []int{1, 2} {
		r, n := failing(func(n int) bool { return n == failed })
		content, s, err := r.readSigned(file)
		if err != nil || string(content) != "x" || s != mustSign(t, file) || *n != 4 {
			t.Errorf("signature %d fails: %q %+v %v after %d", failed, content, s, err, *n)
		}
	}
	for _, failed := range []int{0, 1} {
		r, n := failing(func(n int) bool { return n%2 == failed })
		content, s, err := r.readSigned(file)
		if !errors.Is(err, broken) || content != nil || s.SHA256 != "" || *n != 2*maxTries {
			t.Errorf("every other signature fails: %q %+v %v after %d", content, s, err, *n)
		}
	}
}

// atFirstWrite calls do once, before the first piece of a file's content is passed on.
type atFirstWrite struct {
	io.Writer
	do func()
}

func (w *atFirstWrite) Write(p []byte) (int, error) {
	if w.do != nil {
		w.do()
		w.do = nil
	}
	return w.Writer.Write(p)
}

// SNAP-003
func TestContentOfTwoVersionsIsNeverReturned(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.json")
	const size = 1 << 20
	old, replaced := strings.Repeat("a", size), strings.Repeat("b", size)
	at := time.Unix(1_700_000_000, 0)
	put := func(content string) {
		write(t, file, content)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	put(old)
	var first []byte
	n := 0
	content, s, err := reader{sign: func(path string, content io.Writer) (Signature, error) {
		n++
		if n > 1 {
			return sign(path, content)
		}
		seen := &bounded{limit: MaxBytes}
		s, err := sign(path, &atFirstWrite{Writer: io.MultiWriter(content, seen), do: func() { put(replaced) }})
		first = seen.bytes
		return s, err
	}}.readSigned(file)
	if !strings.Contains(string(first), "ab") {
		t.Fatal("the first read did not mix the versions: the test proves nothing")
	}
	if err != nil || string(content) != replaced || s != mustSign(t, file) {
		t.Errorf("%d bytes, %.20q…, %v", len(content), content, err)
	}
}

func TestWhatCannotBeSigned(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := ReadSigned(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadSigned(filepath.Join(dir, "dangling")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("dangling link: %v", err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, pipe} {
		if _, _, err := ReadSigned(path); !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestFileBeyondTheLimitHasASignatureOnly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.json")
	write(t, file, strings.Repeat(" ", MaxBytes))
	if content, _, err := ReadSigned(file); err != nil || len(content) != MaxBytes {
		t.Errorf("at the limit: %d bytes, %v", len(content), err)
	}
	write(t, file, strings.Repeat(" ", MaxBytes+1))
	content, s, err := ReadSigned(file)
	if content != nil || !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), "8 MiB") || s != mustSign(t, file) {
		t.Errorf("beyond: %d bytes, %+v, %v", len(content), s, err)
	}
}
