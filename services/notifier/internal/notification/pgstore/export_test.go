package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// The statements of loops, with numbered parameters.
const (
	DueSQL          = dueSQL
	NextDueSQL      = nextDueSQL
	LockForTasksSQL = lockForTasksSQL
	ListSQL         = listSQL
	PruneSQL        = pruneSQL
	ForgetSQL       = forgetSQL
	NextSQL         = nextSQL
	NextInScopeSQL  = nextInScopeSQL
	OfferSQL        = offerSQL
	WithdrawSQL     = withdrawSQL
	StatesSQL       = statesSQL
	LockForTaskSQL  = lockForTaskSQL
	ThinAttemptsSQL = thinAttemptsSQL
	ForgetGroupsSQL = forgetGroupsSQL
	LockBareSQL     = lockBareSQL
	AcknowledgeSQL  = acknowledgeSQL
	ResumeSQL       = resumeSQL
	SeenSQL         = seenSQL
	LockOneSQL      = lockOneSQL
	AttemptsSQL     = attemptsSQL
	SaveStatesSQL   = saveStatesSQL
	LockAllSQL      = lockAllSQL
)

// LockSequence locks the sequence until the end of tx.
func LockSequence(ctx context.Context, tx pgx.Tx) error {
	_, err := lockSequence(ctx, tx)
	return err
}
