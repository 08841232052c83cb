package verdict

import (
	"slices"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// Finding is why a snapshot must not be made effective.
type Finding struct {
	Server  string
	Reason  fault.Reason // CONFIG_INVALID or SERVER_UNTRUSTED
	Message string
}

// Review returns what in an older content is active and may not be so today: what is not trusted any more, what is not
// valid for this version, and what it cannot use. It may be called while the judge decides.
func (j *Judge) Review(c *snapshot.Content) []Finding {
	var out []Finding
	var unresolved []string
	for _, name := range c.Interceptors {
		if !slices.Contains(j.policy.SkipInterceptors, name) {
			unresolved = append(unresolved, name)
		}
	}
	for i := range c.Servers {
		e := &c.Servers[i]
		if e.State != snapshot.Active {
			continue
		}
		if !j.trusts(e) {
			out = append(out, Finding{e.Name, fault.ServerUntrusted, "is of a project that is not trusted"})
			continue
		}
		model, problems := serverconfig.DecodePublic(e.Name, e.JSON)
		if serverconfig.HasErrors(problems) {
			reason, _ := invalid(plain(problems), e.Source)
			out = append(out, Finding{e.Name, fault.ConfigInvalid, reason})
		} else if reason, _ := j.unusable(model, len(e.Secrets) > 0, unresolved); reason != "" {
			out = append(out, Finding{e.Name, fault.ConfigInvalid, reason})
		}
	}
	return out
}

// Withdraw returns c with every active entry untrusted that is not trusted any more, and the names of those. It may be
// called while the judge decides.
func (j *Judge) Withdraw(c *snapshot.Content) (snapshot.Content, []string) {
	out := snapshot.Content{Servers: slices.Clone(c.Servers), Interceptors: c.Interceptors}
	var names []string
	for i := range out.Servers {
		e := &out.Servers[i]
		if e.State == snapshot.Active && !j.trusts(e) {
			e.State, e.Stale = snapshot.Untrusted, false
			e.Reason = "defined by the project file " + e.Source + ", which nobody trusts any more"
			e.FixCommand = j.policy.TrustCommand
			names = append(names, e.Name)
		}
	}
	return out, names
}

// trusts reports whether an entry of a snapshot is trusted today, whatever was decided when the snapshot was made.
func (j *Judge) trusts(e *snapshot.Entry) bool {
	return e.Class != snapshot.Project || j.policy.TrustProject
}
