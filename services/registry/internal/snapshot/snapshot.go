// Package snapshot is the noun of the registry: an immutable, content-addressed configuration of all MCP servers,
// and the activations that made one or another of them the effective one.
//
//	content ──Encode──▶ snap_<32 hex>          the same content has the same id, whoever encodes it, wherever
//	   │
//	Publish ──▶ revision n+1 ──▶ effective     revisions rise in the order of their commits and may have gaps
//
// # Holds
//
// An activation may hold: while it is the newest one, Publish makes nothing effective and records a candidate.
//
//	           Activate            Publish                 Release
//	effective ─────────▶ holding ─────────▶ candidate ... ─────────▶ the newest candidate is effective
//	    └───── the first candidate ────────────▲
//
// The state of the hold is that of the newest activation alone, so it outlives every process and is one for all replicas.
//
// # Guarantees
//
// A stored snapshot never changes. It holds no literal secret: where an entry has one, the snapshot has a reference
// {"$secret": field path, "mac": keyed hash}, and the literal is kept encrypted beside it, so that the secrets of
// every snapshot that is still stored can be resolved. Those that none refers to go once they have not been in force or
// used for long enough; see [Store].StaleSecrets. Publishing the content that is effective already makes no
// revision, however many replicas do it at once.
//
// # Not guaranteed
//
// Where an entry was defined ([Entry].Source) is not part of a snapshot's identity: the same entries read from
// another path are the same snapshot, which names the place where they were first seen.
//
// A [Store] keeps them, one per engine: pgstore and litestore; snapshottest is the suite that both pass.
// Only the registry uses this package.
package snapshot

import (
	"context"
	"errors"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
)

// ID names a snapshot: "snap_" and 32 hex digits.
type ID string

// Revision numbers an activation, from 1; 0 is before the first.
type Revision int64

// Activation is one act of making a snapshot the effective one.
type Activation struct {
	Revision     Revision
	ID           ID
	ActivateTime time.Time // UTC, by the database's clock
	Actor        string    // who did it, such as "files"
	Reason       string    // why, or what changed
	// HoldTime is since when it holds: later than ActivateTime never, earlier where a held snapshot was amended. Zero
	// if it does not hold.
	HoldTime time.Time
}

// Holds reports whether a publication makes a candidate for as long as a is the newest activation.
func (a Activation) Holds() bool { return !a.HoldTime.IsZero() }

// CandidateNumber numbers candidates in the order of their commits, from 1, with gaps; 0 is none.
type CandidateNumber int64

// Head is the effective activation and the newest candidate behind it.
type Head struct {
	Activation
	Candidate CandidateNumber
}

// Candidate is a snapshot that waits for a hold to be released.
type Candidate struct {
	Number      CandidateNumber
	ID          ID
	RecordTime  time.Time
	Actor       string
	Reason      string // what it changes against the one before
	ServerCount int
}

// Stored is a snapshot as the store has it. Activation is its newest one; Revision is 0 if it never was effective.
type Stored struct {
	Activation
	Content    []byte // what Encode returned
	CreateTime time.Time
}

// Listed is an activation in a list. ServerCount is the number of entries of its snapshot.
type Listed struct {
	Activation
	CreateTime  time.Time
	ServerCount int
}

// Secret is a literal that an entry holds, encrypted. Server, FieldPath and MAC identify it.
type Secret struct {
	Ref
	Ciphertext []byte
	KeyID      string // which key it was encrypted under
}

// Ref refers to a secret from within the entry of a server.
type Ref struct {
	Server    string
	FieldPath string // such as "headers.Authorization"
	MAC       string // keyed hash of the literal, so that a changed literal is another secret
}

// Publication asks for a content to become effective.
type Publication struct {
	ID          ID
	Content     []byte
	ServerCount int
	Secrets     []Secret // those that the content refers to; known ones are left as they are
	// Base is the effective revision that the publisher saw before it read what it publishes. Should another have
	// been published since, what was read may be older than that: the publisher reads again. BaseCandidate is the same
	// for candidates.
	Base          Revision
	BaseCandidate CandidateNumber
	// Amends says that the content is the held one with something taken out of it, which becomes effective in its
	// place: the activation holds since the same time. On a head that does not hold it is ErrMoved.
	Amends bool
	Actor  string
	Reason string
	Retain Retention
}

// Choice asks for a stored snapshot to become effective.
type Choice struct {
	ID ID
	// Expect is what the caller believes to be effective; empty means whatever it is.
	Expect ID
	// Hold makes the activation hold. What was effective before becomes the first candidate, unless it held itself.
	Hold   bool
	Actor  string
	Reason string
	Retain Retention
}

// End asks for a hold to end.
type End struct {
	Actor  string
	Reason string
	Retain Retention
}

// Retention bounds what a store keeps. The effective snapshot and its activation are always kept.
type Retention struct {
	Snapshots   int // most recently activated ones; zero means 100
	Activations int // newest ones, beside the newest of each kept snapshot; zero means 1000
	Candidates  int // newest ones; zero means 20
}

// Published is what is effective afterwards. New says whether the call made that activation, Recorded whether it recorded
// a candidate instead.
type Published struct {
	Activation
	New      bool
	Recorded bool
}

// The errors of a [Store].
var (
	// ErrNone: nothing was ever activated.
	ErrNone = fault.New(fault.NotReady, "there is no snapshot yet: the registry has not published its first configuration")
	// ErrNotFound: there is no snapshot of that id.
	ErrNotFound = fault.New(fault.SnapshotNotFound, "no such snapshot: it never existed or is older than the ones kept; `ListSnapshots` lists those")
	// ErrMoved: another publication came between. Read the sources again and publish what they say then.
	ErrMoved = errors.New("another snapshot was activated meanwhile")
	// ErrConflict: another snapshot is effective than the caller of Activate believes.
	ErrConflict = fault.New(fault.ConfigConflict, "another snapshot is current than the etag names: look at it with `GetSnapshot`, and give its id as the etag")
)

// Store keeps snapshots, activations, candidates and encrypted secrets. Its methods may be called concurrently, by any
// number of registries on one database. Times come from the database.
type Store interface {
	// Head returns the effective activation, or ErrNone. It is cheap enough to be asked every second.
	Head(ctx context.Context) (Head, error)
	// Publish makes p's content effective in one transaction: secrets, snapshot and activation, then prunes what
	// p.Retain no longer covers. If the content is effective already it changes nothing, whatever p.Base says;
	// else, if the effective revision is not p.Base, it changes nothing and returns ErrMoved. If the effective
	// activation holds and p does not amend it, the same goes for the newest candidate: the content becomes one.
	Publish(ctx context.Context, p Publication) (Published, error)
	// Activate makes a stored snapshot effective under the next revision, the effective one too. It returns ErrNotFound
	// where it is not stored, ErrConflict where c.Expect is not effective, and ErrNone where nothing is.
	Activate(ctx context.Context, c Choice) (Published, error)
	// Release ends a hold: the newest candidate becomes effective under the next revision. Where nothing holds it changes
	// nothing.
	Release(ctx context.Context, e End) (Published, error)
	// Candidates returns the candidates, newest first.
	Candidates(ctx context.Context) ([]Candidate, error)
	// Get returns a snapshot with its newest activation, or ErrNotFound.
	Get(ctx context.Context, id ID) (Stored, error)
	// List returns at most limit activations below the revision before, newest first; before 0 starts at the newest.
	List(ctx context.Context, before Revision, limit int) ([]Listed, error)
	// Secrets returns those of refs that are stored, in no order.
	Secrets(ctx context.Context, refs []Ref) ([]Secret, error)
	// UseSecrets notes that refs are in use, to [UseGranularity]. Publish does so for the secrets of a publication.
	UseSecrets(ctx context.Context, refs []Ref) error
	// StaleSecrets returns at most limit secrets that were not in use for longer than unused.
	StaleSecrets(ctx context.Context, unused time.Duration, limit int) ([]Ref, error)
	// DropSecrets deletes those of refs that were not in use for longer than unused at this moment, and says how many
	// those were. The caller has made sure that no stored snapshot refers to them.
	DropSecrets(ctx context.Context, refs []Ref, unused time.Duration) (int, error)
}

// UseGranularity is how exactly a store knows when a secret was used.
const UseGranularity = time.Hour

const (
	retainSnapshots   = 100
	retainActivations = 1000
	retainCandidates  = 20
)

// OrDefault returns r with its zero fields set. Drivers call it.
func (r Retention) OrDefault() Retention {
	if r.Snapshots <= 0 {
		r.Snapshots = retainSnapshots
	}
	if r.Activations <= 0 {
		r.Activations = retainActivations
	}
	if r.Candidates <= 0 {
		r.Candidates = retainCandidates
	}
	return r
}
