package fake_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/test/fakemcp/fake"
	"github.com/toolherd/toolherd/test/rawrpc"
)

// jobAnswer is what the tools of a job answer.
type jobAnswer struct {
	TaskID    string `json:"task_id"`
	Status    string `json:"status"`
	ErrorCode string `json:"error_code"`
	PollAfter any    `json:"poll_after_seconds"`
}

// job calls a tool of a job and returns its status, or `isError`.
func job(t *testing.T, c rawrpc.Caller, tool, arguments string) (id, status string) {
	t.Helper()
	result := call(t, c, tool, arguments)
	if string(rawrpc.Member(result, "isError")) == "true" {
		return "", "isError"
	}
	var a jobAnswer
	content(t, result, &a)
	if a.ErrorCode != "" {
		return a.TaskID, a.ErrorCode
	}
	return a.TaskID, a.Status
}

func TestJobsEndAsTheirArgumentsSay(t *testing.T) {
	for name, c := range map[string]struct {
		spec   string
		polls  []string // what the calls of job_status answer
		cancel []string // and those of cancel_job after them
		after  []string // and those of job_status after these
	}{
		"at once":                {spec: `{}`, polls: []string{"completed", "completed"}, cancel: []string{"completed"}},
		"after polls":            {spec: `{"polls":3,"outcome":"failed"}`, polls: []string{"running", "running", "failed"}},
		"asks":                   {spec: `{"asks":2}`, polls: []string{"input_required", "input_required", "completed"}},
		"cancelled":              {spec: `{"polls":9}`, polls: []string{"running"}, cancel: []string{"cancelled"}, after: []string{"cancelled"}},
		"cancel fails":           {spec: `{"polls":9,"cancel_failures":2}`, cancel: []string{"isError", "isError", "cancelled"}},
		"cancel is acknowledged": {spec: `{"polls":9,"cancel":"ack","cancel_polls":2}`, polls: []string{"running"}, cancel: []string{"running"}, after: []string{"running", "cancelled"}},
		"cancel comes late":      {spec: `{"polls":9,"cancel":"late"}`, cancel: []string{"completed"}, after: []string{"completed"}},
		"cancel is ignored":      {spec: `{"polls":2,"cancel":"ignore"}`, cancel: []string{"running"}, after: []string{"running", "completed"}},
		"status fails":           {spec: `{"status_answers":["is_error","not_found","ok"],"polls":3}`, polls: []string{"isError", "task_not_found", "completed"}},
	} {
		t.Run(name, func(t *testing.T) {
			client := dial(t, fake.New(fake.Options{}), rawrpc.V20251125, rawrpc.ClientOptions{})
			id, status := job(t, client, fake.SubmitJob, c.spec)
			if status != "running" {
				t.Fatalf("the submit answers %s", status)
			}
			argument := fmt.Sprintf(`{"task_id":%q}`, id)
			for _, step := range []struct {
				tool string
				want []string
			}{{fake.JobStatus, c.polls}, {fake.CancelJob, c.cancel}, {fake.JobStatus, c.after}} {
				for i, want := range step.want {
					if _, got := job(t, client, step.tool, argument); got != want {
						t.Errorf("call %d of %s answers %s, want %s", i+1, step.tool, got, want)
					}
				}
			}
		})
	}
}

func TestJobsOutliveTheServerInTheirJournal(t *testing.T) {
	journal := filepath.Join(t.TempDir(), "jobs")
	open := func(private bool) rawrpc.Caller {
		return dial(t, fake.New(fake.Options{Journal: journal, PrivateJobs: private}), rawrpc.V20251125, rawrpc.ClientOptions{})
	}
	first := open(false)
	id, _ := job(t, first, fake.SubmitJob, `{"name":"one","polls":3}`)
	argument := fmt.Sprintf(`{"task_id":%q}`, id)
	job(t, first, fake.JobStatus, argument)
	second := open(false)
	if _, got := job(t, second, fake.JobStatus, argument); got != "running" {
		t.Errorf("the second poll, at another server, answers %s", got)
	}
	if _, got := job(t, first, fake.JobStatus, argument); got != "completed" {
		t.Errorf("the third poll answers %s", got)
	}
	if _, got := job(t, second, fake.CancelJob, argument); got != "completed" {
		t.Errorf("a cancel at the end answers %s", got)
	}
	records, err := fake.ReadJournal(journal)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range records {
		if r.Job != id || r.PID != os.Getpid() || r.Time.IsZero() {
			t.Errorf("a strange record: %+v", r)
		}
		got = append(got, r.Tool+" "+r.Answer)
	}
	want := []string{
		"start_job ", "start_job running", "job_status ", "job_status running", "job_status ", "job_status running",
		"job_status ", "job_status completed", "cancel_job ", "cancel_job completed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the journal (- want, + got):\n%s", diff)
	}
}

func TestASubmitThatFailsStartsNoJob(t *testing.T) {
	client := dial(t, fake.New(fake.Options{}), rawrpc.V20251125, rawrpc.ClientOptions{})
	if _, got := job(t, client, fake.SubmitJob, `{"job_id":"j","submit_answer":"is_error"}`); got != "isError" {
		t.Errorf("the submit answers %s", got)
	}
	if _, got := job(t, client, fake.JobStatus, `{"task_id":"j"}`); got != "task_not_found" {
		t.Errorf("there is a job: %s", got)
	}
}

func TestAJobWaitsForItsFile(t *testing.T) {
	client := dial(t, fake.New(fake.Options{}), rawrpc.V20251125, rawrpc.ClientOptions{})
	file := filepath.Join(t.TempDir(), "go")
	job(t, client, fake.SubmitJob, fmt.Sprintf(`{"job_id":"j","file":%q}`, file))
	for _, want := range []string{"running", "completed"} {
		if _, got := job(t, client, fake.JobStatus, `{"task_id":"j"}`); got != want {
			t.Errorf("the job is %s, want %s", got, want)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
