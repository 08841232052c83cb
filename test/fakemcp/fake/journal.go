package fake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// The tools of a job, as a [Record] names them.
const (
	SubmitJob = "start_job"
	JobStatus = "job_status"
	CancelJob = "cancel_job"
)

// Record is a line of the journal of jobs. Each call of a job's tools writes one when it begins, before it does
// anything, and one when it ends, with the same Tool, PID and Call. A process that is killed writes no end.
type Record struct {
	Time time.Time `json:"time"`
	PID  int       `json:"pid"`
	Call int64     `json:"call"` // counted by the process
	Tool string    `json:"tool"`
	Job  string    `json:"job"`
	// Arguments are those of the call, in its first record.
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// Answer is what the call answered, in its last record: a status, or what was wrong instead.
	Answer string `json:"answer,omitempty"`
}

// Begins reports whether it is the first record of its call.
func (r Record) Begins() bool { return r.Answer == "" }

// ReadJournal returns the records of a journal in order. A journal that nobody has written to yet has none.
func ReadJournal(path string) ([]Record, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal of jobs: %w", err)
	}
	records, _, err := parseJournal(content)
	return records, err
}

// parseJournal reads the whole lines of content and returns how many bytes they have.
func parseJournal(content []byte) (records []Record, n int, err error) {
	for {
		end := bytes.IndexByte(content[n:], '\n')
		if end < 0 {
			return records, n, nil
		}
		var r Record
		if err := json.Unmarshal(content[n:n+end], &r); err != nil {
			return nil, 0, fmt.Errorf("journal of jobs, line %d: %w", len(records)+1, err)
		}
		records, n = append(records, r), n+end+1
	}
}

// jobs are the jobs of a server. With a journal they outlive it, and servers that share the journal share the jobs.
type jobs struct {
	journal string // path; empty: in memory
	private bool   // what other processes wrote does not count

	mu     sync.Mutex
	file   *os.File
	offset int64
	calls  int64
	byID   map[string]*job
}

// job is what the records say about one job.
type job struct {
	id       string
	spec     jobSpec
	created  time.Time
	statuses int    // calls begun
	cancels  int    // calls begun
	ackedAt  int    // statuses at the time of an acknowledged cancel, plus 1; 0 if there is none
	ended    string // its final status; empty while it runs
}

func newJobs(o Options) *jobs {
	return &jobs{journal: o.Journal, private: o.PrivateJobs, byID: map[string]*job{}}
}

func (js *jobs) close() error {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.file == nil {
		return nil
	}
	err := js.file.Close()
	js.file = nil
	return err
}

// begin records that a call begins and returns its number and the job as it is after that, nil if there is no such job.
func (js *jobs) begin(tool, id string, arguments json.RawMessage) (call int64, now job, known bool, err error) {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.calls++
	r := Record{Time: time.Now(), PID: os.Getpid(), Call: js.calls, Tool: tool, Job: id, Arguments: arguments}
	if err := js.append(r); err != nil {
		return 0, job{}, false, err
	}
	j := js.byID[id]
	if j == nil {
		return r.Call, job{}, false, nil
	}
	return r.Call, *j, true, nil
}

// end records what a call answered.
func (js *jobs) end(tool, id string, call int64, answer string) error {
	js.mu.Lock()
	defer js.mu.Unlock()
	return js.append(Record{Time: time.Now(), PID: os.Getpid(), Call: call, Tool: tool, Job: id, Answer: answer})
}

// append writes a record and applies it, after all that others wrote before it.
func (js *jobs) append(r Record) error {
	if js.journal == "" {
		return js.apply(r)
	}
	if js.file == nil {
		f, err := os.OpenFile(js.journal, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
		if err != nil {
			return fmt.Errorf("open the journal of jobs: %w", err)
		}
		js.file = f
	}
	if _, err := js.file.Write(append(rawrpc.JSON(r), '\n')); err != nil { // at once: others append too
		return fmt.Errorf("write the journal of jobs: %w", err)
	}
	content, err := io.ReadAll(io.NewSectionReader(js.file, js.offset, 1<<40))
	if err != nil {
		return fmt.Errorf("read the journal of jobs: %w", err)
	}
	records, n, err := parseJournal(content)
	if err != nil {
		return err
	}
	js.offset += int64(n)
	for _, r := range records {
		if js.private && r.PID != os.Getpid() {
			continue
		}
		if err := js.apply(r); err != nil {
			return err
		}
	}
	return nil
}

func (js *jobs) apply(r Record) error {
	j := js.byID[r.Job]
	switch {
	case r.Tool == SubmitJob && r.Begins():
		spec, err := parseSpec(r.Arguments)
		if err != nil {
			return err
		}
		js.byID[r.Job] = &job{id: r.Job, spec: spec, created: r.Time}
	case j == nil:
	case r.Tool == SubmitJob:
		if r.Answer == answerIsError || r.Answer == answerAsks {
			delete(js.byID, r.Job)
		}
	case r.Begins():
		if r.Tool == JobStatus {
			j.statuses++
		} else {
			j.cancels++
		}
	case r.Answer == answerAcked:
		j.ackedAt = j.statuses + 1
	case final(r.Answer) && j.ended == "":
		j.ended = r.Answer
	}
	return nil
}

func final(status string) bool {
	return status == "completed" || status == "failed" || status == "cancelled"
}
