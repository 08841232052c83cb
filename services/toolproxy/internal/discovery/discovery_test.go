package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

// failing is a server whose tools/list fails while broken is true.
func failing(broken *atomic.Bool) *wiretest.Server {
	return &wiretest.Server{Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
		if m.Method == "tools/list" && broken.Load() {
			p.Refuse(m.ID, -32000, "no list for hunter2")
			return true
		}
		return false
	}}
}

// STAT-004: discovery starts at once; its session is the one of scope default and is not thrown away.
func TestDiscoverySessionIsThatOfScopeDefault(t *testing.T) {
	with(t, map[string]*wiretest.Server{"a": {}}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", "")})
		if got := f.status("a"); got != ok {
			t.Fatalf("status is %v: %s", got, f.server("a").Reason)
		}
		lease, err := f.pool.Get(t.Context(), pool.Request{Server: f.server("a").Upstream, Scope: scope})
		if err != nil {
			t.Fatal(err)
		}
		lease.Release()
		if n := len(f.servers["a"].Processes()); n != 1 {
			t.Errorf("%d processes were started", n)
		}
		// STAT-005: another scope's session starts on its first call.
		other, err := f.pool.Get(t.Context(), pool.Request{Server: f.server("a").Upstream, Scope: authn.Scope{UserID: "u", ThreadID: "t"}})
		if err != nil {
			t.Fatal(err)
		}
		other.Release()
		if n := len(f.servers["a"].Processes()); n != 2 {
			t.Errorf("%d processes were started", n)
		}
	})
}

// STAT-004: at most so many servers are started at once.
// STAT-005: one that hangs removes no other's tools.
// STAT-002: STARTING until the first verdict.
func TestStartsAreBounded(t *testing.T) {
	servers, entries := map[string]*wiretest.Server{}, map[string]string{}
	for i := range 20 {
		name := fmt.Sprintf("s%02d", i)
		servers[name] = &wiretest.Server{Handle: func(_ *wiretest.Process, m jsonrpc.Message) bool { return m.Method == "initialize" }}
		entries[name] = entry(name, `,"session_init_timeout":10`)
	}
	servers["good"], entries["good"] = &wiretest.Server{}, entry("good", "")
	with(t, servers, func(t *testing.T, f *fixture) {
		f.publish(t, entries)
		if n := f.opened.Load(); n > 9 { // 8 at once, and good may have come and gone
			t.Errorf("%d servers are being started", n)
		}
		waiting := 0
		for _, s := range f.store.Load().Servers() {
			if s.Status == starting {
				waiting++
			}
		}
		if waiting < 20 {
			t.Errorf("%d servers are STARTING", waiting)
		}
		time.Sleep(31 * time.Second)
		if got := f.tools(); !slices.Contains(got, "good_echo") {
			t.Errorf("tools are %q", got)
		}
		if s := f.server("s00"); s.Status != failed || !strings.Contains(s.Reason, "session_init_timeout") {
			t.Errorf("s00 is %v: %s", s.Status, s.Reason)
		}
	})
}

// SESS-027: session_init_timeout covers the list too; a server that hangs in it loses its session.
func TestHangingListIsBounded(t *testing.T) {
	server := &wiretest.Server{Handle: func(_ *wiretest.Process, m jsonrpc.Message) bool { return m.Method == "tools/list" }}
	with(t, map[string]*wiretest.Server{"a": server}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", `,"session_init_timeout":7`)})
		time.Sleep(7*time.Second + time.Millisecond)
		synctest.Wait()
		if s := f.server("a"); s.Status != failed || !strings.Contains(s.Reason, "7 s") || !strings.Contains(s.Reason, `"a"`) {
			t.Errorf("%v: %s", s.Status, s.Reason)
		}
		if server.Alive() != 0 {
			t.Error("the process lives on")
		}
	})
}

// STAT-008: retries back off from 1 s up to 5 min, and RefreshServers does not wait for them.
// STAT-002: ERROR stays while retries run.
// STAT-001: the record says why, since when and when next.
func TestRetriesBackOff(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	server := failing(&broken)
	with(t, map[string]*wiretest.Server{"a": server}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", "")})
		first := f.server("a")
		if first.Status != failed || !strings.Contains(first.Reason, "no list for ***") || first.Since.IsZero() {
			t.Fatalf("%+v", first.Source)
		}
		var waits []time.Duration
		for range 12 {
			next := f.server("a").NextRetry
			waits = append(waits, time.Until(next))
			time.Sleep(time.Until(next) - time.Nanosecond)
			synctest.Wait()
			if !f.server("a").NextRetry.Equal(next) || f.status("a") != failed {
				t.Error("it was tried before its time, or its status changed")
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
		}
		if waits[0] > time.Second || waits[0] < 800*time.Millisecond || waits[1] <= waits[0] || waits[11] > 5*time.Minute || waits[11] < 4*time.Minute {
			t.Errorf("it waited %v", waits)
		}
		if !f.server("a").Since.Equal(first.Since) {
			t.Error("since_time moved while the status stayed")
		}
		broken.Store(false)
		before := time.Now()
		if err := f.Refresh(t.Context(), []string{"a"}, true); err != nil || f.status("a") != ok || !time.Now().Equal(before) {
			t.Errorf("refresh after %v: %v, %v", time.Since(before), err, f.status("a"))
		}
		if s := f.server("a"); s.Reason != "" || !s.NextRetry.IsZero() || s.Since.Equal(first.Since) {
			t.Errorf("OK has %+v", s.Source)
		}
	})
}

// STAT-009: the last good list is served marked stale until three checks in a row have failed.
func TestLastGoodListIsServedStale(t *testing.T) {
	var broken atomic.Bool
	with(t, map[string]*wiretest.Server{"a": failing(&broken)}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", "")})
		broken.Store(true)
		for i := range 4 {
			if err := f.Refresh(t.Context(), nil, true); err != nil {
				t.Fatal(err)
			}
			s := f.server("a")
			listed := len(f.tools()) == 1
			if s.Status != failed || listed != (i < 2) || s.View.GetStale() != listed {
				t.Errorf("after %d failed checks: %v, listed %v, stale %v", i+1, s.Status, listed, s.View.GetStale())
			}
			if s.Callable() != listed {
				t.Errorf("after %d failed checks: callable %v", i+1, s.Callable())
			}
		}
		if owner := f.store.Load().Owner("a_echo"); owner == nil || owner.Name != "a" {
			t.Error("nobody knows any more whose tool it was")
		}
		broken.Store(false)
		if err := f.Refresh(t.Context(), nil, false); err != nil || f.status("a") != ok || len(f.tools()) != 1 || f.server("a").View.GetStale() {
			t.Errorf("after a good check: %v, %+v", err, f.server("a").View)
		}
	})
}

// STAT-010: list_changed refreshes the list though it was not declared; a burst once.
func TestListChangedIsDebounced(t *testing.T) {
	server := &wiretest.Server{}
	var lists atomic.Int64
	server.Handle = func(p *wiretest.Process, m jsonrpc.Message) bool {
		if m.Method != "tools/list" {
			return false
		}
		p.Reply(m.ID, fmt.Sprintf(`{"tools":[{"name":"t%d"}]}`, lists.Add(1)))
		return true
	}
	with(t, map[string]*wiretest.Server{"a": server}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", "")})
		for range 20 {
			server.Processes()[0].Notify("notifications/tools/list_changed", "{}")
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Second)
		if diff := cmp.Diff([]string{"a_t2"}, f.tools()); diff != "" || lists.Load() != 2 {
			t.Errorf("%d lists were read: %s", lists.Load(), diff)
		}
	})
}

// STAT-016: a null or malformed element is left out with a reason; ttlMs is honoured.
func TestMalformedElementsAndTTL(t *testing.T) {
	var lists atomic.Int64
	server := &wiretest.Server{Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
		if m.Method != "tools/list" {
			return false
		}
		lists.Add(1)
		p.Reply(m.ID, `{"tools":[null,{"name":"good"},{"name":7},{"description":"nameless"}],"ttlMs":60000}`)
		return true
	}}
	with(t, map[string]*wiretest.Server{"a": server}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", "")})
		if s := f.server("a"); s.Status != ok || len(s.View.GetWarnings()) != 3 || fmt.Sprint(f.tools()) != "[a_good]" {
			t.Errorf("%v %q, tools %q", s.Status, s.View.GetWarnings(), f.tools())
		}
		time.Sleep(150 * time.Second)
		if n := lists.Load(); n != 3 {
			t.Errorf("%d lists were read in 150 s", n)
		}
	})
}

func TestServerThatEndsItsSessionIsCheckedWithAPause(t *testing.T) {
	server := &wiretest.Server{}
	with(t, map[string]*wiretest.Server{"a": server}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", "")})
		for i := range 4 { // it starts well and ends at once, again and again
			server.Processes()[i].Exit(errors.New("exit status 1"))
			synctest.Wait()
			if n := len(server.Processes()); n != i+1 {
				t.Fatalf("%d processes were started without a pause", n)
			}
			time.Sleep(1 << i * time.Second)
			synctest.Wait()
			if n := len(server.Processes()); n != i+2 {
				t.Fatalf("%d processes after the pause", n)
			}
		}
		time.Sleep(10 * time.Minute)
		server.Processes()[4].Exit(errors.New("exit status 1"))
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(server.Processes()); n != 6 {
			t.Errorf("a server that lived long waits longer than a second: %d processes", n)
		}
	})
}

func TestIdleEndOfTheSessionIsNoCauseOfACheck(t *testing.T) {
	server := &wiretest.Server{}
	with(t, map[string]*wiretest.Server{"a": server}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", "")})
		time.Sleep(6 * time.Hour)
		if n := len(server.Processes()); n != 1 || server.Alive() != 0 || f.status("a") != ok {
			t.Errorf("%d processes, %d alive, %v", n, server.Alive(), f.status("a"))
		}
	})
}

// A changed entry keeps its session where the fingerprint stays, and only there.
func TestOnlyChangedFingerprintsLoseTheirSession(t *testing.T) {
	servers := map[string]*wiretest.Server{"a": {}, "b": {}, "c": {}}
	with(t, servers, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", ""), "b": entry("b", ""), "c": entry("c", "")})
		f.publish(t, map[string]string{"a": entry("a", `,"disabledTools":["echo"],"description":"d"`), "b": entry("b", `,"args":["-v"]`)})
		for name, want := range map[string][2]int{"a": {1, 1}, "b": {2, 1}, "c": {1, 0}} {
			if got := [2]int{len(servers[name].Processes()), servers[name].Alive()}; got != want {
				t.Errorf("server %s: started and alive %v, want %v", name, got, want)
			}
		}
		if diff := cmp.Diff([]string{"b_echo"}, f.tools()); diff != "" {
			t.Error(diff)
		}
		if c := f.store.Load(); c.SnapshotID != "snap_2" || c.Revision != 2 || c.Server("c") != nil {
			t.Errorf("catalog of %s, %d", c.SnapshotID, c.Revision)
		}
		for range 3 { // A → B → A
			f.publish(t, map[string]string{"a": entry("a", "")})
		}
		if n := len(servers["a"].Processes()); n != 1 {
			t.Errorf("%d processes of an unchanged server", n)
		}
	})
}

func TestLostRegistryLeavesEverythingAsItIs(t *testing.T) {
	with(t, map[string]*wiretest.Server{"a": {}}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", "")})
		f.feed.snapshots <- nil
		time.Sleep(time.Minute)
		if f.status("a") != ok || len(f.tools()) != 1 {
			t.Errorf("%v, %q", f.status("a"), f.tools())
		}
		f.publish(t, map[string]string{"a": entry("a", ""), "b": `{"command":"b","enabled":true,"auth":"oauth"}`})
		if len(f.store.Load().Servers()) != 2 || len(f.servers["a"].Processes()) != 1 {
			t.Error("the watch was not taken up again as it was")
		}
	})
}

func TestRefresh(t *testing.T) {
	var hangs atomic.Bool
	servers := map[string]*wiretest.Server{"a": {}, "b": {Handle: func(*wiretest.Process, jsonrpc.Message) bool { return hangs.Load() }}}
	with(t, servers, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", ""), "b": entry("b", "")})
		lists := func() (n int) {
			for _, method := range servers["a"].Processes()[0].Seen() {
				if method == "tools/list" {
					n++
				}
			}
			return n
		}
		if err := f.Refresh(t.Context(), nil, false); err != nil || lists() != 1 {
			t.Errorf("without force: %v, %d lists", err, lists())
		}
		if err := f.Refresh(t.Context(), []string{"a"}, true); err != nil || lists() != 2 {
			t.Errorf("with force: %v, %d lists", err, lists())
		}
		if err := f.Refresh(t.Context(), []string{"a", "nobody"}, true); !fault.Is(err, fault.ServerNotFound) || lists() != 2 {
			t.Errorf("an unknown name: %v, %d lists", err, lists())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		hangs.Store(true)
		if err := f.Refresh(ctx, []string{"b"}, true); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a server that hangs: %v", err)
		}
	})
}

func TestSuspicionIsLookedInto(t *testing.T) {
	var broken atomic.Bool
	with(t, map[string]*wiretest.Server{"a": failing(&broken)}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", "")})
		broken.Store(true)
		f.Suspect("a")
		f.Suspect("nobody")
		time.Sleep(time.Second)
		if f.status("a") != failed {
			t.Errorf("status is %v", f.status("a"))
		}
	})
}

func TestUnauthenticated(t *testing.T) {
	server := &wiretest.Server{DialError: fault.New(fault.UpstreamUnauthenticated, "server answered with HTTP 401")}
	with(t, map[string]*wiretest.Server{"a": server}, func(t *testing.T, f *fixture) {
		f.publish(t, map[string]string{"a": entry("a", "")})
		s := f.server("a")
		if s.Status != corev1.ServerStatus_SERVER_STATUS_UNAUTHENTICATED || s.FixCommand != "toolherd login a" {
			t.Errorf("%v, fix %q", s.Status, s.FixCommand)
		}
	})
}
