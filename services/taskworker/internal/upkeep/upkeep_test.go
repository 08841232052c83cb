package upkeep_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/outbox"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/taskworker/internal/hint"
	"github.com/toolherd/toolherd/services/taskworker/internal/metric"
	"github.com/toolherd/toolherd/services/taskworker/internal/task"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/litestore"
	"github.com/toolherd/toolherd/services/taskworker/internal/task/pgstore"
	"github.com/toolherd/toolherd/services/taskworker/internal/upkeep"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type store interface {
	task.Store
	task.Reservations
}

func storeOf(d *db.DB, p task.Policy) store {
	if d.Engine() == db.Postgres {
		return pgstore.New(d.Pool(), p)
	}
	return litestore.New(d, p)
}

// outdate moves all reservations to their end.
func outdate(t *testing.T, d *db.DB) {
	t.Helper()
	var err error
	if d.Engine() == db.Postgres {
		_, err = d.Pool().Exec(t.Context(), "update task_reservation set expire_time = now() - interval '1 second'")
	} else {
		_, err = d.SQL().ExecContext(t.Context(), "update task_reservation set expire_time = 1")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TASK-009
func TestSeveralReplicasEndWhatRanOutOnceAndDeleteWhatIsOld(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		policy := task.Policy{
			PollInterval: time.Hour, Lease: time.Minute, MaxPollBackoff: time.Hour, InputRequiredPollInterval: time.Hour,
			MaxAge: time.Hour, Retention: 3 * time.Second, TrackingDegradedAfterErrors: 3, MaxResultBytes: 1000, ResultPreviewMaxChars: 100,
		}
		st := storeOf(d, policy)
		intent := task.Intent{
			Principal: "p", Scope: authn.Scope{UserID: "u", ThreadID: "t"}, Binding: []byte("b"), Fingerprint: "f", TaskName: "n", Server: "s",
		}
		const each = 120 // more than one statement takes
		var lost, tooOld []string
		for i := range each {
			r, err := st.Reserve(t.Context(), intent)
			if err != nil {
				t.Fatal(err)
			}
			lost = append(lost, r.TaskID)
			mortal := intent
			mortal.TTL = time.Millisecond
			got, err := st.Commit(t.Context(), task.Commitment{Unasked: &mortal, Handle: []byte("h"), RemoteID: fmt.Sprint(i), Status: task.Working})
			if err != nil {
				t.Fatal(err)
			}
			tooOld = append(tooOld, got.ID)
		}
		outdate(t, d)

		log := slog.New(slog.DiscardHandler)
		metrics, err := metric.New(prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		bus := wake.NewLocal()
		events, cancelEvents := bus.Subscribe(outbox.Topic)
		defer cancelEvents()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var replicas sync.WaitGroup
		hints := hint.New(bus, log)
		replicas.Go(func() {
			if err := hints.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		for range 3 {
			replicas.Go(func() {
				if err := upkeep.New(upkeep.Options{
					Store: st, Reservations: st, Hints: hints, Metrics: metrics, Log: log, Retention: policy.Retention,
				}).Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		await := func(what string, ok func() bool) {
			t.Helper()
			deadline, tick := time.Now().Add(30*time.Second), time.NewTicker(10*time.Millisecond)
			defer tick.Stop()
			for !ok() {
				if time.Now().After(deadline) {
					t.Fatalf("still not so: %s", what)
				}
				<-tick.C
			}
		}
		swept := func(kind string) int { return int(testutil.ToFloat64(metrics.Swept.WithLabelValues(kind))) }
		await("all that ran out has ended", func() bool { return swept("reap") >= len(lost) && swept("expire") >= len(tooOld) })
		<-events
		for reason, ids := range map[string][]string{task.OutcomeUnknown: lost, task.Expired: tooOld} {
			got, err := st.Get(t.Context(), ids[len(ids)-1])
			if err != nil || got.Status != task.Failed || got.FailureReason != reason || got.EventVersion != 1 {
				t.Errorf("got %+v, %v, want a failed task, %s, with its event", got, err, reason)
			}
		}
		await("what is old has gone", func() bool { return swept("prune") >= len(lost)+len(tooOld) })
		cancel()
		replicas.Wait()
		if swept("reap") != len(lost) || swept("expire") != len(tooOld) || swept("prune") != len(lost)+len(tooOld) {
			t.Errorf("swept %d, %d and %d: something was ended or deleted twice", swept("reap"), swept("expire"), swept("prune"))
		}
		if _, err := st.Get(t.Context(), lost[0]); !fault.Is(err, fault.TaskNotFound) {
			t.Errorf("an old task: %v", err)
		}
	})
}
