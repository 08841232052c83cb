package follow

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

// script is a task service whose watches go as written, one after the other.
type script struct {
	taskv1.UnimplementedTaskServiceServer
	watches []watch
	asked   []int64 // after_version of each
}

// watch is one stream: the states it sends, and how it ends.
type watch struct {
	versions []int64
	final    bool // the last state is final
	err      error
}

func (s *script) WatchTask(req *taskv1.WatchTaskRequest, stream grpc.ServerStreamingServer[taskv1.WatchTaskResponse]) error {
	s.asked = append(s.asked, req.GetAfterVersion())
	w := s.watches[min(len(s.asked), len(s.watches))-1]
	for i, v := range w.versions {
		t := &taskv1.Task{TaskId: req.GetTaskId(), Version: v, Status: corev1.TaskStatus_TASK_STATUS_WORKING}
		if w.final && i == len(w.versions)-1 {
			t.Status = corev1.TaskStatus_TASK_STATUS_COMPLETED
		}
		if err := stream.Send(&taskv1.WatchTaskResponse{Task: t}); err != nil {
			return err
		}
	}
	return w.err
}

// run follows a task of the script and returns the versions that were shown and how often the connection was lost.
func (s *script) run(t *testing.T, patience time.Duration) (task *taskv1.Task, shown []int64, losses int, err error) {
	t.Helper()
	server, stop := rpcServer(t, s)
	defer stop()
	w := Watch{
		Client: taskv1.NewTaskServiceClient(server), TaskID: "t", Patience: patience,
		Show: func(task *taskv1.Task) error { shown = append(shown, task.GetVersion()); return nil },
		Lost: func(error) { losses++ },
	}
	task, err = w.Run(t.Context())
	return task, shown, losses, err
}

func rpcServer(t *testing.T, s *script) (*grpc.ClientConn, func()) {
	t.Helper()
	server, err := rpc.NewServer(rpc.ServerOptions{Name: "test", Log: slog.New(slog.DiscardHandler), Peer: true})
	if err != nil {
		t.Fatal(err)
	}
	taskv1.RegisterTaskServiceServer(server, s)
	loopback := rpc.NewLoopback()
	conn, err := loopback.Dial(rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, loopback.Listener()) }()
	return conn, func() {
		err := conn.Close()
		cancel()
		if err := errors.Join(err, <-served); err != nil {
			t.Error(err)
		}
	}
}

func TestAWatchGoesOnAfterItsConnectionIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := fault.New(fault.NotReady, "the server goes away")
		s := &script{watches: []watch{
			{versions: []int64{1, 2}, err: gone}, // killed
			{},                                   // restarted in order, before it had anything to say
			{versions: []int64{5}},
			{versions: []int64{6, 7}, final: true},
		}}
		task, shown, losses, err := s.run(t, time.Minute)
		if err != nil || task.GetVersion() != 7 {
			t.Fatalf("got %v, %v, want the final state", task, err)
		}
		if diff := cmp.Diff([]int64{1, 2, 5, 6, 7}, shown); diff != "" {
			t.Errorf("shown (-want +got):\n%s", diff)
		}
		if got := s.asked[len(s.asked)-1]; got != 5 || s.asked[0] != 0 {
			t.Errorf("asked for what came after %v", s.asked)
		}
		if losses != 2 {
			t.Errorf("lost %d times, want 2: before state 5 and after it", losses)
		}
	})
}

func TestAWatchGivesUpWhenNobodyAnswersForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &script{watches: []watch{{versions: []int64{1}}, {err: fault.New(fault.NotReady, "down")}}}
		_, _, losses, err := s.run(t, 30*time.Second)
		if !fault.Is(err, fault.NotReady) || losses != 1 {
			t.Errorf("got %v after %d losses", err, losses)
		}
		if took := time.Since(began); took < 30*time.Second || took > 40*time.Second {
			t.Errorf("it took %s, want about 30s", took)
		}
	})
}

func TestAWatchDoesNotInsist(t *testing.T) {
	for name, first := range map[string]watch{
		"an unknown task":        {err: fault.New(fault.TaskNotFound, "no such task")},
		"no connection ever":     {err: fault.New(fault.NotReady, "down")},
		"an error after a state": {versions: []int64{1}, err: fault.New(fault.Forbidden, "no longer")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{watches: []watch{first, {versions: []int64{9}, final: true}}}
				if task, _, _, err := s.run(t, time.Minute); fault.ReasonOf(err) != fault.ReasonOf(first.err) {
					t.Errorf("got %v, %v, want %v", task, err, first.err)
				}
			})
		})
	}
}

func TestTheViewShowsEachChangeOnce(t *testing.T) {
	working := func(current float64, total *float64, message string) *taskv1.Task {
		return &taskv1.Task{
			Status: corev1.TaskStatus_TASK_STATUS_WORKING, StatusMessage: message, Progress: &taskv1.Progress{Current: current, Total: total},
		}
	}
	states := []*taskv1.Task{
		{Status: corev1.TaskStatus_TASK_STATUS_SUBMITTED},
		working(5, new(20.0), "writing\x1b[2J"),
		working(5, new(20.0), "writing\x1b[2J"),
		working(7, nil, ""),
		{Status: corev1.TaskStatus_TASK_STATUS_WORKING, TrackingDegraded: true},
		{Status: corev1.TaskStatus_TASK_STATUS_COMPLETED},
	}
	var plain strings.Builder
	v := NewView(&plain, false)
	for _, s := range states {
		if err := v.Show(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Done(); err != nil {
		t.Fatal(err)
	}
	want := "submitted\n" +
		"working         [######..................]  25%  writing\uFFFD[2J\n" +
		"working         7 done\n" +
		"working         (the server cannot be asked at the moment)\n" +
		"completed\n"
	if diff := cmp.Diff(want, plain.String()); diff != "" {
		t.Errorf("plain (-want +got):\n%s", diff)
	}

	var rewritten strings.Builder
	v = NewView(&rewritten, true)
	for _, err := range []error{v.Show(states[0]), v.Show(working(1, nil, strings.Repeat("é", 200))), v.Say("lost"), v.Show(states[5]), v.Done(), v.Done()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(strings.ReplaceAll(rewritten.String(), "\x1b[K", ""), "\n")
	if len(lines) != 4 || lines[1] != "lost" || lines[2] != "\rcompleted" || strings.Count(lines[0], "\r") != 2 || len([]rune(lines[0])) > 2+9+79 {
		t.Errorf("rewritten: %q", lines)
	}
}
