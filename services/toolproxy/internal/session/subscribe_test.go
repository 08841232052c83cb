package session_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/session"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

// STAT-010: over HTTP the stream of a subscription breaks sooner or later; changes are heard all the same.
func TestBrokenSubscriptionIsAskedForAgain(t *testing.T) {
	for _, tc := range []struct {
		name    string
		lasts   time.Duration
		answer  func(p *wiretest.Process, m jsonrpc.Message) error
		listens int64 // within five minutes
		changes int64
	}{
		{"breaks after a minute", time.Minute, func(*wiretest.Process, jsonrpc.Message) error {
			return fault.New(fault.SessionClosed, "cut")
		}, 5, 4},
		{"breaks at once", 0, func(*wiretest.Process, jsonrpc.Message) error {
			return fault.New(fault.SessionClosed, "cut")
		}, 9, 0},
		{"is refused", 0, func(p *wiretest.Process, m jsonrpc.Message) error { p.Refuse(m.ID, -32601, "no"); return nil }, 1, 0},
		{"is answered at once", 0, func(p *wiretest.Process, m jsonrpc.Message) error { p.Reply(m.ID, "{}"); return nil }, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var listens, changes atomic.Int64
				server := &wiretest.Server{Modern: true}
				server.SendError = func(p *wiretest.Process, m jsonrpc.Message) error {
					if m.Method != "subscriptions/listen" {
						return nil
					}
					listens.Add(1)
					select {
					case <-time.After(tc.lasts):
						return tc.answer(p, m)
					case <-p.Done():
						return fault.New(fault.SessionClosed, "ended")
					}
				}
				server.Handle = func(_ *wiretest.Process, m jsonrpc.Message) bool { return m.Method == "subscriptions/listen" }
				o := options(server)
				o.Subscribe, o.OnListChanged = true, func() { changes.Add(1) }
				s, err := session.Open(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Minute)
				if l, c := listens.Load(), changes.Load(); l < tc.listens-1 || l > tc.listens+1 || c < tc.changes-1 || c > tc.changes {
					t.Errorf("%d subscriptions, %d changes; about %d and %d are expected", l, c, tc.listens, tc.changes)
				}
				closeSession(t, s)
			})
		})
	}
}
