package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// leftovers lists the processes that have dir in their command line or environment.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, p := range processes {
		for _, file := range []string{"cmdline", "environ"} {
			content, err := os.ReadFile(filepath.Join(p, file))
			if err == nil && bytes.Contains(content, []byte(dir)) { // else it has ended, or is not ours
				found = append(found, filepath.Base(p)+" "+strings.ReplaceAll(string(content), "\x00", " "))
				break
			}
		}
	}
	return found
}

// clean fails the test if the demo left a process or a file in the place.
func (p *place) clean() {
	p.t.Helper()
	if left := leftovers(p.t, p.dir); len(left) > 0 {
		p.t.Errorf("processes are left: %q", left)
	}
	entries, err := os.ReadDir(p.dir)
	if err != nil || len(entries) > 0 {
		p.t.Errorf("files are left: %v, %v", entries, err)
	}
}

// CLI-006: the demo ends with a task that was notified, after a kill and a restart in between, and leaves nothing behind.
func TestTheDemoEndsWithANotifiedTaskAfterAKill(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	r := p.run("demo").want(0, `(?s)demo_start_report.*\{"sum":42\}.*working .*\n   \$ kill -9 \d+\n.*back after \d+ ms.*\n   completed +\[#{24}\] 100%.*asked for one report, once.*`+
		`mcp-task-[0-9a-f]{32}:1  completed\n.*mcp-task-[0-9a-f]{32}:1  delivered to sink "events"\n`, `^$`)
	ids := map[string]bool{}
	for _, id := range regexp.MustCompile(`mcp-task-[0-9a-f]{32}`).FindAllString(r.stdout, -1) {
		ids[id] = true
	}
	if len(ids) != 1 {
		t.Errorf("the story is about the tasks %v", ids)
	}
	for _, rpc := range []string{"ListTools", "CallTool", "WatchTask", "WatchEvents", "AckEvent", "ListNotifications"} {
		if !regexp.MustCompile(`\n   \$ grpcurl -plaintext -d '\{.*\}' 127\.0\.0\.1:\d+ toolherd\.[a-z]+\.v1\.[A-Za-z]+/` + rpc + `\n`).MatchString(r.stdout) {
			t.Errorf("no line for grpcurl with %s", rpc)
		}
	}
	if strings.ContainsAny(r.stdout, "\r\x1b") {
		t.Error("what is no terminal is written to as one")
	}
	p.clean()
}

func TestAnInterruptedDemoLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := p.command(ctx, "demo")
	stdout, stderr := &output{}, &output{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	eventually(t, "the task is followed", func() bool { return strings.Contains(stdout.String(), "WatchTask") })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatalf("it does not end:\n%s", stdout)
	}
	if code := cmd.ProcessState.ExitCode(); code != 1 || strings.Contains(stderr.String(), "panic") {
		t.Errorf("exit status %d, stderr %s", code, stderr)
	}
	p.clean()
}
