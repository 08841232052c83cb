// Package verdict decides what is in force: which entry of which file counts, and what toolproxy may do with it.
//
//	files, lowest to highest ──▶ one entry per name, whole, the highest ──▶ disabled | untrusted | error | active
//
// Precedence comes first: an entry that is rejected, untrusted or invalid never brings back the one it shadows. The states
// are tried in the order above. An entry that becomes invalid keeps its last good definition, marked stale, for as
// long as the process runs; one that asks for something this version cannot do does not, since calling it without
// that is what must not happen.
//
// The package reads no file, no environment and no clock.
package verdict

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/registry/internal/mark"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/source"
)

// Policy is what verdicts depend on beside the files.
type Policy struct {
	// TrustProject trusts the entries of project files; else they are untrusted and TrustCommand says what trusts them.
	TrustProject bool
	TrustCommand string
	// SkipInterceptors are mcpInterceptors entries that may be left out where they cannot be resolved.
	SkipInterceptors []string
	// NoTasks says that there are no durable tasks: entries with task_toolsets are in error.
	NoTasks bool
	// EnvRefs are the variables that an entry written through the API may refer to.
	EnvRefs []string
	// Key makes the keyed digests of literal secrets. Without one, an entry that has a literal secret is in error.
	Key *secret.Key
}

// Literal is a literal secret of an active entry.
type Literal struct {
	snapshot.Ref
	Value string
}

// Raw is the entry in force of some name, as written.
type Raw struct {
	JSON  json.RawMessage
	Layer source.Layer
}

// Result is what is in force.
type Result struct {
	Content  snapshot.Content
	Literals []Literal      // of the active entries
	Raw      map[string]Raw // by server name
	NoTasks  []string       // servers of operators' own files that are in error for want of durable tasks, by name
}

// Judge decides. It remembers the last good definitions, so that it serves one goroutine and one set of files.
type Judge struct {
	policy Policy
	good   map[place]json.RawMessage
}

// place is where an entry is defined.
type place struct{ path, name string }

// New returns a judge without memories.
func New(p Policy) *Judge { return &Judge{policy: p, good: map[place]json.RawMessage{}} }

// candidate is the entry in force of its name.
type candidate struct {
	serverconfig.RawServer
	file     *source.File
	switched bool // against what its file says, or as it says
	written  bool // through the API
}

// marked returns c as it is with what is noted about it.
func (c candidate) marked(marks mark.Set) candidate {
	at := mark.Place{Path: c.file.Path, Server: c.Name}
	c.written = marks.IsWritten(at, c.JSON)
	if enabled, ok := marks.Enabled(at); ok {
		c.JSON, c.switched = serverconfig.SetEnabled(c.JSON, enabled)
	}
	return c
}

// Decide returns what is in force where the files, lowest first, say what they say and nothing is noted beside them.
func (j *Judge) Decide(files []source.File) Result { return j.DecideMarked(files, mark.Set{}) }

// DecideMarked is [Judge.Decide] with what is noted about entries beside their files.
func (j *Judge) DecideMarked(files []source.File, marks mark.Set) Result {
	out := Result{Raw: map[string]Raw{}}
	seen := map[place]bool{}
	winners := map[string]candidate{}
	for i := range files {
		for _, s := range files[i].Document.Servers {
			winners[s.Name] = candidate{RawServer: s, file: &files[i]}
			seen[place{files[i].Path, s.Name}] = true
		}
	}
	unresolved := j.interceptors(files, &out.Content)
	for name, c := range winners {
		out.Raw[name] = Raw{JSON: c.JSON, Layer: c.file.Layer}
		entry, literals := j.decide(c.marked(marks), unresolved)
		out.Content.Servers = append(out.Content.Servers, entry)
		if entry.State == snapshot.Active {
			out.Literals = append(out.Literals, literals...)
		}
		if entry.State == snapshot.Error && entry.Class != snapshot.Project && strings.HasPrefix(entry.Reason, noTasks) {
			out.NoTasks = append(out.NoTasks, entry.Name)
		}
	}
	slices.Sort(out.NoTasks)
	out.Content.Servers = append(out.Content.Servers, brokenFiles(files, out.Raw)...)
	slices.SortFunc(out.Content.Servers, snapshot.Compare)
	for p := range j.good {
		if !seen[p] {
			delete(j.good, p)
		}
	}
	return out
}

// decide returns the verdict on c and the literal secrets of its definition.
func (j *Judge) decide(c candidate, unresolved []string) (snapshot.Entry, []Literal) {
	e := snapshot.Entry{Name: c.Name, Source: c.file.Name, Class: c.file.Class}
	model, problems := serverconfig.Decode(c.Name, c.JSON)
	e.Transport = string(model.Transport)
	e.Problems = plain(problems)
	valid := !serverconfig.HasErrors(problems)
	raw := c.JSON
	at := place{c.file.Path, c.Name}
	switch {
	case valid:
		j.good[at] = raw
	case model.Enabled && j.good[at] != nil:
		raw = j.good[at]
		model, _ = serverconfig.Decode(c.Name, raw)
		e.Transport = string(model.Transport)
		e.Stale = true
		e.Reason, e.FixCommand = invalid(e.Problems, e.Source)
		e.Reason = "its last good definition is in force, the present one is not usable: " + e.Reason
	}
	if valid && c.file.Problem != nil {
		e.Stale = true
		e.Reason = "its last good definition is in force: " + e.Source + " " + describe(*c.file.Problem)
		e.FixCommand = fix(*c.file.Problem, e.Source)
	}

	var literals []Literal
	if valid || e.Stale {
		literals = j.externalize(&e, raw)
	} else {
		// Nobody knows where in an invalid entry a secret stands.
		e.JSON = json.RawMessage(`{"type":"` + e.Transport + `"}`)
	}
	switch {
	case !model.Enabled && c.switched:
		e.State = snapshot.Disabled
		e.Reason = "switched off through the API, whatever " + e.Source + " says"
		e.FixCommand = "toolherd servers enable " + c.Name
	case !model.Enabled:
		e.State = snapshot.Disabled
		e.Reason = "disabled in " + e.Source
		e.FixCommand = "edit " + e.Source + `: set "enabled": true for ` + strconv.Quote(e.Name)
	case c.file.Class == snapshot.Project && !j.policy.TrustProject:
		e.State = snapshot.Untrusted
		e.Reason = "defined by the project file " + e.Source + ", which nobody has trusted"
		e.FixCommand = j.policy.TrustCommand
	case !valid && !e.Stale:
		e.State = snapshot.Error
		e.Reason, e.FixCommand = invalid(e.Problems, e.Source)
	case c.written && len(serverconfig.CheckVariables(c.Name, c.JSON, j.policy.EnvRefs)) > 0:
		problems := plain(serverconfig.CheckVariables(c.Name, c.JSON, j.policy.EnvRefs))
		e.State = snapshot.Error
		e.Problems = append(e.Problems, problems...)
		e.Reason, _ = invalid(problems, e.Source)
		e.FixCommand = problems[0].Hint
	default:
		e.State = snapshot.Active
		if reason, fix := j.unusable(model, len(literals) > 0, unresolved); reason != "" {
			e.State, e.Reason = snapshot.Error, reason+" (in "+e.Source+")"
			e.FixCommand = fix
		}
	}
	return e, literals
}

// externalize sets the public form of the definition raw and returns the secrets that are left out of it.
func (j *Judge) externalize(e *snapshot.Entry, raw json.RawMessage) []Literal {
	mac := func(string, []byte) string { return "" }
	if j.policy.Key != nil {
		mac = j.policy.Key.MAC
	}
	public, secrets := serverconfig.Externalize(e.Name, raw, mac)
	e.JSON = public
	e.Fingerprint = serverconfig.Fingerprint(public)
	if len(secrets) == 0 {
		return nil
	}
	digests, err := snapshot.Digests(public)
	if err != nil {
		panic("verdict: Externalize wrote what cannot be read: " + err.Error())
	}
	e.Secrets = map[string]string{}
	var out []Literal
	for path, value := range secrets {
		e.Secrets[path] = digests[path]
		out = append(out, Literal{Ref: snapshot.Ref{Server: e.Name, FieldPath: path, MAC: digests[path]}, Value: value})
	}
	return out
}
