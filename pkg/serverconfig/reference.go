package serverconfig

import (
	"fmt"
	"strings"

	"github.com/toolherd/toolherd/pkg/envref"
	"github.com/toolherd/toolherd/pkg/secret"
)

// expand returns text with its references replaced, and the values that took their place. The problems, without a
// server, are about path: a malformed reference, or variables that are forbidden or unset.
func expand(path, text string, lookup func(string) (string, bool)) (expanded string, values []envref.Segment, problems []Problem) {
	e, err := envref.Expand(text, lookup)
	if err != nil {
		return "", nil, []Problem{badReference(path)}
	}
	for _, u := range e.Unresolved {
		if u.Forbidden {
			problems = append(problems, forbiddenVariable(path, u.Name))
			continue
		}
		problems = append(problems, Problem{Path: path, Reason: ReasonUnsetVariable, Message: u.Message(), Hint: u.Hint()})
	}
	return e.Text, e.Values, problems
}

// Environment returns lookup with the two variables of Toolherd's own that entries may read: TOOLHERD_EXECUTABLE, the path
// of the running binary, and TOOLHERD_CONFIG_DIR; an empty one is unset. What the process environment says about them
// does not count.
func Environment(executable, configDir string, lookup func(string) (string, bool)) func(string) (string, bool) {
	return func(name string) (string, bool) {
		switch name {
		case envref.Executable:
			return executable, executable != ""
		case envref.ConfigDir:
			return configDir, configDir != ""
		}
		return lookup(name)
	}
}

// checkReferences returns what can be said about the references of text without looking anything up.
func checkReferences(path, text string) []Problem {
	segments, err := envref.Parse(text)
	if err != nil {
		return []Problem{badReference(path)}
	}
	var problems []Problem
	for _, s := range segments {
		if s.Name != "" && envref.Forbidden(s.Name) {
			problems = append(problems, forbiddenVariable(path, s.Name))
		}
	}
	return problems
}

func badReference(path string) Problem {
	return Problem{Path: path, Reason: ReasonBadReference, Message: envref.ErrMalformed.Error(), Hint: envref.Hint}
}

func forbiddenVariable(path, name string) Problem {
	return Problem{
		Path: path, Reason: ReasonForbiddenVariable,
		Message: fmt.Sprintf("the variable %s is Toolherd's own or the database's and never resolves in a server entry", name),
		Hint:    "pass the value in a variable of another name",
	}
}

// isLiteral reports whether text holds something that is not known to be public: anything but references to the
// environment without default, perhaps behind the word of an authentication scheme. Empty text holds nothing.
func isLiteral(text string) bool {
	if scheme, rest, ok := strings.Cut(text, " "); ok && secret.IsAuthScheme(scheme) {
		text = strings.TrimLeft(rest, " ")
	}
	segments, err := envref.Parse(text)
	if err != nil {
		return true
	}
	for _, s := range segments {
		if s.Literal != "" || s.Fallback != "" {
			return true
		}
	}
	return false
}
