package pgstore

// What loops run, for the tests of their plans.
const (
	ClaimSQL     = claimSQL
	NextDueSQL   = nextDueSQL
	ExpirableSQL = expirableSQL
	ExpiredSQL   = expiredSQL
	PrunableSQL  = prunableSQL
	RenewSQL     = renewSQL
	LockFreeSQL  = lockFreeSQL
	RestSQL      = restSQL
	VersionsSQL  = versionsSQL
)

// ListSQL is the statement of a page.
var ListSQL = listSQL
