// Package mark is what the registry notes about entries beside what their files say: which ones the API switched on or
// off where it may not write the file, and which ones it wrote.
//
//	overlay   (file, server) ──▶ on or off      the file stays untouched; it counts until the API says otherwise
//	written   (file, server, definition)        such an entry resolves only what registry.env_refs lists
//
// A definition is an entry without its literal secrets and without its switch, hashed. An entry that somebody defines anew
// in the file itself is therefore no longer one that the API wrote; to change a literal or the switch there is not enough.
//
// A [Store] keeps the marks, one per engine: pgstore and litestore; marktest is the suite that both pass. Only the
// registry uses this package.
package mark

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// Place is where an entry is defined.
type Place struct {
	Path   string // of its file, as it is found
	Server string
}

// Overlay switches an entry on or off against what its file says.
type Overlay struct {
	Place
	Enabled bool
}

// Written is a definition that the API wrote, in the form of [Definition].
type Written struct {
	Place
	Definition string
}

// Set is all marks at one moment. The zero value has none. It is not to be changed.
type Set struct {
	Overlays []Overlay
	Written  []Written
}

// Enabled returns whether the entry at p is switched on or off; ok is false where its file decides.
func (s Set) Enabled(p Place) (enabled, ok bool) {
	i := slices.IndexFunc(s.Overlays, func(o Overlay) bool { return o.Place == p })
	if i < 0 {
		return false, false
	}
	return s.Overlays[i].Enabled, true
}

// IsWritten reports whether the API wrote the entry raw that stands at p.
func (s Set) IsWritten(p Place, raw json.RawMessage) bool {
	i := slices.IndexFunc(s.Written, func(w Written) bool { return w.Place == p })
	return i >= 0 && slices.Contains(s.Written, Written{p, Definition(p.Server, raw)})
}

// Definition returns the hex SHA-256 of the entry raw of server without its literal secrets, enabled and disabled. It says
// nothing about the secrets.
func Definition(server string, raw json.RawMessage) string {
	public, _ := serverconfig.Externalize(server, raw, func(string, []byte) string { return "" })
	h := sha256.New()
	root, err := strictjson.Parse(public, limits)
	if err != nil || root.Kind() != strictjson.Object {
		h.Write(public)
		return hex.EncodeToString(h.Sum(nil))
	}
	for key, v := range root.Members() { // Externalize returns them in order
		if key != "enabled" && key != "disabled" {
			value := v.Canonical()
			fmt.Fprintf(h, "%d:%s%d:%s", len(key), key, len(value), value)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// limits are far above what an entry without its literals can need.
var limits = strictjson.Limits{Bytes: 256 << 20, Depth: 2 * serverconfig.MaxDepth}

// Compare orders places.
func Compare(a, b Place) int {
	if c := strings.Compare(a.Path, b.Path); c != 0 {
		return c
	}
	return strings.Compare(a.Server, b.Server)
}

// Store keeps marks. Its methods may be called concurrently, by any number of registries on one database.
type Store interface {
	// All returns every mark, in no order.
	All(ctx context.Context) (Set, error)
	// Switch sets the overlay of o's place. Actor is who did it.
	Switch(ctx context.Context, o Overlay, actor string) error
	// Clear removes the overlay of a place, if it has one.
	Clear(ctx context.Context, p Place) error
	// Add notes definitions that are about to be written, beside those that are noted. Known ones stay as they are.
	Add(ctx context.Context, written []Written) error
	// Keep forgets all definitions of the file at path but those of written.
	Keep(ctx context.Context, path string, written []Written) error
}
