// Package binding is what a task keeps of the server it was submitted to: by value, so that configuration may change at
// any moment without the task noticing.
//
// A [Binding] names the driver, the server, the tools, and holds the server's entry in its public form. It contains no
// secret: where the entry has a literal, the binding has the reference to the registry's store, and references to the
// environment stay references. It travels as JSON with a version, is stored once per [Binding.Fingerprint], and is opaque
// to everyone but toolproxy.
//
// [Binding.Entry] decides what a background call connects to: the bound entry, with today's credentials where today's entry
// of that name leads to the same place.
package binding

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/toolproxy/internal/driver"
)

// version is that of the JSON. One that is higher was written by a newer toolproxy.
const version = 1

// Binding is what a task keeps. It is immutable.
type Binding struct {
	Version     int             `json:"v"`
	Driver      string          `json:"driver"` // such as driver.OrdinaryName
	Server      string          `json:"server"` // its name
	SourceClass string          `json:"source_class"`
	Connection  string          `json:"connection"`  // serverconfig.Fingerprint of Public
	SnapshotID  string          `json:"snapshot_id"` // under which it was submitted, for the record
	Toolset     Toolset         `json:"toolset"`
	Public      json.RawMessage `json:"entry"` // public JSON of the server's entry, without what is about listing its tools
}

// Toolset is the kind of task, with the tools' names on their server.
type Toolset struct {
	Name            string             `json:"name"`
	SubmitTool      string             `json:"submit_tool"`
	StatusTool      string             `json:"status_tool"`
	CancelTool      string             `json:"cancel_tool"`
	AnswerTool      string             `json:"answer_tool,omitempty"`
	BackgroundScope serverconfig.Scope `json:"background_scope"` // in which session background calls run
}

// ToolsetOf returns the toolset of an entry as bindings keep it.
func ToolsetOf(t serverconfig.TaskToolset) Toolset {
	return Toolset{
		Name: t.Name, SubmitTool: t.SubmitTool, StatusTool: t.StatusTool, CancelTool: t.CancelTool, AnswerTool: t.AnswerTool,
		BackgroundScope: t.BackgroundScope,
	}
}

// Origin is where a task comes from. All fields must be set.
type Origin struct {
	Driver      string
	Server      string
	SourceClass string          // of the file that defines the entry
	Public      json.RawMessage // public JSON of the entry, as it stands in the snapshot
	SnapshotID  string
	Toolset     Toolset
}

// New binds a task to where it comes from.
func New(o Origin) *Binding {
	return &Binding{
		Version: version, Driver: o.Driver, Server: o.Server, SourceClass: o.SourceClass,
		Connection: serverconfig.Fingerprint(o.Public), SnapshotID: o.SnapshotID, Toolset: o.Toolset, Public: pruned(o.Public),
	}
}

// Tools returns the tools as drivers name them.
func (b *Binding) Tools() driver.Tools {
	t := b.Toolset
	return driver.Tools{Submit: t.SubmitTool, Status: t.StatusTool, Cancel: t.CancelTool, Answer: t.AnswerTool}
}

// Fingerprint returns the hex SHA-256 over what matters to background calls: all but the snapshot, and of the entry what
// decides about the connection. Tasks of one fingerprint may share one binding.
func (b *Binding) Fingerprint() string {
	h := sha256.New()
	t := b.Toolset
	for _, part := range []string{
		"toolherd binding", fmt.Sprint(b.Version), b.Driver, b.Server, b.SourceClass, b.Connection,
		t.Name, t.SubmitTool, t.StatusTool, t.CancelTool, t.AnswerTool, string(t.BackgroundScope),
	} {
		fmt.Fprintf(h, "%d:%s", len(part), part) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Encode returns the binding as JSON. The error says that the entry is not JSON.
func (b *Binding) Encode() ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // the entry stays as it was written
	if err := enc.Encode(b); err != nil {
		return nil, fmt.Errorf("encode binding of server %s: %w", b.Server, err)
	}
	return bytes.TrimSpace(out.Bytes()), nil
}

// Decode reverses [Binding.Encode].
func Decode(raw []byte) (*Binding, error) {
	var b Binding
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, fmt.Errorf("decode binding: %w", err)
	}
	switch {
	case b.Version > version:
		return nil, fmt.Errorf("decode binding: it has version %d, this toolproxy knows %d: upgrade it", b.Version, version)
	case b.Version < 1 || b.Server == "" || b.Driver == "" || len(b.Public) == 0:
		return nil, errors.New("decode binding: it is not complete")
	}
	return &b, nil
}
