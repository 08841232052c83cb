package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/secret"
)

func newKey(t *testing.T, fill byte) *secret.Key {
	t.Helper()
	k, err := secret.NewKey(bytes.Repeat([]byte{fill}, secret.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestSealedDataOpensOnlyInItsPlaceAndUnderItsKey(t *testing.T) {
	k, other := newKey(t, 1), newKey(t, 2)
	plain, aad := []byte("the literal"), []byte("github/env.TOKEN")
	sealed, err := k.Seal(plain, aad)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := k.Open(sealed, aad); err != nil || !bytes.Equal(got, plain) {
		t.Fatalf("Open: %q, %v", got, err)
	}
	if again, _ := k.Seal(plain, aad); bytes.Equal(again, sealed) {
		t.Error("sealing twice gives the same bytes")
	}
	if bytes.Contains(sealed, plain) {
		t.Error("the envelope holds the plain text")
	}
	if _, err := k.Open(sealed, []byte("github/env.OTHER")); !errors.Is(err, secret.ErrNotAuthentic) {
		t.Errorf("opened elsewhere: %v", err)
	}
	if _, err := other.Open(sealed, aad); !errors.Is(err, secret.ErrOtherKey) || !strings.Contains(err.Error(), k.ID()) {
		t.Errorf("opened with another key: %v", err)
	}
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		if _, err := k.Open(changed, aad); err == nil {
			t.Fatalf("opened with byte %d changed", i)
		}
	}
	for n := range len(sealed) {
		if _, err := k.Open(sealed[:n], aad); err == nil {
			t.Fatalf("opened when cut to %d bytes", n)
		}
	}
}

func TestMACDependsOnKeyLabelAndData(t *testing.T) {
	k := newKey(t, 1)
	want := k.MAC("label", []byte("data"))
	if len(want) != 64 || want != k.MAC("label", []byte("data")) {
		t.Errorf("MAC = %q", want)
	}
	for _, other := range []string{newKey(t, 2).MAC("label", []byte("data")), k.MAC("labeld", []byte("ata")), k.MAC("label", []byte("dat"))} {
		if other == want {
			t.Error("equal digests of different things")
		}
	}
}

func TestKeyPrintsAsItsID(t *testing.T) {
	material := bytes.Repeat([]byte("k"), secret.KeySize)
	k, err := secret.NewKey(material)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprintf("%v|%+v|%#v|%s|%x", k, k, k, k, k), k.String(); strings.Count(got, want) != 5 {
		t.Errorf("printed %q", got)
	}
	if k.ID() == newKey(t, 1).ID() || len(k.ID()) != 16 {
		t.Errorf("id %q", k.ID())
	}
}

func TestKeyFileIsCreatedPrivateAndLoadedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "secret.key")
	if _, err := secret.LoadKey(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("LoadKey of a missing file: %v", err)
	}
	k, err := secret.LoadOrCreateKey(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	again, err := secret.LoadOrCreateKey(path)
	if err != nil || again.ID() != k.ID() {
		t.Errorf("loaded again: %v, %v", again, err)
	}
	if names, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
}

func TestConcurrentCreationAgreesOnOneKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret.key")
	ids := make([]string, 16)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			k, err := secret.LoadOrCreateKey(path)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = k.ID()
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("different keys: %v", ids)
		}
	}
}

func TestKeyFileOfOthersIsRefusedWithTheFix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret.key")
	if _, err := secret.LoadOrCreateKey(path); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o602, 0o644, 0o660} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := secret.LoadOrCreateKey(path)
		if fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), "chmod 600 "+path) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
}

func TestKeyFileSpellings(t *testing.T) {
	material := bytes.Repeat([]byte{0xfb, 0xff}, secret.KeySize/2)
	want, err := secret.NewKey(material)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "secret.key")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{
		hex.EncodeToString(material), strings.ToUpper(hex.EncodeToString(material)), base64.StdEncoding.EncodeToString(material),
		base64.RawStdEncoding.EncodeToString(material), base64.URLEncoding.EncodeToString(material), base64.RawURLEncoding.EncodeToString(material),
	} {
		write("  " + text + "\r\n")
		if k, err := secret.LoadKey(path); err != nil || k.ID() != want.ID() {
			t.Errorf("%q: %v, %v", text, k, err)
		}
	}
	for _, text := range []string{"", "\n", "hunter2", hex.EncodeToString(material[1:]), hex.EncodeToString(material) + "00", strings.Repeat("a", 1<<20)} {
		write(text)
		_, err := secret.LoadKey(path)
		if err == nil || !strings.Contains(err.Error(), "openssl rand") || text != "" && text != "\n" && strings.Contains(err.Error(), text) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

func TestKeyFileMustBeRegular(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, pipe} {
		if _, err := secret.LoadOrCreateKey(path); fault.KindOf(err) != fault.FailedPrecondition {
			t.Errorf("%s: %v", path, err)
		}
	}
}
