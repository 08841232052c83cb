package registry_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
)

// CFG-006
func TestWithNoMCPNoServerFileIsOpened(t *testing.T) {
	p := newPlace(t)
	p.user(`{"u":{"command":"x"}}`)
	p.projectConf(`{"p":{"command":"x"}}`)
	opened := watchOpens(t, filepath.Dir(p.userFile()), p.project)

	cfg := p.config()
	cfg.NoMCP = true
	n := start(t, dbtest.SQLite(t), options{cfg: cfg})
	if got := n.states(t); got != "" {
		t.Errorf("servers are %s", got)
	}
	resp, err := n.GetConfig(t.Context(), &registryv1.GetConfigRequest{})
	if err != nil || resp.GetConfigJson() != `{"mcpServers":{}}` || len(resp.GetReadOnly()) != 0 {
		t.Errorf("GetConfig is %v, %v", resp, err)
	}
	n.stop()
	if got := opened(); len(got) != 0 {
		t.Errorf("files were opened: %q", got)
	}

	// The watch does see what a registry with files does.
	start(t, dbtest.SQLite(t), options{cfg: p.config()}).stop()
	if got := opened(); len(got) == 0 {
		t.Error("the watch of this test sees nothing")
	}
}

// watchOpens returns a function that lists the files of dirs that were opened since it was called last.
func watchOpens(t *testing.T, dirs ...string) func() []string {
	t.Helper()
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	t.Cleanup(func() { f.Close() })
	for _, dir := range dirs {
		if _, err := syscall.InotifyAddWatch(fd, dir, syscall.IN_OPEN); err != nil {
			t.Fatal(err)
		}
	}
	return func() []string {
		var names []string
		buf := make([]byte, 64<<10)
		n, err := syscall.Read(fd, buf)
		if err != nil {
			return nil // EAGAIN: nothing happened
		}
		for rest := buf[:n]; len(rest) >= syscall.SizeofInotifyEvent; {
			mask, size := binary.NativeEndian.Uint32(rest[4:]), binary.NativeEndian.Uint32(rest[12:])
			name := string(rest[syscall.SizeofInotifyEvent : syscall.SizeofInotifyEvent+size])
			if mask&syscall.IN_ISDIR == 0 {
				names = append(names, name)
			}
			rest = rest[syscall.SizeofInotifyEvent+size:]
		}
		return names
	}
}
