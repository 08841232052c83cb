// Package snapshot is the noun of the registry: an immutable, content-addressed configuration of all MCP servers,
// and the activations that made one or another of them the effective one.
//
//	content ──Encode──▶ snap_<32 hex>          the same content has the same id, whoever encodes it, wherever
//	   │
//	Publish ──▶ revision n+1 ──▶ effective     revisions rise in the order of their commits and may have gaps
//
// # Guarantees
//
// A stored snapshot never changes. It holds no literal secret: where an entry has one, the snapshot has a reference
// {"$secret": field path, "mac": keyed hash}, and the literal is kept encrypted beside it, so that the secrets of
// every snapshot that is still stored can be resolved. Publishing the content that is effective already makes no
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
}

// Stored is a snapshot as the store has it. Activation is its newest one.
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
	// been published since, what was read may be older than that: the publisher reads again.
	Base   Revision
	Actor  string
	Reason string
	Retain Retention
}

// Retention bounds what a store keeps. The effective snapshot and its activation are always kept.
type Retention struct {
	Snapshots   int // most recently activated ones; zero means 100
	Activations int // newest ones, beside the newest of each kept snapshot; zero means 1000
}

// Published is the activation that is effective after a Publish; New says whether that call made it.
type Published struct {
	Activation
	New bool
}

// The errors of a [Store].
var (
	// ErrNone: nothing was ever activated.
	ErrNone = fault.New(fault.NotReady, "there is no snapshot yet: the registry has not published its first configuration")
	// ErrNotFound: there is no snapshot of that id.
	ErrNotFound = fault.New(fault.SnapshotNotFound, "no such snapshot: it never existed or is older than the ones kept; `ListSnapshots` lists those")
	// ErrMoved: another publication came between. Read the sources again and publish what they say then.
	ErrMoved = errors.New("another snapshot was activated meanwhile")
)

// Store keeps snapshots, activations and encrypted secrets. Its methods may be called concurrently, by any number of
// registries on one database. Times come from the database.
type Store interface {
	// Head returns the effective activation, or ErrNone. It is cheap enough to be asked every second.
	Head(ctx context.Context) (Activation, error)
	// Publish makes p's content effective in one transaction: secrets, snapshot and activation, then prunes what
	// p.Retain no longer covers. If the content is effective already it changes nothing, whatever p.Base says;
	// else, if the effective revision is not p.Base, it changes nothing and returns ErrMoved.
	Publish(ctx context.Context, p Publication) (Published, error)
	// Get returns a snapshot with its newest activation, or ErrNotFound.
	Get(ctx context.Context, id ID) (Stored, error)
	// List returns at most limit activations below the revision before, newest first; before 0 starts at the newest.
	List(ctx context.Context, before Revision, limit int) ([]Listed, error)
	// Secrets returns those of refs that are stored, in no order.
	Secrets(ctx context.Context, refs []Ref) ([]Secret, error)
}

const (
	retainSnapshots   = 100
	retainActivations = 1000
)

// OrDefault returns r with its zero fields set. Drivers call it.
func (r Retention) OrDefault() Retention {
	if r.Snapshots <= 0 {
		r.Snapshots = retainSnapshots
	}
	if r.Activations <= 0 {
		r.Activations = retainActivations
	}
	return r
}
