// Package source reads the files that define MCP servers and notices when what they say changes.
//
// [Layers] says which files those are, lowest to highest. [Files] reads them; its owner calls [Files.Check] now and
// then and [Files.Wait] between, from one goroutine:
//
//	Watch ──▶ Check ──▶ Wait ──(event, re-check interval, debounce)──▶ Check ──▶ …
//
// # Guarantees
//
// A check hashes the whole of every file: it finds an edit of equal size in the same second, an mtime that stays or
// goes back, an atomic replacement and a symlink that leads elsewhere. Content that moved while it was read is
// read again. File events only make a check come sooner; without any, one comes every [RecheckInterval].
//
// A file that breaks, becomes unreadable or, where it was named explicitly, vanishes keeps its last good content and
// says what is wrong with the present one. A discovered file counts as deleted once it has been missing for
// [DeleteDebounce], so that a program that deletes and rewrites it changes nothing.
//
// The class of a layer says how far its file is trusted. It is that of the place where the file was found,
// whatever a symlink there leads to.
package source

import "time"

const (
	// RecheckInterval is the longest time between two checks.
	RecheckInterval = 2 * time.Second
	// DeleteDebounce is how long a discovered file must be missing to count as deleted.
	DeleteDebounce = 2 * time.Second
	// settle is how long a file must have been quiet after an event before it is read: an editor's write is seldom one.
	settle = 30 * time.Millisecond
	// settleAtMost bounds that, for a file that is never quiet.
	settleAtMost = 500 * time.Millisecond
)
