package tasktest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// model is what a test believes of a store.
type model struct {
	b       Bench
	t       *testing.T
	n       *int // of the newest request, over all runs
	now     time.Duration
	reserve []*request
	tasks   map[string]*known
	order   []string // of tasks
	claims  []*grip  // every claim ever
}

// request is a submit that is not yet a task.
type request struct {
	n       int
	hold    task.Hold
	expires time.Duration
}

// known is what must hold of a task from here on.
type known struct {
	n       int
	hold    task.Hold // of its reservation
	version int64
	event   int64
	last    *task.Task // once it is final
	grip    *grip      // the newest claim
	cancel  bool
}

// grip is a claim and until when it holds.
type grip struct {
	task.Claim
	until  time.Duration
	over   bool // settled or released
	fenced bool
}

func (m *model) live(g *grip) bool { return !g.over && !g.fenced && g.until > m.now }

// Interleave does at random what callers, workers and time do to a store, and compares it to a model after every step.
//
// TASK-001 TASK-018 TASK-029
func Interleave(t *testing.T, b Bench) {
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		for _, table := range []string{"task_live", "task_attempt", "task_result", "task_request", "task_task", "task_reservation"} {
			b.Exec(t, "delete from "+table)
		}
		b.Events(t)
		m := &model{b: b, t: t, n: &n, tasks: map[string]*known{}}
		r.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"reserve": m.doReserve,
			"commit":  m.doCommit,
			"abandon": m.doAbandon,
			"reap":    m.doReap,
			"claim":   m.doClaim,
			"settle":  m.doSettle,
			"renew":   m.doRenew,
			"release": m.doRelease,
			"cancel":  m.doCancel,
			"pass":    m.doPass,
			"expire":  m.doExpire,
		})
		m.checkEvents(r)
	})
}

func pick[T any](r *rapid.T, from []T) T {
	if len(from) == 0 {
		r.Skip("nothing to choose from")
	}
	return from[rapid.IntRange(0, len(from)-1).Draw(r, "which")]
}

func must(r *rapid.T, err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (m *model) doReserve(r *rapid.T) {
	*m.n++
	got, err := m.b.Reserve(m.t.Context(), intent(*m.n))
	must(r, err)
	m.reserve = append(m.reserve, &request{n: *m.n, hold: task.Hold{TaskID: got.TaskID, Fence: got.Fence}, expires: m.now + task.ReservationTTL})
}

// gone makes a reservation a task, or nothing.
func (m *model) gone(q *request, became bool) {
	m.reserve = slices.DeleteFunc(m.reserve, func(o *request) bool { return o == q })
	if became {
		m.tasks[q.hold.TaskID] = &known{n: q.n, hold: q.hold}
		m.order = append(m.order, q.hold.TaskID)
	}
}

func (m *model) doCommit(r *rapid.T) {
	if len(m.order) > 0 && rapid.Bool().Draw(r, "again") {
		id := pick(r, m.order)
		k := m.tasks[id]
		got, err := m.b.Commit(m.t.Context(), commitment(k.hold, k.n))
		if late := k.last != nil && k.last.FailureReason == task.OutcomeUnknown; late != fault.Is(err, fault.ReservationExpired) || !late && (err != nil || got.ID != id) {
			r.Fatalf("a repeated commit says %+v, %v", got, err)
		}
		return
	}
	q := pick(r, m.reserve)
	got, err := m.b.Commit(m.t.Context(), commitment(q.hold, q.n))
	if q.expires <= m.now {
		if !fault.Is(err, fault.ReservationExpired) {
			r.Fatalf("a commit after %v says %+v, %v", m.now-q.expires, got, err)
		}
	} else {
		must(r, err)
	}
	m.gone(q, true)
}

func (m *model) doAbandon(r *rapid.T) {
	q := pick(r, m.reserve)
	executed := rapid.Bool().Draw(r, "executed")
	must(r, m.b.Abandon(m.t.Context(), q.hold, executed, "why"))
	m.gone(q, executed)
}

func (m *model) doReap(r *rapid.T) {
	ids, err := m.b.Reap(m.t.Context(), 100)
	must(r, err)
	for _, q := range slices.Clone(m.reserve) {
		if slices.Contains(ids, q.hold.TaskID) != (q.expires <= m.now) {
			r.Fatalf("reaped %v at %v, when %+v expires at %v", ids, m.now, q.hold, q.expires)
		}
		if q.expires <= m.now {
			m.gone(q, true)
		}
	}
}

func (m *model) doClaim(r *rapid.T) {
	claims, err := m.b.Claim(m.t.Context(), "w1", rapid.IntRange(1, 4).Draw(r, "limit"))
	must(r, err)
	for _, c := range claims {
		k := m.tasks[c.TaskID]
		if k == nil || k.last != nil {
			r.Fatalf("claimed %s, which is no task or final: %+v", c.TaskID, k)
		}
		if k.grip != nil && (c.Fence <= k.grip.Fence || !k.grip.over && k.grip.until > m.now) {
			r.Fatalf("claimed %+v at %v while %+v", c.Hold, m.now, *k.grip)
		}
		if c.Kind == task.Cancel && !k.cancel {
			r.Fatalf("a cancel of %s, which nobody asked for", c.TaskID)
		}
		k.grip = &grip{Claim: c, until: m.now + Policy().Lease}
		m.claims = append(m.claims, k.grip)
	}
}

var answers = []string{"working", "news", "ask", "failure", "ack", "completed", "failed", "cancelled", "permanent"}

func (m *model) doSettle(r *rapid.T) {
	var outcomes []task.Outcome
	var grips []*grip
	for range rapid.IntRange(1, 3).Draw(r, "batch") {
		g := pick(r, m.claims)
		if slices.Contains(grips, g) {
			continue
		}
		o := task.Outcome{Claim: g.Claim, Worker: "w1"}
		switch what := rapid.SampledFrom(answers).Draw(r, "answer"); what {
		case "working":
			o.Snapshot = &task.Snapshot{Status: task.Working}
		case "news":
			o.Snapshot = &task.Snapshot{Status: task.Working, StatusMessage: fmt.Sprint(len(m.claims))}
		case "ask":
			o.Snapshot = new(asks(`{"q":1}`))
		case "failure":
			o.Failure = &task.Failure{Reason: "timeout", Message: "slow"}
		case "permanent":
			o.Failure = &task.Failure{Reason: task.Untrusted, Message: "no", Permanent: task.Untrusted}
		case "ack":
		default:
			o.Snapshot = &task.Snapshot{Status: task.Status(what)}
		}
		grips, outcomes = append(grips, g), append(outcomes, o)
	}
	settled, err := m.b.Settle(m.t.Context(), outcomes)
	must(r, err)
	for i, s := range settled {
		g, k := grips[i], m.tasks[s.TaskID]
		if want := m.live(g) && k.grip == g && k.last == nil; s.Dropped == want {
			r.Fatalf("settled %+v at %v as %+v, which is not as the claim stands: %+v", outcomes[i], m.now, s, *g)
		}
		g.over = true
		if !s.Dropped && s.Status.Terminal() {
			m.final(r, k, s.TaskID)
		}
	}
}

func (m *model) doRenew(r *rapid.T) {
	g := pick(r, m.claims)
	lost, err := m.b.Renew(m.t.Context(), []task.Hold{g.Hold})
	must(r, err)
	k := m.tasks[g.TaskID]
	if want := m.live(g) && k.grip == g && k.last == nil; (len(lost) == 0) != want {
		r.Fatalf("renewed %+v at %v: lost %v", *g, m.now, lost)
	} else if want {
		g.until = m.now + Policy().Lease
	}
}

func (m *model) doRelease(r *rapid.T) {
	g := pick(r, m.claims)
	must(r, m.b.Release(m.t.Context(), []task.Hold{g.Hold}))
	g.over = true
}

func (m *model) doCancel(r *rapid.T) {
	id := pick(r, m.order)
	got, err := m.b.RequestCancel(m.t.Context(), id)
	must(r, err)
	k := m.tasks[id]
	if k.last == nil && got.CancelRequested.IsZero() {
		r.Fatalf("the request left %+v", got)
	}
	if k.grip != nil && k.grip.Kind == task.Poll && !k.cancel && m.live(k.grip) {
		k.grip.fenced = true
	}
	k.cancel = true
}

func (m *model) doPass(r *rapid.T) {
	// No sum of these is shortly before the end of a lease or a reservation, which the time that a test takes would reach.
	d := rapid.SampledFrom([]time.Duration{8 * time.Second, 40 * time.Second, 6 * time.Minute}).Draw(r, "time")
	m.b.Pass(m.t, d)
	m.now += d
}

func (m *model) doExpire(r *rapid.T) {
	if !rapid.Bool().Draw(r, "really") {
		return
	}
	if len(m.order) > 0 {
		m.b.Exec(m.t, "update task_task set expire_time = create_time where task_id = '"+pick(r, m.order)+"'")
	}
	ids, err := m.b.Expire(m.t.Context(), 100)
	must(r, err)
	for _, id := range ids {
		m.final(r, m.tasks[id], id)
	}
}

func (m *model) final(r *rapid.T, k *known, id string) {
	got, err := m.b.Get(m.t.Context(), id)
	must(r, err)
	if k.last != nil || !got.Status.Terminal() {
		r.Fatalf("%s ended twice or not at all: %+v, before %+v", id, got, k.last)
	}
}

// check looks at every task after every step.
func (m *model) check(r *rapid.T) {
	for _, id := range m.order {
		k := m.tasks[id]
		got, err := m.b.Get(m.t.Context(), id)
		must(r, err)
		if got.Version < k.version || got.EventVersion < k.event {
			r.Fatalf("%s went back from version %d, event %d to %d, %d", id, k.version, k.event, got.Version, got.EventVersion)
		}
		if k.last != nil && (got.Status != k.last.Status || got.Version != k.last.Version || got.EventVersion != k.last.EventVersion || got.Error != k.last.Error) {
			r.Fatalf("%s was final as %+v and became %+v", id, k.last, got)
		}
		k.version, k.event = got.Version, got.EventVersion
		if got.Status.Terminal() {
			k.last = got
		}
	}
}

// checkEvents looks whether each task has told what it had to tell, once.
func (m *model) checkEvents(r *rapid.T) {
	told := map[string]int64{}
	for _, e := range m.b.Events(m.t) {
		if e.Version != told[e.TaskID]+1 {
			r.Fatalf("event %d of %s follows %d", e.Version, e.TaskID, told[e.TaskID])
		}
		told[e.TaskID] = e.Version
	}
	for id, k := range m.tasks {
		if told[id] != k.event || k.last != nil && k.event == 0 {
			r.Fatalf("%s has told %d events, and believes %d; final: %v", id, told[id], k.event, k.last != nil)
		}
	}
}
