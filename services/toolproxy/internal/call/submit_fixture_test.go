package call_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/call"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
	"github.com/toolherd/toolherd/services/toolproxy/internal/intake"
	"github.com/toolherd/toolherd/services/toolproxy/internal/intake/intaketest"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/link"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

// jobs is an MCP server with a toolset. It answers start with what submit says, as a result or after a while, and stop
// with success.
type jobs struct {
	*wiretest.Server

	submit func(p *wiretest.Process, m jsonrpc.Message) // nil: a new id each time

	mu    sync.Mutex
	calls []string // name and arguments of each tools/call
}

func newJobs(submit func(p *wiretest.Process, m jsonrpc.Message)) *jobs {
	j := &jobs{submit: submit}
	j.Server = &wiretest.Server{Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
		if m.Method != "tools/call" {
			return false
		}
		name, _ := jsonrpc.String(jsonrpc.Member(m.Params, "name"))
		arguments := string(jsonrpc.Member(m.Params, "arguments"))
		j.mu.Lock()
		j.calls = append(j.calls, name+" "+arguments)
		n := len(j.calls)
		j.mu.Unlock()
		switch {
		case name == "stop":
			p.Reply(m.ID, `{"content":[],"structuredContent":{"task_id":`+string(jsonrpc.Member([]byte(arguments), "task_id"))+`,"status":"cancelled"}}`)
		case j.submit != nil:
			j.submit(p, m)
		default:
			p.Reply(m.ID, started(fmt.Sprintf("remote-%d", n)))
		}
		return true
	}}
	return j
}

// started is the result of a submit that made a task with this id.
func started(id string) string {
	return fmt.Sprintf(`{"content":[],"structuredContent":{"task_id":%q,"status":"running"}}`, id)
}

// answers makes a submit answer with this result.
func answers(result string) func(*wiretest.Process, jsonrpc.Message) {
	return func(p *wiretest.Process, m jsonrpc.Message) { p.Reply(m.ID, result) }
}

// after makes a submit answer a new task after d, unless its process ends before.
func after(d time.Duration) func(*wiretest.Process, jsonrpc.Message) {
	return func(p *wiretest.Process, m jsonrpc.Message) {
		go func() {
			select {
			case <-time.After(d):
				p.Reply(m.ID, started("remote-late"))
			case <-p.Done():
			}
		}()
	}
}

// called returns the tools that were called, with their arguments.
func (j *jobs) called() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.calls)
}

type submits struct {
	*call.Caller

	jobs   *jobs
	intake *intaketest.Server
	store  *catalog.Store
	pool   *pool.Pool
	stop   func() error // ends Run and the pool, as the service does, and returns what Run says
}

// withJobs runs test inside a bubble with a caller over one server, `s`, with the tools `s_echo` and `s_start`, of which the
// latter submits tasks.
func withJobs(t *testing.T, j *jobs, taskworker *intaketest.Server, test func(t *testing.T, f *submits)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		f := &submits{jobs: j, intake: taskworker, store: &catalog.Store{}}
		f.pool = pool.New(pool.Options{
			Open: func(ctx context.Context, _ pool.Request) (*session.Session, error) {
				return session.Open(ctx, session.Options{Dial: j.Dial, Era: session.Auto, ProbeTimeout: time.Second, Log: log, Link: link.Options{Server: "s"}})
			},
			MaxSessions: 8, MaxRemote: 8, IdleTimeout: 100 * time.Hour, CloseTimeout: time.Second, Log: log,
		})
		redact := func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") }
		f.Caller = call.New(call.Options{
			Store: f.store, Pool: f.pool, Suspect: func(string) {}, Redact: redact,
			Intake: intake.New(intake.Options{Intake: intaketest.Intake{Server: taskworker}, Log: log}),
			Tasks:  intaketest.Tasks{S: taskworker},
			Driver: driver.NewOrdinary(driver.Options{Redact: redact, BadHint: func(context.Context, string) {}}),
			Tracer: noop.NewTracerProvider().Tracer(""), Log: log,
		})
		pooling, stopPool := context.WithCancel(t.Context())
		running, stopRun := context.WithCancel(t.Context())
		pooled, ran := make(chan error, 1), make(chan error, 1)
		go func() { pooled <- f.pool.Run(pooling) }()
		go func() { ran <- f.Run(running) }()
		f.stop = sync.OnceValue(func() error {
			stopRun()
			err := <-ran
			stopPool()
			return errors.Join(err, <-pooled)
		})
		synctest.Wait()
		f.publish("1")
		test(t, f)
		if err := f.stop(); err != nil {
			t.Error(err)
		}
	})
}

// publish makes a configuration with this fingerprint the one in force.
func (f *submits) publish(fingerprint string) {
	f.pool.SetActive(map[string]string{"s": fingerprint})
	rules := catalog.Rules{Server: "s", Prefix: true, MaxLength: 64, Toolsets: []serverconfig.TaskToolset{
		{Name: "job", SubmitTool: "start", StatusTool: "status", CancelTool: "stop"},
	}}
	f.store.Publish(catalog.Build("snap_"+fingerprint, 1, []catalog.Source{{
		Name: "s", Prefix: true, Status: corev1.ServerStatus_SERVER_STATUS_OK, Listed: true,
		Class: "user", Public: []byte(`{"args":["` + fingerprint + `"],"command":"jobs"}`),
		Upstream: &upstream.Server{
			Name: "s", Fingerprint: fingerprint, Transport: serverconfig.Stdio,
			CallTimeout:    upstream.Limit{Duration: 300 * time.Second, Source: "default.tool_call_timeout"},
			CallMaxTimeout: upstream.Limit{Duration: time.Hour, Source: "default.tool_call_max_timeout"},
		},
		Tools: catalog.Contribute(rules, []catalog.Definition{{Name: "echo"}, {Name: "start"}, {Name: "status"}, {Name: "stop"}}),
	}}))
}

func start(change ...func(*toolproxyv1.CallToolRequest)) *toolproxyv1.CallToolRequest {
	r := &toolproxyv1.CallToolRequest{
		Name: "s_start", Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: `{"n":1}`},
		Scope: &corev1.Scope{UserId: "ann", ThreadId: "t1"},
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func requestID(id string) func(*toolproxyv1.CallToolRequest) {
	return func(r *toolproxyv1.CallToolRequest) { r.RequestId = id }
}

func arguments(raw string) func(*toolproxyv1.CallToolRequest) {
	return func(r *toolproxyv1.CallToolRequest) {
		r.Args = &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: raw}
	}
}

// call submits for an agent.
func (f *submits) submit(ctx context.Context, change ...func(*toolproxyv1.CallToolRequest)) (*toolproxyv1.CallToolResponse, error) {
	agent := authn.Principal{Name: "runtime", Roles: []authn.Role{authn.Agent}, ActAsAny: true, Authenticated: true}
	return f.Call(authn.NewContext(ctx, &agent), start(change...), call.Listener{})
}

// reservation returns the only one that was made.
func (f *submits) reservation(t *testing.T) intaketest.Reservation {
	t.Helper()
	all := f.intake.All()
	if len(all) != 1 {
		t.Fatalf("there are %d reservations", len(all))
	}
	return all[0]
}

// only makes a hook of f that is called for one step.
func only(step string, f func(ctx context.Context, n int) error) func(context.Context, string, int) error {
	return func(ctx context.Context, s string, n int) error {
		if s != step {
			return nil
		}
		return f(ctx, n)
	}
}

func metadataOf(err error) map[string]string {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return nil
	}
	return f.Metadata()
}
