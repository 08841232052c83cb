package task

import (
	"encoding/base64"
	"encoding/json"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
)

// Limits of a page.
const (
	DefaultPage = 50
	MaxPage     = 100
)

// Cursor is the last task of a page: the next page begins after it.
type Cursor struct {
	Created time.Time
	ID      string
}

// cursorText is what a token holds.
type cursorText struct {
	Micros int64  `json:"t"`
	ID     string `json:"i"`
}

// Token returns the cursor as an opaque page token.
func (c Cursor) Token() string {
	return base64.RawURLEncoding.EncodeToString(compact(cursorText{c.Created.UnixMicro(), c.ID}))
}

// ParseCursor reads a token. Fault: INVALID_ARGUMENTS. The empty token is the zero cursor: the first page.
func ParseCursor(token string) (Cursor, error) {
	if token == "" {
		return Cursor{}, nil
	}
	var c cursorText
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	// The bounds are those of what every engine takes for a time.
	if err != nil || checkText("", c.ID, 1, maxRefChars) != nil || c.Micros <= 0 || c.Micros > 1<<52 {
		const wrong = "is not a next_page_token of ListTasks: leave it empty to begin with the newest task"
		return Cursor{}, fault.New(fault.InvalidArguments, "page_token %s", wrong).
			WithViolations(fault.Violation{Field: "page_token", Description: wrong})
	}
	return Cursor{time.UnixMicro(c.Micros).UTC(), c.ID}, nil
}

// PageOf cuts a list that was read with one task more than the limit, so that it is known whether more follow.
func PageOf(tasks []*Task, limit int) Page {
	if len(tasks) <= limit {
		return Page{Tasks: tasks}
	}
	last := tasks[limit-1]
	return Page{Tasks: tasks[:limit], Next: Cursor{last.Created, last.ID}.Token()}
}

// Size returns how many tasks a page of f has.
func (f Filter) Size() int {
	if f.Limit <= 0 {
		return DefaultPage
	}
	return min(f.Limit, MaxPage)
}
