package taskworker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

// each calls every RPC about one task and returns their errors by name.
func each(ctx context.Context, c taskv1.TaskServiceClient, id string, s *corev1.Scope) map[string]error {
	out := map[string]error{}
	_, out["GetTask"] = c.GetTask(ctx, &taskv1.GetTaskRequest{TaskId: id, Scope: s})
	_, out["CancelTask"] = c.CancelTask(ctx, &taskv1.CancelTaskRequest{TaskId: id, Scope: s})
	if stream, err := c.GetTaskResult(ctx, &taskv1.GetTaskResultRequest{TaskId: id, Scope: s}); err != nil {
		out["GetTaskResult"] = err
	} else {
		_, out["GetTaskResult"] = stream.Recv()
	}
	if stream, err := c.WatchTask(ctx, &taskv1.WatchTaskRequest{TaskId: id, Scope: s}); err != nil {
		out["WatchTask"] = err
	} else {
		_, out["WatchTask"] = stream.Recv()
	}
	return out
}

// CRED-015
func TestAnAgentSeesTheTasksOfItsScopeAndKnowsOfNoOther(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		n := start(t, d, options{cfg: quick()})
		mine := n.submit(t, alice, "a1").GetTaskId()
		theirs := n.submit(t, bob, "b1").GetTaskId()
		other := n.submit(t, authn.Scope{UserID: "alice", ThreadID: "t2"}, "a2").GetTaskId()
		unknown := "mcp-task-" + strings.Repeat("0", 32)

		ctx := as(t, agent("alice"))
		got, err := n.peer.GetTask(ctx, &taskv1.GetTaskRequest{TaskId: mine, Scope: scopeOf(alice)})
		if err != nil || got.GetTask().GetTaskId() != mine {
			t.Fatalf("its own task: %v, %v", got, err)
		}
		// The user is the token's own where the scope leaves it out.
		if _, err := n.peer.GetTask(ctx, &taskv1.GetTaskRequest{TaskId: mine, Scope: &corev1.Scope{ThreadId: "t1"}}); err != nil {
			t.Errorf("without the user: %v", err)
		}
		want := map[string]string{}
		for rpc, err := range each(ctx, n.peer, unknown, scopeOf(alice)) {
			want[rpc] = strings.ReplaceAll(wantReason(t, err, fault.TaskNotFound).Error(), unknown, "ID")
		}
		for _, foreign := range []string{theirs, other} {
			for rpc, err := range each(ctx, n.peer, foreign, scopeOf(alice)) {
				if f := wantReason(t, err, fault.TaskNotFound); strings.ReplaceAll(f.Error(), foreign, "ID") != want[rpc] {
					t.Errorf("%s: a foreign task (%v) differs from an unknown one (%s)", rpc, f, want[rpc])
				}
			}
		}
		for _, id := range []string{theirs, unknown} {
			for _, err := range each(ctx, n.peer, id, scopeOf(bob)) {
				wantReason(t, err, fault.Forbidden)
			}
		}
		for _, c := range []context.Context{ctx, t.Context()} { // an agent, and a toolproxy that names nobody
			for _, err := range each(c, n.peer, mine, nil) {
				wantReason(t, err, fault.InvalidArguments)
			}
			_, err := n.peer.ListTasks(c, &taskv1.ListTasksRequest{})
			wantReason(t, err, fault.InvalidArguments)
		}
		list, err := n.peer.ListTasks(ctx, &taskv1.ListTasksRequest{Scope: scopeOf(alice)})
		if err != nil || len(list.GetTasks()) != 1 || list.GetTasks()[0].GetTaskId() != mine {
			t.Errorf("listed %v, %v", list, err)
		}
		if n.get(t, theirs).GetCancelRequestedTime() != nil || n.get(t, other).GetCancelRequestedTime() != nil {
			t.Error("a foreign cancel had an effect")
		}
	})
}

func TestOperatorsSeeAllTasksAndAloneTheServerAndTheWorkers(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: r})
		id := n.submit(t, alice, "secret-remote-id").GetTaskId()
		n.submit(t, bob, "b1")
		r.awaitCalls(t, "poll", "secret-remote-id", 2)

		ops := as(t, operator())
		got, err := n.peer.GetTask(ops, &taskv1.GetTaskRequest{TaskId: id})
		if err != nil || got.GetTask().GetServer() != "reports" || len(got.GetTask().GetAttempts()) == 0 ||
			got.GetTask().GetAttempts()[0].GetWorker() == "" {
			t.Fatalf("an operator got %v, %v", got, err)
		}
		_, err = n.peer.GetTask(ops, &taskv1.GetTaskRequest{TaskId: id, Scope: scopeOf(bob)})
		wantReason(t, err, fault.TaskNotFound) // it asked for bob's
		for scope, want := range map[*corev1.Scope]int{nil: 2, {}: 2, {UserId: "alice"}: 1, {ThreadId: "t1"}: 2, {ThreadId: "t9"}: 0} {
			list, err := n.peer.ListTasks(ops, &taskv1.ListTasksRequest{Scope: scope})
			if err != nil || len(list.GetTasks()) != want {
				t.Errorf("%v: %d tasks, %v, want %d", scope, len(list.GetTasks()), err, want)
			}
		}
		if list, err := n.peer.ListTasks(ops, &taskv1.ListTasksRequest{Server: "elsewhere"}); err != nil || len(list.GetTasks()) != 0 {
			t.Errorf("of a server: %v, %v", list, err)
		}

		alicesAgent := as(t, agent("alice"))
		own, err := n.peer.GetTask(alicesAgent, &taskv1.GetTaskRequest{TaskId: id, Scope: scopeOf(alice)})
		if err != nil || own.GetTask().GetServer() != "" || len(own.GetTask().GetAttempts()) == 0 {
			t.Fatalf("an agent got %v, %v", own, err)
		}
		for _, a := range own.GetTask().GetAttempts() {
			if a.GetWorker() != "" {
				t.Errorf("an agent sees worker %q", a.GetWorker())
			}
		}
		if text := fmt.Sprint(own, got); strings.Contains(text, "secret-remote-id") {
			t.Errorf("the remote's id is shown: %s", text)
		}
		_, err = n.peer.ListTasks(alicesAgent, &taskv1.ListTasksRequest{Scope: scopeOf(alice), Server: "reports"})
		wantReason(t, err, fault.Forbidden)
	})
}

// TASK-049
func TestTasksAreListedNewestFirstInPages(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		n := start(t, d, options{cfg: quick(), idle: true})
		var ids []string
		for i := range 103 {
			ids = append(ids, n.submit(t, alice, fmt.Sprint("r", i)).GetTaskId())
		}
		page := func(size int32, token string) *taskv1.ListTasksResponse {
			t.Helper()
			l, err := n.ListTasks(t.Context(), &taskv1.ListTasksRequest{PageSize: size, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		for size, want := range map[int32]int{0: 50, 1: 1, 100: 100, 5000: 100} {
			if got := page(size, ""); len(got.GetTasks()) != want || got.GetNextPageToken() == "" {
				t.Errorf("page_size %d: %d tasks, next %q", size, len(got.GetTasks()), got.GetNextPageToken())
			}
		}
		seen := map[string]bool{}
		var last time.Time
		for token := ""; ; {
			p := page(40, token)
			for _, x := range p.GetTasks() {
				if created := x.GetCreateTime().AsTime(); !last.IsZero() && created.After(last) {
					t.Error("an older task comes before a newer one")
				}
				last = x.GetCreateTime().AsTime()
				seen[x.GetTaskId()] = true
			}
			if token = p.GetNextPageToken(); token == "" {
				break
			}
		}
		for _, id := range ids {
			if !seen[id] {
				t.Errorf("%s is on no page", id)
			}
		}
		for _, req := range []*taskv1.ListTasksRequest{
			{PageSize: -1}, {PageToken: "nonsense"}, {Statuses: []corev1.TaskStatus{0}}, {Statuses: []corev1.TaskStatus{99}},
		} {
			_, err := n.ListTasks(t.Context(), req)
			wantReason(t, err, fault.InvalidArguments)
		}
		l, err := n.ListTasks(t.Context(), &taskv1.ListTasksRequest{Statuses: []corev1.TaskStatus{completed}})
		if err != nil || len(l.GetTasks()) != 0 {
			t.Errorf("completed: %v, %v", l, err)
		}
	})
}

func TestAPageEndsBeforeAMessageIsTooLargeAndTheNextGoesOn(t *testing.T) {
	r := newRemote()
	n := start(t, dbtest.SQLite(t), options{cfg: quick(), remote: r})
	large := busy(time.Hour)
	large.Status, large.InputRequiredJson = inputRequired, `{"q":"`+strings.Repeat("x", 60<<10)+`"}`
	const tasks = 60
	var last string
	for i := range tasks {
		handle := fmt.Sprint("r", i)
		r.onPoll(handle, says(large))
		last = n.submit(t, alice, handle).GetTaskId()
	}
	eventually(t, func() error {
		l, err := n.ListTasks(t.Context(), &taskv1.ListTasksRequest{Statuses: []corev1.TaskStatus{submitted}})
		if err != nil || len(l.GetTasks()) > 0 {
			return fmt.Errorf("%d tasks still submitted, %w", len(l.GetTasks()), err)
		}
		return nil
	})
	seen, pages, token := map[string]bool{}, 0, ""
	for {
		l, err := n.ListTasks(t.Context(), &taskv1.ListTasksRequest{PageSize: 100, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		if pages == 0 && l.GetTasks()[0].GetTaskId() != last {
			t.Error("the first page does not begin with the newest task")
		}
		pages++
		for _, x := range l.GetTasks() {
			if seen[x.GetTaskId()] {
				t.Errorf("%s twice", x.GetTaskId())
			}
			seen[x.GetTaskId()] = true
		}
		if token = l.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(seen) != tasks || pages < 2 {
		t.Errorf("%d tasks on %d pages", len(seen), pages)
	}
}

func TestAResultComesInPiecesOnceTheTaskHasEnded(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: r})
		read := func(id string) ([]byte, error) {
			stream, err := n.GetTaskResult(t.Context(), &taskv1.GetTaskResultRequest{TaskId: id})
			if err != nil {
				return nil, err
			}
			var out bytes.Buffer
			for {
				piece, err := stream.Recv()
				if err != nil {
					return nil, err
				}
				if len(piece.GetData()) > 1<<20 {
					t.Errorf("a piece of %d bytes", len(piece.GetData()))
				}
				out.Write(piece.GetData())
				if piece.GetLast() {
					_, err := stream.Recv()
					if !errors.Is(err, io.EOF) {
						t.Errorf("after the last piece: %v", err)
					}
					return out.Bytes(), nil
				}
			}
		}
		large := `{"n": 1.50, "s": "` + strings.Repeat("x", 3<<20) + `"}`
		for handle, result := range map[string]string{"small": `{"b":1,"a":2}`, "large": large, "none": ""} {
			r.onPoll(handle, inTurn(says(busy(time.Millisecond)), says(done(result))))
			id := n.submit(t, alice, handle).GetTaskId()
			ended := n.ended(t, id)
			got, err := read(id)
			if err != nil || string(got) != result {
				t.Errorf("%s: %d bytes, %v, want %d", handle, len(got), err, len(result))
			}
			if handle == "small" && ended.GetResultJson() != result || handle == "large" && (ended.GetResultJson() != "" || ended.GetResultPreview() == "") {
				t.Errorf("%s: the task shows %.100v", handle, ended)
			}
		}
		id := n.submit(t, alice, "works").GetTaskId()
		_, err := read(id)
		wantKind(t, err, fault.FailedPrecondition)
	})
}

type watching = grpc.ServerStreamingClient[taskv1.WatchTaskResponse]

func (n *node) watch(t *testing.T, id string, after int64) watching {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	stream, err := n.WatchTask(ctx, &taskv1.WatchTaskRequest{TaskId: id, AfterVersion: after})
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// TASK-049
func TestAWatchShowsEachStateResumesAndEndsWithTheFinalOne(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: r})
		step := make(chan struct{})
		says := func(status string) answer {
			return func(ctx context.Context, _ asked) (*remoteSnapshot, error) {
				select {
				case <-step:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				s := busy(time.Millisecond)
				if s.StatusMessage = status; status == "" {
					s = done(`"end"`)
				}
				return s, nil
			}
		}
		r.onPoll("w", inTurn(says("one"), says("two"), says("three"), says("")))
		id := n.submit(t, alice, "w").GetTaskId()
		w := n.watch(t, id, 0)
		var versions []int64
		receive := func(want string) {
			t.Helper()
			resp, err := w.Recv()
			if err != nil || resp.GetTask().GetStatusMessage() != want {
				t.Fatalf("got %v, %v, want %q", resp, err, want)
			}
			versions = append(versions, resp.GetTask().GetVersion())
		}
		receive("")
		for _, want := range []string{"one", "two"} {
			step <- struct{}{}
			receive(want)
		}
		step <- struct{}{}
		receive("three")
		// Another one comes that has seen the first three states.
		resumed := n.watch(t, id, versions[2])
		resp, err := resumed.Recv()
		if err != nil || resp.GetTask().GetStatusMessage() != "three" {
			t.Fatalf("resumed with %v, %v", resp, err)
		}
		step <- struct{}{}
		for _, w := range []watching{w, resumed} {
			resp, err := w.Recv()
			if err != nil || resp.GetTask().GetStatus() != completed || resp.GetTask().GetResultJson() != `"end"` {
				t.Fatalf("at the end %v, %v", resp, err)
			}
			versions = append(versions, resp.GetTask().GetVersion())
			if _, err := w.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("after the final state: %v", err)
			}
		}
		for i := 1; i < 5; i++ {
			if versions[i] <= versions[i-1] {
				t.Errorf("versions %v do not rise", versions)
			}
		}
		// Who has seen the final state sees the end at once; who has not, sees it.
		if _, err := n.watch(t, id, versions[4]).Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("got %v", err)
		}
		if resp, err := n.watch(t, id, versions[3]).Recv(); err != nil || resp.GetTask().GetStatus() != completed {
			t.Errorf("got %v, %v", resp, err)
		}
		_, err = n.watch(t, id, -1).Recv()
		wantReason(t, err, fault.InvalidArguments)
	})
}

// TASK-049
func TestEachAttemptIsOnRecord(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: r})
		r.onPoll("x", inTurn(says(busy(time.Millisecond)), fails(fault.New(fault.CircuitOpen, "open")), says(done(`1`))))
		id := n.submit(t, alice, "x").GetTaskId()
		got := n.ended(t, id).GetAttempts()
		if len(got) != 3 {
			t.Fatalf("%d attempts: %v", len(got), got)
		}
		for i, want := range []string{"ok", "circuit_open", "ok"} { // newest first
			a := got[i]
			if a.GetKind() != "poll" || a.GetOutcome() != want || a.GetWorker() != got[0].GetWorker() || a.GetTime() == nil {
				t.Errorf("attempt %d is %v", i, a)
			}
			if last := i == 0; last != (a.GetNextDueTime() == nil) {
				t.Errorf("attempt %d: next due %v", i, a.GetNextDueTime())
			}
		}
	})
}

func TestAnswersAreNotTakenYet(t *testing.T) {
	n := start(t, dbtest.SQLite(t), options{cfg: quick(), idle: true})
	_, err := n.AnswerTask(t.Context(), &taskv1.AnswerTaskRequest{TaskId: "x", InputResponsesJson: `{}`})
	if f := wantKind(t, err, fault.Unimplemented); !strings.Contains(f.Error(), "AnswerTask") {
		t.Errorf("got %v", f)
	}
}

func TestATaskThatIsBornFinalIsNeverPolled(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRemote()
		n := start(t, d, options{cfg: quick(), remote: r})
		c, err := n.intake.CommitTask(t.Context(), &taskv1.CommitTaskRequest{
			Reserve: intent(alice), Handle: []byte("h"), RemoteTaskId: "born", Status: completed, PollAfter: durationpb.New(time.Millisecond),
		})
		if err != nil || c.GetTask().GetStatus() != completed || c.GetTask().GetNextPollTime() != nil {
			t.Fatalf("got %v, %v", c, err)
		}
		w := n.watch(t, c.GetTask().GetTaskId(), 0)
		if resp, err := w.Recv(); err != nil || resp.GetTask().GetStatus() != completed {
			t.Errorf("got %v, %v", resp, err)
		}
		n.stop()
		if len(r.calls("poll", "h")) != 0 {
			t.Error("it was polled")
		}
	})
}
