package bench

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/partners"
)

// rowPublish edits the configuration and waits until the proxy uses it.
func rowPublish(t *testing.T, rep *report, b bed) {
	servers := map[string]any{"stdio": b.echo.Entry(), "http": map[string]any{"url": b.echoURL}}
	var took []time.Duration
	for i := range *roundCount {
		next := maps.Clone(servers)
		name := "extra" + strconv.Itoa(i)
		next[name] = map[string]any{"url": b.echoURL, "enabled": false}
		start := time.Now()
		b.herd.write(t, next)
		b.herd.await(t, name)
		took = append(took, time.Since(start))
	}
	rep.add(row{what: "file edited -> published -> the proxy uses it", measured: ms(median(took)), goal: "<= 1 s"})
}

// await waits until a server appears in the proxy's list.
func (h *herd) await(t *testing.T, server string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := h.proxy.WatchServers(ctx, &toolproxyv1.WatchServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			t.Fatalf("server %s did not appear: %v", server, err)
		}
		for _, s := range msg.GetServers() {
			if s.GetName() == server {
				return
			}
		}
	}
}

// rowStart times `toolherd up` without servers from its start to the ready line, on a fresh state directory, beside the
// start of a process that only prints its version.
func rowStart(t *testing.T, rep *report) {
	var up, bare []time.Duration
	program := partners.Toolherd(t)
	for range max(*roundCount, 3) {
		start := time.Now()
		if out, err := exec.CommandContext(t.Context(), program, "version").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		bare = append(bare, time.Since(start))
		t.Run("up", func(t *testing.T) {
			start := time.Now()
			partners.StartUp(t, t.TempDir(), "--mcp-config", emptyConfig(t))
			up = append(up, time.Since(start))
		})
	}
	rep.add(row{
		what: "toolherd up to serving, SQLite, no servers", measured: ms(median(up)),
		baseline: ms(median(bare)) + " toolherd version", goal: "<= 300 ms",
	})
}

func emptyConfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(path, []byte(`{"mcpServers":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const idleSessions = 50

// rowMemory reads the resident memory of an idle all-in-one, and what sessions add to it.
func rowMemory(t *testing.T, rep *report) {
	h := upWith(t, map[string]any{"fake": partners.GoProgram(t, "test/bench/echoserver").Entry()}, 2)
	before := resident(t, h.process.PID)
	rep.add(row{what: "idle resident memory, all-in-one, one stdio server", measured: fmt.Sprintf("%.1f MB", float64(before)/1e6), goal: "<= 40 MB"})
	for i := range idleSessions {
		_, err := h.proxy.CallTool(t.Context(), &toolproxyv1.CallToolRequest{
			Name: "fake_echo", Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: `{"text":"x"}`},
			Scope: &corev1.Scope{ThreadId: "thread-" + strconv.Itoa(i)},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	after := resident(t, h.process.PID)
	rep.add(row{
		what:     fmt.Sprintf("resident memory per idle stdio session in the proxy, over %d", idleSessions),
		measured: fmt.Sprintf("%.0f KiB", float64(after-before)/idleSessions/1024), goal: "<= 150 KiB",
	})
}

// resident returns the resident bytes of a process, without its children.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// cpuTime returns what a process has used of the processors, without its children.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The name in parentheses may hold anything; user and system time are the 12th and 13th field after it, in ticks of 10 ms.
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
