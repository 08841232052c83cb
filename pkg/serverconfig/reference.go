package serverconfig

import (
	"errors"
	"fmt"
	"strings"

	"github.com/toolherd/toolherd/pkg/secret"
)

// A reference to the environment, in the text of an entry:
//
//	${NAME}            the variable's value; unset is an error, empty is not
//	${NAME:-default}   default, without braces and possibly empty, where the variable is unset or empty
//	$NAME              the same as ${NAME}, if it is the whole text
//	$${                a literal ${
//	$$NAME             a literal $NAME, if it is the whole text
//
// Any other dollar is literal, and any other ${ is an error. NAME is a letter or underscore and then letters, digits and
// underscores. What a reference resolves to is not looked at again.

// segment is a piece of text: literal, or a reference to the variable name.
type segment struct {
	literal    string
	name       string // empty in a literal
	fallback   string
	isFallback bool // whether there is one
}

// The variables of Toolherd's own that an entry may read.
const (
	variableExecutable = "TOOLHERD_EXECUTABLE"
	variableConfigDir  = "TOOLHERD_CONFIG_DIR"
)

var errBadReference = errors.New("malformed reference")

const referenceHint = "write ${NAME} or ${NAME:-default} (a default has no braces), or $${ for a literal ${"

// parseReferences splits text into segments. The error is errBadReference.
func parseReferences(text string) ([]segment, error) {
	if name, ok := strings.CutPrefix(text, "$"); ok {
		if isVariable(name) {
			return []segment{{name: name}}, nil
		}
		if name, ok := strings.CutPrefix(name, "$"); ok && isVariable(name) {
			return []segment{{literal: text[1:]}}, nil
		}
	}
	var segments []segment
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			segments = append(segments, segment{literal: literal.String()})
			literal.Reset()
		}
	}
	for rest := text; rest != ""; {
		dollar := strings.IndexByte(rest, '$')
		if dollar < 0 {
			literal.WriteString(rest)
			break
		}
		literal.WriteString(rest[:dollar])
		rest = rest[dollar:]
		switch {
		case strings.HasPrefix(rest, "$${"):
			literal.WriteString("${")
			rest = rest[3:]
		case strings.HasPrefix(rest, "${"):
			end := strings.IndexByte(rest, '}')
			if end < 0 {
				return nil, errBadReference
			}
			name, fallback, isFallback := strings.Cut(rest[2:end], ":-")
			if !isVariable(name) || strings.Contains(fallback, "{") {
				return nil, errBadReference
			}
			flush()
			segments = append(segments, segment{name: name, fallback: fallback, isFallback: isFallback})
			rest = rest[end+1:]
		default:
			literal.WriteByte('$')
			rest = rest[1:]
		}
	}
	flush()
	return segments, nil
}

// expand returns text with its references replaced, and the values that took their place. The problems, without a
// server, are about path: a malformed reference, or variables that are forbidden or unset.
func expand(path, text string, lookup func(string) (string, bool)) (expanded string, values []segment, problems []Problem) {
	segments, err := parseReferences(text)
	if err != nil {
		return "", nil, []Problem{badReference(path)}
	}
	var b strings.Builder
	for _, s := range segments {
		if s.name == "" {
			b.WriteString(s.literal)
			continue
		}
		if forbidden(s.name) {
			problems = append(problems, forbiddenVariable(path, s.name))
			continue
		}
		value, ok := lookup(s.name)
		switch {
		case value == "" && s.isFallback:
			value = s.fallback
		case !ok:
			problems = append(problems, Problem{
				Path: path, Reason: ReasonUnsetVariable,
				Message: fmt.Sprintf("needs the environment variable %s, which is not set", s.name),
				Hint:    fmt.Sprintf("set %s, give it a default with ${%s:-default}, or write %s for the literal text", s.name, s.name, literalSpelling(text, s.name)),
			})
			continue
		}
		b.WriteString(value)
		values = append(values, segment{name: s.name, literal: value})
	}
	if len(problems) > 0 {
		return "", nil, problems
	}
	return b.String(), values, nil
}

// Environment returns lookup with the two variables of Toolherd's own that entries may read: TOOLHERD_EXECUTABLE, the path
// of the running binary, and TOOLHERD_CONFIG_DIR; an empty one is unset. What the process environment says about them
// does not count.
func Environment(executable, configDir string, lookup func(string) (string, bool)) func(string) (string, bool) {
	return func(name string) (string, bool) {
		switch name {
		case variableExecutable:
			return executable, executable != ""
		case variableConfigDir:
			return configDir, configDir != ""
		}
		return lookup(name)
	}
}

// literalSpelling shows how the reference to name that stands in text is written if it is not meant as one.
func literalSpelling(text, name string) string {
	if text == "$"+name {
		return "$$" + name
	}
	return "$${" + name + "}"
}

// checkReferences returns what can be said about the references of text without looking anything up.
func checkReferences(path, text string) []Problem {
	segments, err := parseReferences(text)
	if err != nil {
		return []Problem{badReference(path)}
	}
	var problems []Problem
	for _, s := range segments {
		if s.name != "" && forbidden(s.name) {
			problems = append(problems, forbiddenVariable(path, s.name))
		}
	}
	return problems
}

func badReference(path string) Problem {
	return Problem{Path: path, Reason: ReasonBadReference, Message: "a ${ that is not a well-formed reference", Hint: referenceHint}
}

func forbiddenVariable(path, name string) Problem {
	return Problem{
		Path: path, Reason: ReasonForbiddenVariable,
		Message: fmt.Sprintf("the variable %s is Toolherd's own or the database's and never resolves in a server entry", name),
		Hint:    "pass the value in a variable of another name",
	}
}

// forbidden reports whether the variable may hold a credential of the service itself.
func forbidden(name string) bool {
	if name == variableExecutable || name == variableConfigDir {
		return false
	}
	return strings.HasPrefix(name, "TOOLHERD_") || strings.HasPrefix(name, "PG")
}

// isLiteral reports whether text holds something that is not known to be public: anything but references to the
// environment without default, perhaps behind the word of an authentication scheme. Empty text holds nothing.
func isLiteral(text string) bool {
	if scheme, rest, ok := strings.Cut(text, " "); ok && secret.IsAuthScheme(scheme) {
		text = strings.TrimLeft(rest, " ")
	}
	segments, err := parseReferences(text)
	if err != nil {
		return true
	}
	for _, s := range segments {
		if s.literal != "" || s.fallback != "" {
			return true
		}
	}
	return false
}

func isVariable(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
