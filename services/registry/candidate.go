package registry

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
	"github.com/toolherd/toolherd/services/registry/internal/mark"
	"github.com/toolherd/toolherd/services/registry/internal/policy"
	"github.com/toolherd/toolherd/services/registry/internal/verdict"
	"github.com/toolherd/toolherd/services/registry/internal/write"
)

// Reasons of problems that only writes have, beside those of serverconfig.
const (
	reasonLaunchPolicy = "launch_policy"     // the launch policy refuses it
	reasonReadOnly     = "read_only"         // another file defines this name
	reasonNoTasks      = "tasks_unavailable" // task_toolsets without durable tasks
)

// entryLimits are those of a file: an entry is never larger.
var entryLimits = strictjson.Limits{Bytes: serverconfig.MaxBytes, Depth: serverconfig.MaxDepth}

// base is what a write begins with: the writable file as it stands, and what is in force from other files.
type base struct {
	s       *Service
	content []byte // nil if there is no file
	doc     serverconfig.Document
	inForce map[string]verdict.Raw
}

// newBase reads what is stored. A file that is broken cannot be merged into: what is masked could not be put back.
func (s *Service) newBase(content []byte) (*base, error) {
	b := &base{s: s, content: content, inForce: s.own.Load().raw}
	if content == nil {
		return b, nil
	}
	doc, problem := serverconfig.ParseDocument(content)
	if problem != nil {
		return nil, fault.New(fault.ConfigInvalid, "%s is broken, and what it says would be lost: mend it first: %s", s.writable.Name, problem.String())
	}
	b.doc = doc
	return b, nil
}

// stored returns the entry of the writable file, or nil.
func (b *base) stored(name string) json.RawMessage {
	for _, s := range b.doc.Servers {
		if s.Name == name {
			return s.JSON
		}
	}
	return nil
}

// elsewhere returns the entry in force of that name if another file than the writable one defines it.
func (b *base) elsewhere(name string) (verdict.Raw, bool) {
	raw, ok := b.inForce[name]
	return raw, ok && raw.Layer.Path != b.s.writable.Path
}

// candidate is what a write makes of the base.
type candidate struct {
	*base
	servers  []write.Member // all of them
	others   []write.Member // top-level keys that were sent, as they are to be stored
	touched  []string       // servers that are added or changed
	problems []serverconfig.Problem
}

// keepAll begins a candidate with what is stored.
func (b *base) keepAll() *candidate {
	c := &candidate{base: b}
	for _, s := range b.doc.Servers {
		c.servers = append(c.servers, write.Member{Key: s.Name, JSON: s.JSON})
	}
	return c
}

// replace returns the candidate that a whole file asks for, or what keeps it from being read at all.
func (b *base) replace(config string) (*candidate, *serverconfig.Problem) {
	doc, problem := serverconfig.ParseDocument([]byte(config))
	if problem != nil {
		return nil, problem
	}
	if !definesServers(config) {
		return nil, &serverconfig.Problem{
			Path: "mcpServers", Reason: serverconfig.ReasonMissing, Message: "must be there, since a server that is left out is deleted",
			Hint: `write "mcpServers": {…}, empty to delete all servers`,
		}
	}
	c := &candidate{base: b}
	c.problems = append(c.problems, doc.Warnings...)
	for _, s := range doc.Servers {
		if raw, ok := b.elsewhere(s.Name); ok && b.stored(s.Name) == nil && serverconfig.Equal(serverconfig.Mask(raw.JSON), s.JSON) {
			continue // shown by GetConfig as read-only, and sent back as it was
		}
		c.put(s.Name, s.JSON)
	}
	others := doc.Extras
	if doc.Interceptors != nil {
		others = append([]serverconfig.Extra{{Key: "mcpInterceptors", JSON: doc.Interceptors}}, others...)
	}
	for _, o := range others {
		c.other(o)
	}
	return c, nil
}

// definesServers reports whether a file that can be read has the key, which a Document does not tell.
func definesServers(config string) bool {
	root, err := strictjson.Parse([]byte(strings.TrimPrefix(config, "\ufeff")), entryLimits)
	return err == nil && (root.Get("mcpServers").Kind() == strictjson.Object || root.Get("mcp_servers").Kind() == strictjson.Object)
}

// other takes a top-level key that was sent.
func (c *candidate) other(sent serverconfig.Extra) {
	stored := c.doc.Interceptors
	if sent.Key != "mcpInterceptors" {
		stored = nil
		if i := slices.IndexFunc(c.doc.Extras, func(e serverconfig.Extra) bool { return e.Key == sent.Key }); i >= 0 {
			stored = c.doc.Extras[i].JSON
		}
	}
	value, problems := serverconfig.UnmaskValue(sent.Key, stored, sent.JSON)
	c.problems = append(c.problems, problems...)
	if stored != nil && serverconfig.Equal(value, stored) {
		return
	}
	if sent.Key == "mcpInterceptors" {
		if _, problem := serverconfig.ParseInterceptors(value); problem != nil {
			c.problems = append(c.problems, *problem)
		}
	}
	c.others = append(c.others, write.Member{Key: sent.Key, JSON: value})
}

// put takes a server that was sent, which may be masked.
func (c *candidate) put(name string, sent json.RawMessage) {
	stored := c.stored(name)
	entry, problems := serverconfig.Unmask(name, stored, sent)
	c.set(name, entry)
	if stored != nil && serverconfig.Equal(entry, stored) {
		return
	}
	c.touched = append(c.touched, name)
	if raw, ok := c.elsewhere(name); ok {
		problems = append(problems, serverconfig.Problem{
			Server: name, Reason: reasonReadOnly, Message: "is defined by " + raw.Layer.Name + ", which the API does not write",
			Hint: "edit that file, or choose another name",
		})
	}
	entryProblems := append(c.s.check(name, entry), c.s.launchProblems(name, stored, entry)...)
	entryProblems = append(entryProblems, serverconfig.CheckVariables(name, entry, c.s.envRefs)...)
	c.problems = append(c.problems, problems...)
	c.problems = append(c.problems, explainKept(entryProblems, sent, entry)...)
}

// allProblems returns what is wrong with every server and everything else, in the order of the file.
func (c *candidate) allProblems() []serverconfig.Problem {
	of := func(server string) []serverconfig.Problem {
		return slices.DeleteFunc(slices.Clone(c.problems), func(p serverconfig.Problem) bool { return p.Server != server })
	}
	out := of("")
	for _, m := range c.servers {
		if slices.Contains(c.touched, m.Key) {
			out = append(out, of(m.Key)...)
		} else {
			out = append(out, c.s.check(m.Key, m.JSON)...)
		}
	}
	return out
}

func (c *candidate) set(name string, entry json.RawMessage) {
	if i := slices.IndexFunc(c.servers, func(m write.Member) bool { return m.Key == name }); i >= 0 {
		c.servers[i].JSON = entry
		return
	}
	c.servers = append(c.servers, write.Member{Key: name, JSON: entry})
}

func (c *candidate) remove(name string) {
	c.servers = slices.DeleteFunc(c.servers, func(m write.Member) bool { return m.Key == name })
}

// check returns what is wrong with an entry for itself.
func (s *Service) check(name string, entry json.RawMessage) []serverconfig.Problem {
	model, problems := serverconfig.Decode(name, entry)
	if s.noTasks && model.Enabled && len(model.TaskToolsets) > 0 {
		problems = append(problems, serverconfig.Problem{
			Server: name, Path: "task_toolsets", Reason: reasonNoTasks, Message: "durable tasks are switched off, and a registry does not start with this",
			Hint: "set tasks.enabled to true in toolherd.yaml and restart, or leave it out",
		})
	}
	return problems
}

// launchProblems returns what the launch policy says about an entry that changes how it is started or is switched on. Stored
// is nil for a new one.
func (s *Service) launchProblems(name string, stored, entry json.RawMessage) []serverconfig.Problem {
	after, err := strictjson.Parse(entry, entryLimits)
	if err != nil {
		return nil
	}
	before, err := strictjson.Parse(stored, entryLimits)
	if err == nil && launch(before) == launch(after) {
		was, _ := serverconfig.Decode(name, stored)
		is, _ := serverconfig.Decode(name, entry)
		if was.Enabled || !is.Enabled {
			return nil
		}
	}
	return s.refusals(name, after)
}

// launch returns what decides how an entry is started.
func launch(entry strictjson.Value) string {
	if !policy.Applies(entry) {
		return ""
	}
	b := []byte("stdio")
	for _, key := range []string{"command", "args", "env"} {
		b = append(b, '\n')
		if v := entry.Get(key); v.Kind() != strictjson.Missing {
			b = append(b, v.Canonical()...)
		}
	}
	return string(b)
}

// refusals returns what the launch policy says about an entry. That there is no command at all is not its business.
func (s *Service) refusals(name string, entry strictjson.Value) []serverconfig.Problem {
	var out []serverconfig.Problem
	for _, r := range s.policy.Judge(entry) {
		if r.Path == "command" && entry.Get("command").Kind() != strictjson.String {
			continue
		}
		out = append(out, serverconfig.Problem{Server: name, Path: r.Path, Reason: reasonLaunchPolicy, Message: r.Message, Hint: r.Hint})
	}
	return out
}

// explainKept adds to the hints of problems about fields that were not sent and stayed as they are stored.
func explainKept(problems []serverconfig.Problem, sent, entry json.RawMessage) []serverconfig.Problem {
	was, errSent := strictjson.Parse(sent, entryLimits)
	is, errEntry := strictjson.Parse(entry, entryLimits)
	if errSent != nil || errEntry != nil {
		return problems
	}
	for i := range problems {
		field := problems[i].Path
		if at := strings.IndexAny(field, ".["); at >= 0 {
			field = field[:at]
		}
		if was.Get(field).Kind() == strictjson.Missing && is.Get(field).Kind() != strictjson.Missing {
			problems[i].Hint += " (it is kept since it was not sent: send null to remove it)"
		}
	}
	return problems
}

// definitions returns the definitions that are the API's own once c is stored: those that c touches, and those that were.
func (c *candidate) definitions(marks mark.Set) []mark.Written {
	var out []mark.Written
	for _, m := range c.servers {
		at := mark.Place{Path: c.s.writable.Path, Server: m.Key}
		if slices.Contains(c.touched, m.Key) || marks.IsWritten(at, c.stored(m.Key)) {
			out = append(out, mark.Written{Place: at, Definition: mark.Definition(m.Key, m.JSON)})
		}
	}
	return out
}

// compose returns the file with c in it, or nil where that says what is stored already.
func (c *candidate) compose() ([]byte, error) {
	changed := len(c.touched) > 0 || len(c.others) > 0 || len(c.servers) != len(c.doc.Servers)
	for _, m := range c.servers {
		changed = changed || !serverconfig.Equal(m.JSON, c.stored(m.Key))
	}
	if !changed {
		return nil, nil
	}
	content, err := write.Compose(c.content, c.servers, c.others)
	if err != nil {
		return nil, err
	}
	if _, problem := serverconfig.ParseDocument(content); problem != nil {
		return nil, refusal([]serverconfig.Problem{*problem}) // such as one that is too large
	}
	return content, nil
}

// refusal returns the errors among problems as one fault, or nil if there is none. An entry that belongs to another file
// comes first; one that the launch policy refuses, or that has stars in it, is not invalid for that.
func refusal(problems []serverconfig.Problem) error {
	servers := map[string]map[string]bool{} // by reason
	var lines []string
	var violations []fault.Violation
	for _, p := range problems {
		if p.Severity != serverconfig.SeverityError {
			continue
		}
		if servers[p.Reason] == nil {
			servers[p.Reason] = map[string]bool{}
		}
		servers[p.Reason][p.Server] = true
		lines = append(lines, p.String())
		violations = append(violations, fault.Violation{Field: fieldOf(p), Description: p.Message + ": " + p.Hint})
	}
	if len(lines) == 0 {
		return nil
	}
	reason := fault.ConfigConflict
	switch {
	case servers[reasonReadOnly] != nil:
	case isInvalid(problems, servers):
		reason = fault.ConfigInvalid
	case servers[reasonLaunchPolicy] != nil:
		reason = fault.LaunchPolicy
	default:
		reason = fault.MaskedValue
	}
	return fault.New(reason, "%s", strings.Join(lines, "\n")).WithViolations(violations...)
}

// isInvalid reports whether anything is wrong with a server that neither the launch policy refuses nor a mask is left in.
func isInvalid(problems []serverconfig.Problem, servers map[string]map[string]bool) bool {
	return slices.ContainsFunc(problems, func(p serverconfig.Problem) bool {
		return p.Severity == serverconfig.SeverityError && p.Reason != reasonLaunchPolicy && p.Reason != serverconfig.ReasonMaskedValue &&
			!servers[reasonLaunchPolicy][p.Server] && !servers[serverconfig.ReasonMaskedValue][p.Server]
	})
}

func fieldOf(p serverconfig.Problem) string {
	if p.Server == "" {
		return p.Path
	}
	return strings.TrimSuffix("mcpServers."+p.Server+"."+p.Path, ".")
}

// candidateMessages returns problems as messages, in their order.
func candidateMessages(problems []serverconfig.Problem) []*registryv1.Problem {
	var out []*registryv1.Problem
	for _, p := range problems {
		m := &registryv1.Problem{
			Severity: registryv1.Severity_SEVERITY_ERROR, Server: p.Server, Path: p.Path,
			Reason: p.Reason, Message: p.Message, Hint: p.Hint,
		}
		if p.Severity == serverconfig.SeverityWarning {
			m.Severity = registryv1.Severity_SEVERITY_WARNING
		}
		if p.Line > 0 && p.Server == "" {
			m.Message = fmt.Sprintf("line %d, column %d: %s", p.Line, p.Column, p.Message)
		}
		out = append(out, m)
	}
	return out
}
