package taskworker_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	"github.com/toolherd/toolherd/services/taskworker"
)

func commitOf(r *taskv1.ReserveTaskResponse, remote string) *taskv1.CommitTaskRequest {
	return &taskv1.CommitTaskRequest{
		TaskId: r.GetTaskId(), Fence: r.GetFence(), Handle: []byte(remote), RemoteTaskId: remote, Status: submitted,
		PollAfter: durationpb.New(time.Hour),
	}
}

// TASK-007
func TestARequestIsReservedOnceAndRepeatedWithItsAnswer(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		n := start(t, d, options{cfg: quick()})
		req := intent(alice)
		req.RequestId, req.RequestHash = "r1", "h1"
		first, err := n.intake.ReserveTask(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if first.GetCommitted() != nil || first.GetFence() < 1 || time.Until(first.GetExpireTime().AsTime()) < 10*time.Second {
			t.Errorf("reserved %v", first)
		}
		_, err = n.intake.ReserveTask(t.Context(), req)
		if f := wantReason(t, err, fault.RequestInProgress); f.RetryDelay() <= 0 {
			t.Error("nothing says when to ask again")
		}
		other := proto.CloneOf(req)
		other.RequestHash = "h2"
		_, err = n.intake.ReserveTask(t.Context(), other)
		wantReason(t, err, fault.RequestIDConflict)

		if _, err := n.intake.CommitTask(t.Context(), commitOf(first, "remote-1")); err != nil {
			t.Fatal(err)
		}
		again, err := n.intake.ReserveTask(t.Context(), req)
		if err != nil || again.GetTaskId() != first.GetTaskId() || again.GetCommitted().GetTaskName() != "report" {
			t.Errorf("once committed: %v, %v", again, err)
		}
		_, err = n.intake.ReserveTask(t.Context(), other)
		wantReason(t, err, fault.RequestIDConflict)

		// The id is unique for a principal and a user, not for all.
		for _, change := range []func(*taskv1.ReserveTaskRequest){
			func(r *taskv1.ReserveTaskRequest) { r.Principal = "another" },
			func(r *taskv1.ReserveTaskRequest) { r.Scope = scopeOf(bob) },
			func(r *taskv1.ReserveTaskRequest) { r.RequestId = "" },
		} {
			q := proto.CloneOf(other)
			change(q)
			if r, err := n.intake.ReserveTask(t.Context(), q); err != nil || r.GetTaskId() == first.GetTaskId() {
				t.Errorf("got %v, %v, want a task of its own", r, err)
			}
		}
	})
}

// TASK-011
func TestACommitNeedsItsFenceAndMayBeRepeated(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		n := start(t, d, options{cfg: quick()})
		r, err := n.intake.ReserveTask(t.Context(), intent(alice))
		if err != nil {
			t.Fatal(err)
		}
		list := func() int {
			l, err := n.ListTasks(t.Context(), &taskv1.ListTasksRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return len(l.GetTasks())
		}
		if list() != 0 {
			t.Error("a reservation is listed")
		}
		wrong := commitOf(r, "remote-1")
		wrong.Fence++
		_, err = n.intake.CommitTask(t.Context(), wrong)
		wantReason(t, err, fault.ReservationExpired)
		for range 3 {
			c, err := n.intake.CommitTask(t.Context(), commitOf(r, "remote-1"))
			if err != nil || c.GetTask().GetTaskId() != r.GetTaskId() || c.GetTask().GetStatus() != submitted {
				t.Fatalf("got %v, %v", c, err)
			}
		}
		if list() != 1 {
			t.Errorf("%d tasks, want 1", list())
		}
		_, err = n.intake.CommitTask(t.Context(), commitOf(r, "remote-2"))
		wantReason(t, err, fault.ReservationExpired)
	})
}

func TestAReservationIsKeptAliveAndGivenUp(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		n := start(t, d, options{cfg: quick()})
		reserve := func() *taskv1.ReserveTaskResponse {
			r, err := n.intake.ReserveTask(t.Context(), intent(alice))
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		r := reserve()
		kept, err := n.intake.RenewReservation(t.Context(), &taskv1.RenewReservationRequest{TaskId: r.GetTaskId(), Fence: r.GetFence()})
		if err != nil || kept.GetExpireTime().AsTime().Before(r.GetExpireTime().AsTime()) {
			t.Errorf("renewed until %v, %v", kept, err)
		}
		abandon := func(r *taskv1.ReserveTaskResponse, o taskv1.AbandonOutcome) error {
			_, err := n.intake.AbandonTask(t.Context(), &taskv1.AbandonTaskRequest{
				TaskId: r.GetTaskId(), Fence: r.GetFence(), Outcome: o, Error: strings.Repeat("é", 5000),
			})
			return err
		}
		wantReason(t, abandon(r, 0), fault.InvalidArguments)
		for range 2 {
			if err := abandon(r, taskv1.AbandonOutcome_ABANDON_OUTCOME_NOT_EXECUTED); err != nil {
				t.Fatal(err)
			}
		}
		_, err = n.GetTask(t.Context(), &taskv1.GetTaskRequest{TaskId: r.GetTaskId()})
		wantReason(t, err, fault.TaskNotFound)
		_, err = n.intake.RenewReservation(t.Context(), &taskv1.RenewReservationRequest{TaskId: r.GetTaskId(), Fence: r.GetFence()})
		wantReason(t, err, fault.ReservationExpired)

		r = reserve()
		for range 2 {
			if err := abandon(r, taskv1.AbandonOutcome_ABANDON_OUTCOME_UNKNOWN); err != nil {
				t.Fatal(err)
			}
		}
		got := n.get(t, r.GetTaskId())
		if got.GetStatus() != failed || got.GetFailureReason() != "outcome_unknown" || len([]rune(got.GetError())) != 500 {
			t.Errorf("got %v with an error of %d characters", got, len([]rune(got.GetError())))
		}
	})
}

func TestIntakeRefusesWhatIsNoSubmit(t *testing.T) {
	n := start(t, dbtest.SQLite(t), options{cfg: quick(), idle: true})
	for field, change := range map[string]func(*taskv1.ReserveTaskRequest){
		"task_name":           func(r *taskv1.ReserveTaskRequest) { r.TaskName = " " },
		"server":              func(r *taskv1.ReserveTaskRequest) { r.Server = strings.Repeat("s", 129) },
		"binding":             func(r *taskv1.ReserveTaskRequest) { r.Binding = nil },
		"binding_fingerprint": func(r *taskv1.ReserveTaskRequest) { r.BindingFingerprint = "" },
		"principal":           func(r *taskv1.ReserveTaskRequest) { r.Principal = "" },
		"scope":               func(r *taskv1.ReserveTaskRequest) { r.Scope = nil },
		"scope.user_id":       func(r *taskv1.ReserveTaskRequest) { r.Scope.UserId = "a\nb" },
		"request_hash":        func(r *taskv1.ReserveTaskRequest) { r.RequestId, r.RequestHash = "r", "" },
		"submit_timeout":      func(r *taskv1.ReserveTaskRequest) { r.SubmitTimeout = durationpb.New(-1) },
		"task_ttl":            func(r *taskv1.ReserveTaskRequest) { r.TaskTtl = durationpb.New(0) },
	} {
		req := intent(alice)
		change(req)
		_, err := n.intake.ReserveTask(t.Context(), req)
		if f := wantReason(t, err, fault.InvalidArguments); len(f.Violations()) != 1 || f.Violations()[0].Field != field {
			t.Errorf("%s: got %v", field, f.Violations())
		}
	}
	long := intent(alice)
	long.TaskName, long.Server = strings.Repeat("ü", 255), strings.Repeat("ü", 128)
	r, err := n.intake.ReserveTask(t.Context(), long)
	if err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*taskv1.CommitTaskRequest){
		"remote_task_id": func(c *taskv1.CommitTaskRequest) { c.RemoteTaskId = strings.Repeat("x", 256) },
		"handle":         func(c *taskv1.CommitTaskRequest) { c.Handle = nil },
		"status":         func(c *taskv1.CommitTaskRequest) { c.Status = 0 },
		"task_id":        func(c *taskv1.CommitTaskRequest) { c.TaskId = "" },
		"fence":          func(c *taskv1.CommitTaskRequest) { c.Fence = 0 },
		"poll_after":     func(c *taskv1.CommitTaskRequest) { c.PollAfter = durationpb.New(-time.Second) },
		"remote_ttl":     func(c *taskv1.CommitTaskRequest) { c.RemoteTtl = durationpb.New(0) },
		"reserve":        func(c *taskv1.CommitTaskRequest) { c.Reserve = intent(alice) },
	} {
		req := commitOf(r, "remote")
		change(req)
		_, err := n.intake.CommitTask(t.Context(), req)
		f := wantReason(t, err, fault.InvalidArguments)
		if len(f.Violations()) != 1 || f.Violations()[0].Field != field {
			t.Errorf("%s: got %v", field, f.Violations())
		}
		if field == "remote_task_id" && !strings.Contains(f.Error(), "255") {
			t.Errorf("%v does not name the limit", f)
		}
	}
	if _, err := n.intake.CommitTask(t.Context(), commitOf(r, strings.Repeat("x", 255))); err != nil {
		t.Errorf("255 characters: %v", err)
	}
}

func TestAHandleThatCameUnaskedIsTakenInWhole(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		n := start(t, d, options{cfg: quick(), idle: true})
		c := &taskv1.CommitTaskRequest{Reserve: intent(alice), Handle: []byte("h"), RemoteTaskId: "remote", Status: working}
		got, err := n.intake.CommitTask(t.Context(), c)
		if err != nil || !strings.HasPrefix(got.GetTask().GetTaskId(), "mcp-task-") || got.GetTask().GetStatus() != working {
			t.Fatalf("got %v, %v", got, err)
		}
		again, err := n.intake.CommitTask(t.Context(), c)
		if err != nil {
			wantReason(t, err, fault.DuplicateRemoteTask)
		} else if again.GetTask().GetTaskId() != got.GetTask().GetTaskId() {
			t.Errorf("a second task %v for one handle", again)
		}
	})
}

// NOTE-001
func TestASubmitMayNameASinkThatExistsAndIsForItsCaller(t *testing.T) {
	d := dbtest.SQLite(t)
	cfg := quick()
	cfg.Sinks = []taskworker.Sink{
		{Name: "all"},
		{Name: "ops", AllowedRoles: []authn.Role{authn.Operator}},
		{Name: "both", AllowedRoles: []authn.Role{authn.Operator, authn.Agent}},
	}
	n := start(t, d, options{cfg: cfg, idle: true})
	for _, c := range []struct {
		sink  string
		roles []corev1.Role
		want  fault.Reason
	}{
		{"", nil, ""},
		{config.Events, nil, ""},
		{"all", nil, ""},
		{"both", []corev1.Role{corev1.Role_ROLE_AGENT}, ""},
		{"ops", []corev1.Role{corev1.Role_ROLE_AGENT, corev1.Role_ROLE_OPERATOR}, ""},
		{"ops", []corev1.Role{corev1.Role_ROLE_AGENT}, fault.Forbidden},
		{"ops", nil, fault.Forbidden},
		{"OPS", []corev1.Role{corev1.Role_ROLE_OPERATOR}, fault.SinkUnknown},
		{"nowhere", []corev1.Role{corev1.Role_ROLE_OPERATOR}, fault.SinkUnknown},
	} {
		t.Run(fmt.Sprint(c.sink, c.roles), func(t *testing.T) {
			req := intent(alice)
			req.NotifySink, req.CallerRoles = c.sink, c.roles
			r, err := n.intake.ReserveTask(t.Context(), req)
			if c.want != "" {
				if f := wantReason(t, err, c.want); !strings.Contains(f.Error(), c.sink) {
					t.Errorf("%v does not name the sink", f)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := n.intake.CommitTask(t.Context(), commitOf(r, "remote-"+r.GetTaskId()))
			if err != nil || got.GetTask().GetNotifySink() != c.sink {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	// An entry with the name of the built-in stream says who may use that.
	cfg.Sinks = []taskworker.Sink{{Name: config.Events, AllowedRoles: []authn.Role{authn.Operator}}}
	n = start(t, d, options{cfg: cfg, idle: true})
	req := intent(alice)
	req.NotifySink = config.Events
	_, err := n.intake.ReserveTask(t.Context(), req)
	wantReason(t, err, fault.Forbidden)
}

func TestTheConfigurationOfAProcessSaysWhoMayNameASink(t *testing.T) {
	c := config.Defaults()
	c.Notifier.Sinks = []config.Sink{{Name: "ops", Type: config.SinkWebhook, AllowedRoles: []string{"operator"}, Secrets: []string{"${HOOK}"}}}
	c.Tasks.Enabled = false
	got, err := taskworker.FromConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Disabled || got.Lease != 30*time.Second || got.Concurrency != 128 || len(got.Sinks) != 1 ||
		got.Sinks[0].Name != "ops" || len(got.Sinks[0].AllowedRoles) != 1 || got.Sinks[0].AllowedRoles[0] != authn.Operator {
		t.Errorf("got %+v", got)
	}
	c.Tasks.Lease = -1
	_, err = taskworker.FromConfig(c)
	wantReason(t, err, fault.ConfigInvalid)
}

// TASK-052
func TestBindingAndHandleReachTheRemoteByteForByte(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: r})
		req := intent(alice)
		req.Binding = bytes.Repeat([]byte{0, 0xfe, '"', '\'', '\n'}, 1000) // neither text nor JSON
		req.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		res, err := n.intake.ReserveTask(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		handle := string([]byte{0xff, 0, 1, '\\'})
		c := commitOf(res, "remote")
		c.Handle, c.PollAfter = []byte(handle), durationpb.New(time.Millisecond)
		r.onPoll(handle, says(done(`1`)))
		if _, err := n.intake.CommitTask(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		n.ended(t, res.GetTaskId())
		call := r.calls("poll", handle)[0]
		if !bytes.Equal(call.ref.GetBinding(), req.GetBinding()) || !proto.Equal(call.ref.GetScope(), scopeOf(alice)) ||
			call.ref.GetTaskId() != res.GetTaskId() || call.ref.GetTraceparent() != req.GetTraceparent() || call.holdFor <= 0 {
			t.Errorf("the remote got %v", call.ref)
		}
	})
}

// TASK-046
func TestSwitchedOffNoTaskIsTakenInAndNoneIsWorkedOn(t *testing.T) {
	d := dbtest.SQLite(t)
	r := newRemote()
	on := start(t, d, options{cfg: quick(), remote: newRemote()})
	reserved, err := on.intake.ReserveTask(t.Context(), intent(alice))
	if err != nil {
		t.Fatal(err)
	}
	on.stop()

	cfg := quick()
	cfg.Disabled = true
	off := start(t, d, options{cfg: cfg, remote: r})
	_, err = off.intake.ReserveTask(t.Context(), intent(alice))
	if f := wantReason(t, err, fault.TasksUnavailable); !strings.Contains(f.Error(), "tasks.enabled") {
		t.Errorf("%v does not say what to set", f)
	}
	_, err = off.intake.CommitTask(t.Context(), &taskv1.CommitTaskRequest{Reserve: intent(alice), Handle: []byte("h"), RemoteTaskId: "x", Status: working})
	wantReason(t, err, fault.TasksUnavailable)

	c := commitOf(reserved, "begun-before")
	c.PollAfter = durationpb.New(time.Millisecond)
	if _, err := off.intake.CommitTask(t.Context(), c); err != nil {
		t.Fatalf("a submit that was under way: %v", err)
	}
	_, err = off.CancelTask(t.Context(), &taskv1.CancelTaskRequest{TaskId: reserved.GetTaskId()})
	wantReason(t, err, fault.NoWorker)
	off.stop()
	if n := len(r.calls("poll", "begun-before")); n != 0 {
		t.Errorf("%d polls", n)
	}
	r.onPoll("begun-before", says(done(`1`)))
	on = start(t, d, options{cfg: quick(), remote: r})
	on.ended(t, reserved.GetTaskId())
}
