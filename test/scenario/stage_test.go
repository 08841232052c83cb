package scenario

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	fakemcp "github.com/toolherd/toolherd/test/fakemcp/fake"
	fakeruntime "github.com/toolherd/toolherd/test/fakeruntime/fake"
	"github.com/toolherd/toolherd/test/partners"
)

// The sinks of a Stage, besides the built-in one.
const (
	hookSink      = "hook"      // a webhook
	runtimeSink   = "runtime"   // an agent runtime
	feedSink      = "feed"      // a stream
	operatorsSink = "operators" // a stream that agents may not name
	eventsSink    = "events"    // the built-in stream
)

const hookKey = "whsec_c2NlbmFyaW8gaG9vayBrZXkgMDEyMzQ1Njc4OQ=="

// Stage is a Herd with everything that durable tasks need around it: a server whose jobs outlive everybody else, and
// something at the far end of each kind of sink. All three run apart from the Herd, which may be killed.
type Stage struct {
	*Herd
	// Jobs is the task server over HTTP; as server `jobs` its tools are start_job, job_status and cancel_job.
	Jobs *partners.Process
	// Journal has every call of a job's tool.
	Journal string
	// Runtime and Hook are the far ends of the sinks `runtime` and `hook`.
	Runtime *fakeruntime.Runtime
	Hook    *fakeruntime.Receiver
	// Gates is a directory for files that jobs wait for.
	Gates string
}

// StageOptions say how a Stage starts.
type StageOptions struct {
	Options
	// Servers besides `jobs`.
	Servers map[string]any
	// Tasks and Notifier are further keys of these sections of toolherd.yaml, as YAML of one line each: "lease: 6s".
	Tasks, Notifier []string
	// YAML are further sections.
	YAML string
	// Setup runs before the first program starts.
	Setup func(s *Stage)
}

// quick makes everything that a scenario waits for short; a key that a scenario sets itself comes first.
func quick() []string {
	return []string{"poll_interval: 1s", "lease: 5s", "max_poll_backoff: 1s", "input_required_poll_interval: 5s"}
}

// toolset is a server entry whose jobs are durable tasks.
func toolset(entry map[string]any, more ...string) map[string]any {
	set := map[string]string{"name": "job", "submit_tool": fakemcp.SubmitJob, "status_tool": fakemcp.JobStatus, "cancel_tool": fakemcp.CancelJob}
	for pair := range slices.Chunk(more, 2) {
		set[pair[0]] = pair[1]
	}
	out := maps.Clone(entry)
	out["task_toolsets"] = []any{set}
	return out
}

// NewStage starts a Stage. It ends with the test.
func NewStage(t testing.TB, topology Topology, o StageOptions) *Stage {
	t.Helper()
	dir := t.TempDir()
	s := &Stage{Journal: filepath.Join(dir, "journal"), Gates: dir}
	s.Jobs = partners.FakeHTTP(t, "-journal", s.Journal)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.Runtime, err = fakeruntime.NewRuntime(fakeruntime.RuntimeOptions{})
	must(err)
	s.Hook, err = fakeruntime.NewReceiver(fakeruntime.ReceiverOptions{Keys: []string{hookKey}})
	must(err)
	lasting := context.WithoutCancel(t.Context())
	runtimes, err := fakeruntime.ListenRuntime(lasting, "127.0.0.1:0", s.Runtime)
	must(err)
	t.Cleanup(func() { closing(t, runtimes) })
	hooks, err := fakeruntime.ListenReceiver(lasting, "127.0.0.1:0", s.Hook)
	must(err)
	t.Cleanup(func() { closing(t, hooks) })

	o.Options.YAML = s.yaml(o, hooks.Addr, runtimes.Addr)
	o.Options.Servers = maps.Clone(o.Servers)
	if o.Options.Servers == nil {
		o.Options.Servers = map[string]any{}
	}
	o.Options.Servers["jobs"] = s.entry()
	o.Env = append(o.Env, "HOOK_KEY="+hookKey, "RUNTIME_TOKEN="+fakeruntime.DefaultToken)
	o.Workers, o.Notifiers = max(o.Workers, 1), max(o.Notifiers, 1)
	idle := o.Idle
	o.Idle = true
	s.Herd = New(t, topology, o.Options)
	if topology != Split {
		s.reserve(t, up) // it comes back there
	}
	if o.Setup != nil {
		o.Setup(s)
	}
	if !idle {
		s.LaunchAll(t)
		s.SettledOK(t, slices.Collect(maps.Keys(o.Options.Servers))...)
		s.AwaitTasks(t)
	}
	return s
}

// AwaitTasks waits until toolproxy has found a taskworker: programs start in any order, and before that a submit is refused.
func (s *Stage) AwaitTasks(t testing.TB) {
	t.Helper()
	Eventually(t, "tasks are available", func() bool {
		page, err := s.Tools(t).ListTools(t.Context(), &toolproxyv1.ListToolsRequest{PageSize: 1})
		if err != nil {
			t.Fatalf("list tools: %v", err)
		}
		return page.GetTasksAvailable()
	})
}

func closing(t testing.TB, server *fakeruntime.Server) {
	t.Helper()
	if err := server.Close(); err != nil {
		t.Error(err)
	}
}

// entry is that of the server jobs.
func (s *Stage) entry() map[string]any { return toolset(map[string]any{"url": s.Jobs.URL}) }

func (s *Stage) yaml(o StageOptions, hooks, runtime string) string {
	var b strings.Builder
	section := func(name string, lines []string) {
		fmt.Fprintf(&b, "%s:\n", name)
		seen := map[string]bool{}
		for _, line := range lines {
			key, _, _ := strings.Cut(line, ":")
			if !seen[key] {
				fmt.Fprintf(&b, "  %s\n", line)
			}
			seen[key] = true
		}
	}
	section("tasks", append(slices.Clone(o.Tasks), quick()...))
	section("notifier", append(slices.Clone(o.Notifier), "backoff: {base: 100ms, cap: 1s}"))
	fmt.Fprintf(&b, `  sinks:
    - {name: %s, type: webhook, url: "http://%s/hook", secrets: ["${HOOK_KEY}"]}
    - {name: %s, type: agent_runtime, address: "%s", token: "${RUNTIME_TOKEN}", insecure_plaintext: true}
    - {name: %s, type: stream}
    - {name: %s, type: stream, allowed_roles: [operator]}
`, hookSink, hooks, runtimeSink, runtime, feedSink, operatorsSink)
	return b.String() + o.YAML
}

// Gate returns a file that does not exist, for jobs to wait for, and a function that makes it.
func (s *Stage) Gate(t testing.TB, name string) (file string, open func()) {
	t.Helper()
	file = filepath.Join(s.Gates, name+".gate")
	return file, func() {
		t.Helper()
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Job is a submit of a job by an agent.
type Job struct {
	// Name is the job's and, as result.job of one that completes, in its result. It must be unlike those of the others.
	Name string
	// Spec are further arguments of start_job.
	Spec map[string]any
	// User owns it, Name when empty; Thread is `thread` when empty.
	User, Thread string
	// Server is `jobs` when empty.
	Server          string
	RequestID, Sink string
}

func (j Job) user() string   { return cmp.Or(j.User, j.Name) }
func (j Job) thread() string { return cmp.Or(j.Thread, "thread") }
func (j Job) tool() string   { return cmp.Or(j.Server, "jobs") + "_" + fakemcp.SubmitJob }

// result is that of the job if it completes and its Spec says nothing else.
func (j Job) result() string { return fmt.Sprintf(`{"job":%q}`, j.Name) }

func (j Job) arguments(t testing.TB) string {
	t.Helper()
	spec := map[string]any{"name": j.Name, "result": json.RawMessage(j.result())}
	maps.Copy(spec, j.Spec)
	b, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
