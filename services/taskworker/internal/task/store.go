package task

import (
	"context"
	"encoding/json"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
)

// Wake-up topics. Hints only: whoever listens also looks on its own.
const (
	TopicDue     = "task.due"     // a task may be due sooner than before
	TopicChanged = "task.changed" // a task has a higher version
)

// Intent is a submit that is about to be made.
type Intent struct {
	Principal   string
	Scope       authn.Scope
	RequestID   string // empty: unlike any other
	RequestHash string
	Binding     []byte
	Fingerprint string // of Binding
	TaskName    string
	Server      string
	RunID       string
	ToolCallID  string
	NotifySink  string
	TTL         time.Duration // 0: the policy's
	Traceparent string
}

// Reserved is a reservation, or the task that the same request became.
type Reserved struct {
	TaskID    string
	Fence     int64
	Expires   time.Time
	Committed *Task // set: nothing is to be submitted
}

// Hold names a reservation, or a lease on a task, as of one fence.
type Hold struct {
	TaskID string
	Fence  int64
}

// Commitment is a remote's handle for a reservation.
type Commitment struct {
	Hold      // without TaskID: for a handle that came unasked, then Unasked is set
	Unasked   *Intent
	Handle    []byte
	RemoteID  string
	Status    Status        // as the submit answer gave it; a task may be born terminal
	PollAfter time.Duration // 0: the policy's
	RemoteTTL time.Duration // 0: the remote does not say
}

// Reservations keeps intents until they are tasks.
type Reservations interface {
	// Reserve records an intent for another 15 s. Faults: REQUEST_IN_PROGRESS with the time it may take, REQUEST_ID_CONFLICT.
	Reserve(ctx context.Context, i Intent) (Reserved, error)
	// Extend keeps a reservation for another 15 s. Fault: RESERVATION_EXPIRED.
	Extend(ctx context.Context, h Hold) (expires time.Time, err error)
	// Commit makes the task in one guarded change, and repeats its answer for the same handle. Faults: DUPLICATE_REMOTE_TASK,
	// however often it is asked; RESERVATION_EXPIRED, after which the failed task knows the handle.
	Commit(ctx context.Context, c Commitment) (*Task, error)
	// Abandon forgets a reservation, or, where executed may be true, turns it into a failed task. A repeat changes nothing.
	Abandon(ctx context.Context, h Hold, mayHaveExecuted bool, why string) error
	// Reap turns up to limit expired reservations into failed tasks, OutcomeUnknown, and returns their ids.
	Reap(ctx context.Context, limit int) ([]string, error)
}

// Filter chooses tasks. Zero fields choose all.
type Filter struct {
	Scope    authn.Scope // each part by itself
	Statuses []Status
	Server   string
	Limit    int
	After    string // Page.Next of the page before
}

// Page is some tasks, newest first, without result and attempts.
type Page struct {
	Tasks []*Task
	Next  string // empty after the last page
}

// Claim is a due task that a worker holds a lease on.
type Claim struct {
	Hold
	Kind        Kind
	Server      string
	Scope       authn.Scope
	Handle      []byte
	Binding     []byte
	Traceparent string
	Answers     json.RawMessage // of kind Answer
	// HoldFor is how long the session of the remote task will be needed if it is not heard of again: the time to the next
	// poll at most, and a margin.
	HoldFor time.Duration
}

// Failure is an attempt that did not reach the remote, or got no answer of use.
type Failure struct {
	Reason    string // a word, for the record
	Message   string // at most 4000 characters
	Permanent string // not empty: trying again is of no use, and the task fails with this reason
	Uncounted bool   // does not count towards degraded, such as SESSION_LIMIT
}

// Outcome is what came of a claim. One of Snapshot and Failure is set; neither means that a cancel or an answer was
// acknowledged, without saying how the task stands.
type Outcome struct {
	Claim    Claim
	Worker   string
	Snapshot *Snapshot
	Failure  *Failure
}

// Settled says what a store did with an outcome.
type Settled struct {
	TaskID  string
	Dropped bool // the lease was lost, the fence raised or the task final: nothing was written
	Changed bool // the owner sees something new
	Event   bool // an event went to the outbox
	Status  Status
}

// Store keeps tasks. Methods on many rows take and lose each row by itself: a row that is locked or was lost hinders no
// other.
type Store interface {
	// Get returns a task with its attempts. Fault: TASK_NOT_FOUND.
	Get(ctx context.Context, id string) (*Task, error)
	// List returns a page.
	List(ctx context.Context, f Filter) (Page, error)
	// Result returns a whole result, be it in the task or beside it; nil if there is none. Fault: TASK_NOT_FOUND.
	Result(ctx context.Context, id string) (json.RawMessage, error)
	// Versions returns the versions of those tasks that exist.
	Versions(ctx context.Context, ids []string) (map[string]int64, error)
	// RequestCancel records the wish once, makes the task due and fences a poll that is under way, which is waited for; a
	// cancel under way keeps its lease. A final task is returned as it is. Fault: TASK_NOT_FOUND.
	RequestCancel(ctx context.Context, id string) (*Task, error)

	// Claim leases up to limit due tasks to worker, by due time, then id, in one statement that skips locked rows.
	Claim(ctx context.Context, worker string, limit int) ([]Claim, error)
	// Renew extends leases and returns those that are lost. A row that is locked is not lost; it is extended next time.
	Renew(ctx context.Context, holds []Hold) (lost []Hold, err error)
	// Settle ends claims with what came of them, in the order given. Hand in the outcome of a claim that is known to be
	// lost, too: it is dropped, but a poll that RequestCancel fenced keeps its task from being claimed until it is over,
	// so that the remote is not called twice at once, and this says that it is. A row that cannot be written is Dropped,
	// the others are settled, and the error says why.
	Settle(ctx context.Context, outcomes []Outcome) ([]Settled, error)
	// Release gives claims back that nothing was done for: they are due at once. Lost ones are none of its business,
	// but for a fenced poll, which it frees as Settle does.
	Release(ctx context.Context, holds []Hold) error
	// NextDue returns how long it is, from the database's now, until a task is claimable, 0 or less if one is. False: none will be.
	NextDue(ctx context.Context) (time.Duration, bool, error)

	// Expire fails up to limit tasks that are past their time, and returns their ids.
	Expire(ctx context.Context, limit int) ([]string, error)
	// Prune deletes up to limit final tasks that are past their retention, with all that belongs to them.
	Prune(ctx context.Context, limit int) (int, error)
}

// Workers keeps who works, so that a wish is not taken when nobody would see to it.
type Workers interface {
	// Beat says that a worker lives for another ttl.
	Beat(ctx context.Context, worker string, ttl time.Duration) error
	// Leave says that it has gone.
	Leave(ctx context.Context, worker string) error
	// Alive reports whether any worker lives.
	Alive(ctx context.Context) (bool, error)
}
