package notification

import (
	"cmp"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/outbox"
)

// The outcomes of attempts.
const (
	outcomeDelivered  = "delivered"
	outcomeRetry      = "retry"
	outcomeDeferred   = "deferred"
	outcomeDeadLetter = "dead_letter"
)

// MaxAttempts is how many attempts of a delivery are kept, the newest.
const MaxAttempts = 20

// Bounds of stored text.
const (
	maxErrorBytes   = 4000
	maxStatusBytes  = 200
	maxExcerptBytes = 1 << 10
)

// bounded returns text that every engine can hold, of at most n bytes.
func bounded(text string, n int) string {
	text = strings.ToValidUTF8(text[:min(n, len(text))], "") // half a character at the end goes too
	return strings.ReplaceAll(text, "\x00", "?")
}

// EventID returns the id of a task's event, `<task_id>:<event_version>`.
func EventID(taskID string, version int64) string {
	return taskID + ":" + strconv.FormatInt(version, 10)
}

// ParseEventID takes the id of an event apart. False: it is not one.
func ParseEventID(id string) (taskID string, version int64, ok bool) {
	i := strings.LastIndexByte(id, ':')
	if i <= 0 {
		return "", 0, false
	}
	taskID = id[:i]
	version, err := strconv.ParseInt(id[i+1:], 10, 64)
	if err != nil || version < 1 || EventID(taskID, version) != id {
		return "", 0, false
	}
	return taskID, version, true
}

// Addressed is an event on its way to a sink.
type Addressed struct {
	Sink  string
	Event Event
}

// Address returns what is to be recorded of events: for each task and sink the newest, in the order of task and sink.
// Where an event names no sink, fallback is the one.
func Address(events []outbox.Event, fallback string) []Addressed {
	out := make([]Addressed, len(events))
	for i, e := range events {
		out[i] = Addressed{Sink: cmp.Or(e.Sink, fallback), Event: Event{
			ID: EventID(e.TaskID, e.Version), TaskID: e.TaskID, Version: e.Version, TaskName: e.TaskName, Scope: e.Scope,
			RunID: e.RunID, Body: e.Body, Traceparent: e.Traceparent, Created: e.Created,
		}}
	}
	slices.SortFunc(out, func(a, b Addressed) int {
		return cmp.Or(cmp.Compare(a.Event.TaskID, b.Event.TaskID), cmp.Compare(a.Sink, b.Sink), -cmp.Compare(a.Event.Version, b.Event.Version))
	})
	return slices.CompactFunc(out, func(a, b Addressed) bool { return a.Event.TaskID == b.Event.TaskID && a.Sink == b.Sink })
}

// Admits reports whether an owner's events are in the part of a stream that asked names; zero parts choose all.
func Admits(asked, owner authn.Scope) bool {
	return (asked.UserID == "" || asked.UserID == owner.UserID) && (asked.ThreadID == "" || asked.ThreadID == owner.ThreadID)
}

// ErrNotFound is the answer for an unknown or foreign delivery.
var ErrNotFound = fault.New(fault.NotificationNotFound,
	"there is no such notification: it may have been deleted after notifier's retention, or belong to another sink or scope")

// Position is a place in the list of deliveries, which is ordered by Created, then ID, both falling.
type Position struct {
	Created time.Time // to the microsecond
	ID      string
}

// Token returns p in the form of Page.Next.
func (p Position) Token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.Created.UnixMicro(), 10) + " " + p.ID))
}

// ParseToken reads what [Position.Token] returned. Fault: INVALID_ARGUMENTS.
func ParseToken(token string) (Position, error) {
	refused := fault.New(fault.InvalidArguments, "page_token is not one that a list of notifications returned: begin again without it").
		WithViolations(fault.Violation{Field: "page_token", Description: "is not valid"})
	text, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return Position{}, refused
	}
	micros, id, _ := strings.Cut(string(text), " ")
	us, err := strconv.ParseInt(micros, 10, 64)
	hex, prefixed := strings.CutPrefix(id, "ntf_")
	if err != nil || !prefixed || len(hex) != 32 || strings.Trim(hex, "0123456789abcdef") != "" {
		return Position{}, refused
	}
	p := Position{Created: time.UnixMicro(us).UTC(), ID: id}
	if p.Token() != token || us < 0 || us > 253402300799_000000 { // the year 9999, which every engine can hold
		return Position{}, refused
	}
	return p, nil
}

// NewPage makes a page of at most limit from deliveries in the order of the list, of which there are limit + 1 where
// another page follows.
func NewPage(found []*Delivery, limit int) Page {
	var p Page
	if len(found) > limit {
		found = found[:limit]
		if limit > 0 {
			last := found[limit-1]
			p.Next = Position{Created: last.Event.Created, ID: last.ID}.Token()
		}
	}
	for _, d := range found {
		p.Notifications = append(p.Notifications, d.Notification())
	}
	return p
}
