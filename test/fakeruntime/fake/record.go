package fake

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// The kinds of records.
const (
	KindStart    = "start_run"
	KindLookUp   = "get_run"
	KindDelivery = "delivery"
)

// Record is one call that arrived. Fields that do not belong to its kind are empty.
type Record struct {
	Kind string    `json:"kind"`
	Time time.Time `json:"time"` // when it was decided on, by this process's clock
	Step string    `json:"step"` // the word of the plan that it met, or "repeated" for a known idempotency key

	// Of a start, and the first two of a look-up too.
	RunID                 string `json:"run_id,omitempty"` // empty where none was started
	ThreadID              string `json:"thread_id,omitempty"`
	UserID                string `json:"user_id,omitempty"`
	IdempotencyKey        string `json:"idempotency_key,omitempty"`
	OriginRunID           string `json:"origin_run_id,omitempty"`
	Instruction           string `json:"instruction,omitempty"`
	EventJSON             string `json:"event_json,omitempty"`
	RequireExistingThread bool   `json:"require_existing_thread,omitempty"`

	// Of a look-up: the answer.
	RunStatus string `json:"run_status,omitempty"`

	// Of a delivery.
	Path             string `json:"path,omitempty"`
	WebhookID        string `json:"webhook_id,omitempty"`
	WebhookTimestamp string `json:"webhook_timestamp,omitempty"`
	WebhookSignature string `json:"webhook_signature,omitempty"`
	// Verified counts the receiver's keys that one of the signatures is by; Refused says why the delivery was turned away.
	Verified    int    `json:"verified,omitempty"`
	Refused     string `json:"refused,omitempty"`
	ContentType string `json:"content_type,omitempty"`
	Body        string `json:"body,omitempty"`
	HTTPStatus  int    `json:"http_status,omitempty"` // of the answer; 0 where none was given
}

// Journal keeps records, in order, and may write each as a line of JSON.
type Journal struct {
	mu      sync.Mutex
	records []Record
	to      io.Writer
	failed  error
}

// NewJournal returns an empty journal that writes to w, which may be nil.
func NewJournal(w io.Writer) *Journal { return &Journal{to: w} }

// Records returns what was recorded, of one kind or, with kind empty, all of it.
func (j *Journal) Records(kind string) []Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Record
	for _, r := range j.records {
		if kind == "" || r.Kind == kind {
			out = append(out, r)
		}
	}
	return out
}

// Err returns why records could not be written.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failed
}

func (j *Journal) add(r Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.Time = time.Now()
	j.records = append(j.records, r)
	if j.to == nil || j.failed != nil {
		return
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = j.to.Write(append(line, '\n'))
	}
	j.failed = err
}
