package background_test

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
)

// started returns what the last session was opened with.
func (f *fixture) started() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.opened) == 0 {
		return nil
	}
	s := f.opened[len(f.opened)-1].Server
	out := map[string]string{"command": s.Command, "args": strings.Join(s.Args, " "), "url": s.URL, "key": s.Header.Get("X-Key")}
	for name, value := range s.Env {
		out["env."+name] = value
	}
	maps.DeleteFunc(out, func(_, v string) bool { return v == "" })
	return out
}

// forget ends every session, so that the next call opens one.
func (f *fixture) forget() {
	for _, p := range f.server.Processes() {
		p.Exit(fmt.Errorf("killed"))
	}
	synctest.Wait()
}

// TASK-045: a task is called where it was submitted, with the credentials of today where they are for that place, else with
// those it was bound under, whatever became of the entry.
func TestBoundServersAndTheirCredentials(t *testing.T) {
	const (
		local  = `{"command":"run","args":["a"],"env":{"K":"literal-one"}}`
		remote = `{"url":"https://h.example/v1","headers":{"X-Key":"literal-one"}}`
	)
	for name, tc := range map[string]struct {
		bound, today, want string
		disabled           bool
	}{
		"unchanged":           {bound: local, today: local, want: "args=a command=run env.K=literal-one"},
		"a new literal":       {bound: local, today: `{"command":"run","args":["a"],"env":{"K":"literal-two"}}`, want: "args=a command=run env.K=literal-two"},
		"another command":     {bound: local, today: `{"command":"walk","env":{"K":"literal-two"}}`, want: "args=a command=run env.K=literal-one"},
		"removed":             {bound: local, want: "args=a command=run env.K=literal-one"},
		"switched off":        {bound: local, today: `{"command":"run","args":["a"],"env":{"K":"literal-two"}}`, disabled: true, want: "args=a command=run env.K=literal-two"},
		"a new header":        {bound: remote, today: `{"url":"https://h.example/v2","headers":{"X-Key":"literal-two"}}`, want: "key=literal-two url=https://h.example/v1"},
		"another host":        {bound: remote, today: `{"url":"https://other.example/v1","headers":{"X-Key":"literal-two"}}`, want: "key=literal-one url=https://h.example/v1"},
		"remote, then local":  {bound: remote, today: local, want: "key=literal-one url=https://h.example/v1"},
		"a remote is removed": {bound: remote, want: "key=literal-one url=https://h.example/v1"},
	} {
		with(t, 8, func(t *testing.T, f *fixture) {
			f.publish(map[string]string{"s": tc.bound})
			bound := f.bind(tc.bound, serverconfig.ScopeThread)
			entries := map[string]string{}
			if tc.today != "" {
				entries["s"] = tc.today
			}
			f.publish(entries, func(e *registryv1.ServerEntry) {
				if tc.disabled {
					e.State = registryv1.EntryState_ENTRY_STATE_DISABLED
				}
			})
			f.mustPoll(bound, "task-1", 0)
			var got []string
			for _, key := range []string{"args", "command", "env.K", "key", "url"} {
				if v := f.started()[key]; v != "" {
					got = append(got, key+"="+v)
				}
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("%s: connected with %q, want %s", name, got, tc.want)
			}
			for _, literal := range []string{"literal-one", "literal-two"} {
				if used := strings.Contains(tc.want, literal); used != (f.redactor.Redact(literal) == "***") {
					t.Errorf("%s: the redactor makes %s of %s", name, f.redactor.Redact(literal), literal)
				}
			}
		})
	}
}

func TestSessionsWithTheCredentialsOfTodayAreSharedWithCalls(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		const first, second = `{"url":"https://h.example/mcp","headers":{"X-Key":"literal-one"}}`, `{"url":"https://h.example/mcp","headers":{"X-Key":"literal-two"}}`
		f.publish(map[string]string{"s": first})
		bound := f.bind(first, serverconfig.ScopeThread)
		old, err := f.call(bound, "t1")
		if err != nil {
			t.Fatal(err)
		}
		f.mustPoll(bound, "task-1", time.Hour)
		if len(f.opened) != 1 {
			t.Errorf("%d sessions were opened under one configuration", len(f.opened))
		}
		f.publish(map[string]string{"s": second})
		fresh, err := f.call(f.bind(second, serverconfig.ScopeThread), "t1")
		if err != nil {
			t.Fatal(err)
		}
		f.mustPoll(bound, "task-1", time.Hour)
		synctest.Wait()
		if list := f.pool.List(); len(list) != 1 || list[0].Session.ID() != fresh || fresh == old {
			t.Errorf("the task does not share the session of today: %+v", list)
		}
	})
}

// A poll costs no question to the registry until a credential changes.
func TestResolutionIsKept(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		const entry = `{"command":"run","env":{"K":"literal-one"}}`
		f.publish(map[string]string{"s": entry})
		bound := f.bind(entry, serverconfig.ScopeThread)
		var group sync.WaitGroup
		for i := range 10 {
			group.Go(func() { f.mustPoll(bound, fmt.Sprint("task-", i), 0) })
		}
		group.Wait()
		f.publish(map[string]string{"s": entry, "other": plain})
		f.publish(map[string]string{"s": `{"command":"run","env":{"K":"literal-one"},"description":"d","tool_call_timeout":7}`})
		f.mustPoll(bound, "task-1", 0)
		if f.keeper.asked != 1 {
			t.Errorf("the registry was asked %d times", f.keeper.asked)
		}
		f.publish(map[string]string{"s": `{"command":"run","env":{"K":"literal-two"}}`})
		f.mustPoll(bound, "task-1", 0)
		f.mustPoll(bound, "task-2", 0)
		if f.keeper.asked != 2 {
			t.Errorf("after a literal changed the registry was asked %d times", f.keeper.asked)
		}
		// The process that may have the task goes on with what it was started with; its successor has today's.
		if got := f.started()["env.K"]; got != "literal-one" {
			t.Errorf("the live process has %s", got)
		}
		f.forget()
		f.mustPoll(bound, "task-1", 0)
		if got := f.started()["env.K"]; got != "literal-two" {
			t.Errorf("the process started now has %s", got)
		}
	})
}

func TestWhatCannotBeResolvedIsTriedAgain(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		const entry = `{"command":"run","env":{"T":"${JOB_TOKEN}","K":"literal-one"}}`
		f.publish(map[string]string{"s": entry})
		bound := f.bind(entry, serverconfig.ScopeThread)
		_, err := f.poll(bound, "task-1", 0)
		if !fault.Is(err, fault.ServerError) || !strings.Contains(fmt.Sprint(err), "JOB_TOKEN") {
			t.Errorf("without the variable: %v", err)
		}
		f.vars["JOB_TOKEN"] = "value-of-the-token"
		f.keeper.err = fault.New(fault.NotReady, "the registry starts")
		if _, err := f.poll(bound, "task-1", 0); !fault.Is(err, fault.ServerError) {
			t.Errorf("without the registry: %v", err)
		}
		f.keeper.err = nil
		f.mustPoll(bound, "task-1", 0)
		if got := f.started(); got["env.T"] != "value-of-the-token" || got["env.K"] != "literal-one" {
			t.Errorf("started with %v", got)
		}
	})
}

// TASK-045 has an end: trust that was revoked beats a binding, and ends the sessions that tasks hold.
func TestRevokedTrustBeatsABinding(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		untrusted := func(e *registryv1.ServerEntry) {
			e.State, e.Reason = registryv1.EntryState_ENTRY_STATE_UNTRUSTED, "revoked today"
		}
		const entry = `{"command":"run","env":{"K":"literal-one"}}`
		f.publish(map[string]string{"s": entry})
		bound := f.bind(entry, serverconfig.ScopeThread)
		f.mustPoll(bound, "task-1", time.Hour)
		f.publish(map[string]string{"s": entry}, untrusted)
		if f.server.Alive() != 0 {
			t.Error("the process of a server that is not trusted goes on")
		}
		if _, err := f.poll(bound, "task-1", 0); !fault.Is(err, fault.ServerUntrusted) || !strings.Contains(fmt.Sprint(err), "revoked today") {
			t.Errorf("a poll: %v", err)
		}
		f.publish(nil)
		f.keeper.err = fault.New(fault.ServerUntrusted, `server "s" is not trusted`)
		other := f.bind(`{"command":"run","env":{"K":"literal-three"}}`, serverconfig.ScopeThread)
		if _, err := f.poll(other, "task-2", 0); !fault.Is(err, fault.ServerUntrusted) {
			t.Errorf("where the registry knows first: %v", err)
		}
		if n := len(f.opened); n != 1 {
			t.Errorf("%d sessions were opened", n)
		}
	})
}

// What is not allowed to calls of today is not allowed to tasks either.
func TestLayersThatAreNotBuiltAreNotLeftOut(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		const entry = `{"url":"https://h.example/mcp","headers":{"X-Key":"literal-one"}}`
		f.publish(map[string]string{"s": entry})
		bound := f.bind(entry, serverconfig.ScopeThread)
		f.publish(map[string]string{"s": `{"url":"https://h.example/mcp","auth":"oauth"}`})
		if _, err := f.poll(bound, "task-1", 0); !fault.Is(err, fault.ServerError) {
			t.Errorf("with a layer: %v", err)
		}
		f.resolver.Follow(&registryv1.Snapshot{InterceptorsJson: `["grpc://127.0.0.1:1"]`})
		if _, err := f.poll(bound, "task-1", 0); !fault.Is(err, fault.ServerError) {
			t.Errorf("with an interceptor: %v", err)
		}
		if len(f.opened) != 0 {
			t.Error("it was called without")
		}
		f.publish(nil)
		f.mustPoll(bound, "task-1", 0)
	})
}

func TestSecretsAreForgottenInTheEnd(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		const entry = `{"command":"run","env":{"K":"literal-one"}}`
		f.publish(map[string]string{"s": entry})
		bound := f.bind(entry, serverconfig.ScopeThread)
		f.mustPoll(bound, "task-1", 0)
		f.publish(map[string]string{"s": `{"command":"run","env":{"K":"literal-two"}}`})
		f.mustPoll(bound, "task-1", 0)
		f.always(ended("completed"))
		f.mustPoll(bound, "task-1", 0)
		time.Sleep(25 * time.Hour)
		f.publish(nil)
		if got := f.redactor.Redact("literal-one literal-two"); got != "*** ***" {
			t.Errorf("a session may have been held until now: %s", got)
		}
		time.Sleep(2 * time.Hour)
		f.publish(nil)
		if got := f.redactor.Redact("literal-one literal-two"); got != "literal-one literal-two" {
			t.Errorf("long after the last use: %s", got)
		}
		f.always(running(""))
		f.mustPoll(bound, "task-2", 0)
		f.resolver.Close()
		if got := f.redactor.Redact("literal-one"); got != "literal-one" {
			t.Errorf("after Close: %s", got)
		}
	})
}

// Addresses are for operators: a worker keeps what it is told with the task.
func TestErrorsDoNotNameTheServersAddress(t *testing.T) {
	with(t, 8, func(t *testing.T, f *fixture) {
		const entry = `{"url":"https://h.example:8443/mcp?tenant=7"}`
		f.publish(map[string]string{"s": entry})
		f.always("!no route to https://h.example:8443/mcp?tenant=7 by h.example:8443")
		_, err := f.poll(f.bind(entry, serverconfig.ScopeThread), "task-1", 0)
		if !fault.Is(err, fault.UpstreamError) || strings.Contains(fmt.Sprint(err), "h.example") {
			t.Errorf("an error: %v", err)
		}
		f.server.DialError = fmt.Errorf("no route to h.example:8443")
		for _, p := range f.server.Processes() {
			p.Exit(fmt.Errorf("gone"))
		}
		synctest.Wait()
		if _, err = f.poll(f.bind(entry, serverconfig.ScopeThread), "task-1", 0); !fault.Is(err, fault.ServerError) || strings.Contains(fmt.Sprint(err), "h.example") {
			t.Errorf("an error of the start: %v", err)
		}
	})
}
