package worker

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

func TestLargeResultsMakeSmallBatches(t *testing.T) {
	large := json.RawMessage(`"` + strings.Repeat("x", 10<<20) + `"`)
	s := &settler{items: make(chan item, 10)}
	for n := range 10 {
		i := item{outcome: task.Outcome{Snapshot: &task.Snapshot{Status: task.Completed}}}
		if n < 5 {
			i.outcome.Snapshot.Result = large
		}
		s.items <- i
	}
	close(s.items)
	var batches []int
	for open := true; ; {
		var batch []item
		if batch, open = s.take(nil, open); len(batch) == 0 {
			break
		}
		batches = append(batches, len(batch))
	}
	if want := []int{2, 2, 6}; !slices.Equal(batches, want) {
		t.Errorf("batches of %v, want %v: two large results fill one", batches, want)
	}
}
