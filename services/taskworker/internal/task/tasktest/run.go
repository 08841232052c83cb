package tasktest

import (
	"strings"
	"testing"

	"github.com/toolherd/toolherd/services/taskworker/internal/task"
)

// Pass returns the statements that move all times back by one parameter, which shift turns into what a column of time
// is lessened by.
func Pass(shift string) []string {
	var out []string
	for table, columns := range map[string][]string{
		"task_reservation": {"create_time", "expire_time"},
		"task_task": {
			"cancel_requested_time", "last_poll_time", "create_time", "commit_time", "update_time", "end_time", "expire_time", "expire_limit_time",
		},
		"task_live":    {"due_time", "poll_time", "cancel_time", "last_poll_time"},
		"task_attempt": {"end_time", "next_due_time"},
		"task_worker":  {"expire_time"},
	} {
		for k, c := range columns {
			columns[k] = c + " = " + c + " - " + shift
		}
		out = append(out, "update "+table+" set "+strings.Join(columns, ", "))
	}
	return out
}

// Run runs the suite. Open returns a bench on an empty database with the current schema.
func Run(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, Bench){
		"a task goes from submit to its end":                            lifecycle,
		"names are bounded, ids are random":                             names,
		"a reservation is neither listed nor polled":                    reservationIsNoTask,
		"a repeated request finds its first submit":                     repeatedRequest,
		"requests of others, and those without an id, are not the same": otherRequests,
		"a request that was not executed may be made again":             notExecuted,
		"an extended reservation lives on, an expired one does not":     extend,
		"a reservation that runs out is a failed task, with its event":  reap,
		"a submit of unknown outcome is a failed task, with its event":  abandonUnknown,
		"a commit is repeated with the same answer":                     commitTwice,
		"a late commit leaves its handle on the failed task":            lateCommit,
		"a remote task is taken once":                                   duplicate,
		"a handle that comes unasked is a task at once":                 unasked,
		"ConcurrentSafe: of equal requests at once one is reserved":     reserveAtOnce,
		"ConcurrentSafe: of equal handles at once one is taken":         commitAtOnce,
		"claims come by due time, then id":                              claimOrder,
		"a claim has what its worker needs":                             claimContent,
		"a live lease keeps others away, a lost one does not":           leases,
		"a write needs the fence and a live lease":                      fences,
		"a renewed lease lives on":                                      renew,
		"a released claim is due at once":                               release,
		"a final task takes no more writes":                             terminalForEver,
		"every step goes into the record, of which 20 are kept":         attempts,
		"a good poll clears what bad ones left":                         pollErrors,
		"the gap between polls grows while nothing changes":             pollGaps,
		"hints move polls within bounds":                                hints,
		"failing polls are spaced out":                                  pollBackoff,
		"tracking is degraded after three errors, once":                 degraded,
		"a permanent failure ends a task":                               permanent,
		"a cancel is recorded once":                                     requestCancel,
		"a cancel waits for the poll that it fences":                    cancelFencesPoll,
		"a repeated cancel keeps the lease of the first":                cancelKeepsLease,
		"an acknowledged cancel lets polls go on and is sent again":     cancelAcked,
		"a failing cancel is spaced out, and then polls go on":          cancelFails,
		"the remote says how a cancelled task ends":                     cancelOutcome,
		"questions are asked once, and once more when asked again":      questions,
		"an event is committed with its task":                           events,
		"results find their place by size":                              results,
		"texts that no engine holds are stored all the same":            hostileTexts,
		"a task past its time fails":                                    expire,
		"the earliest of three times ends a task":                       expireTimes,
		"an ended task goes after its retention, with all it has":       prune,
		"a binding is stored once, while it is used":                    bindings,
		"lists are newest first, page by page":                          pages,
		"lists are filtered":                                            filters,
		"versions rise with what an owner sees":                         versions,
		"workers live as long as they say":                              workers,
		"ConcurrentSafe: no task is claimed twice under one fence":      claimers,
		"ConcurrentSafe: everyone at once":                              everyone,
		"a row that cannot be written hinders no other":                 badRow,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t, Policy())) })
	}
}

// TASK-001
func lifecycle(t *testing.T, b Bench) {
	made := b.submit(t, 1)
	if made.Status != task.Submitted || made.Version != 1 || made.Name != "task 1" || made.NextPoll.Sub(made.Created) != Policy().PollInterval {
		t.Errorf("the new task is %+v", made)
	}
	b.none(t, "before the first poll is due")
	b.Pass(t, Policy().PollInterval)
	if s := b.done(t, says(b.one(t, task.Poll), working())); !s.Changed || s.Event || s.Status != task.Working {
		t.Errorf("settled as %+v", s)
	}
	b.Pass(t, Policy().PollInterval)
	ask := task.Snapshot{Status: task.InputRequired, InputRequired: []byte(`{"q":"which?"}`)}
	if s := b.done(t, says(b.one(t, task.Poll), ask)); !s.Changed || !s.Event || s.Status != task.InputRequired {
		t.Errorf("settled as %+v", s)
	}
	b.Pass(t, Policy().InputRequiredPollInterval)
	if s := b.done(t, says(b.one(t, task.Poll), completed(`{"a":1}`))); !s.Changed || !s.Event || s.Status != task.Completed {
		t.Errorf("settled as %+v", s)
	}
	got := b.get(t, made.ID)
	if got.Status != task.Completed || string(got.Result) != `{"a":1}` || got.InputRequired != nil || got.Version != 4 || len(got.Attempts) != 3 {
		t.Errorf("the task is %+v", got)
	}
	if got.Ended.IsZero() || !got.NextPoll.IsZero() {
		t.Errorf("the final task ended at %v and is due at %v", got.Ended, got.NextPoll)
	}
	if _, due, err := b.NextDue(t.Context()); err != nil || due {
		t.Errorf("something is due: %v, %v", due, err)
	}
}
