package pgstore

import (
	"sync"
	"time"
)

const (
	// floorFor is how long claims may leave out what is below the floor.
	floorFor = time.Second
	// floorMargin is how far below the newest due time that was claimed the floor is: room for transactions that wrote an
	// earlier one and commit only now.
	floorMargin = 200 * time.Millisecond
)

// floor is the due time from which on a claim looks for rows while there are more than it takes. Below it the index is
// full of entries of rows that have moved on, which every claim would pass until the next vacuum.
//
// The floor hides nothing for long: a claim that finds less than it wants above it looks below, and once in floorFor one
// looks at all rows in any case. Without a backlog there is no floor.
type floor struct {
	mu    sync.Mutex
	due   time.Time // the newest that was claimed while there was a backlog; zero without one
	whole time.Time // when all was last looked at
}

// lowest is a due time that none is below.
func lowest() time.Time { return time.Unix(0, 0) }

// get returns from where the next claim looks.
func (f *floor) get() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); f.due.IsZero() || now.Sub(f.whole) >= floorFor {
		f.whole = now
		return lowest()
	}
	return f.due.Add(-floorMargin)
}

// set says what a claim took, and whether it took as many as it wanted.
func (f *floor) set(claims []leased, full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !full {
		f.due = time.Time{}
		return
	}
	for _, c := range claims {
		if c.due.After(f.due) {
			f.due = c.due
		}
	}
}
