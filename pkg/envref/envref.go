// Package envref is the syntax of references to environment variables in the text of configuration: of MCP server
// entries and of the secrets of sinks.
//
//	${NAME}            the variable's value; unset is an error, empty is not
//	${NAME:-default}   default, without braces and possibly empty, where the variable is unset or empty
//	$NAME              the same as ${NAME}, if it is the whole text
//	$${                a literal ${
//	$$NAME             a literal $NAME, if it is the whole text
//
// Any other dollar is literal, and any other ${ is an error. NAME is a letter or underscore and then letters, digits and
// underscores. What a reference resolves to is not looked at again.
//
// The package reads no environment: its callers say what a variable's value is.
package envref

import (
	"errors"
	"fmt"
	"strings"
)

// Segment is a piece of text: literal, or a reference to a variable.
type Segment struct {
	Literal     string
	Name        string // empty in a literal
	Fallback    string
	HasFallback bool
}

// The variables of Toolherd's own that may be read.
const (
	Executable = "TOOLHERD_EXECUTABLE"
	ConfigDir  = "TOOLHERD_CONFIG_DIR"
)

// ErrMalformed is a ${ that is no reference.
var ErrMalformed = errors.New("a ${ that is not a well-formed reference")

// Hint says how references are written.
const Hint = "write ${NAME} or ${NAME:-default} (a default has no braces), or $${ for a literal ${"

// Parse splits text into segments. The error is [ErrMalformed].
func Parse(text string) ([]Segment, error) {
	if name, ok := strings.CutPrefix(text, "$"); ok {
		if isVariable(name) {
			return []Segment{{Name: name}}, nil
		}
		if name, ok := strings.CutPrefix(name, "$"); ok && isVariable(name) {
			return []Segment{{Literal: text[1:]}}, nil
		}
	}
	var segments []Segment
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			segments = append(segments, Segment{Literal: literal.String()})
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
				return nil, ErrMalformed
			}
			name, fallback, hasFallback := strings.Cut(rest[2:end], ":-")
			if !isVariable(name) || strings.Contains(fallback, "{") {
				return nil, ErrMalformed
			}
			flush()
			segments = append(segments, Segment{Name: name, Fallback: fallback, HasFallback: hasFallback})
			rest = rest[end+1:]
		default:
			literal.WriteByte('$')
			rest = rest[1:]
		}
	}
	flush()
	return segments, nil
}

// Forbidden reports whether the variable may hold a credential of Toolherd or its database, which no text reads.
func Forbidden(name string) bool {
	if name == Executable || name == ConfigDir {
		return false
	}
	return strings.HasPrefix(name, "TOOLHERD_") || strings.HasPrefix(name, "PG")
}

// Expansion is what became of a text. Where anything is unresolved, Text is empty.
type Expansion struct {
	Text       string
	Values     []Segment // each reference, with its value as Literal
	Unresolved []Unresolved
}

// Unresolved is a reference that has no value: its variable is unset, or it is [Forbidden].
type Unresolved struct {
	Name      string
	Forbidden bool
	literal   string // how it is written if no reference is meant
}

// Message says what is wrong.
func (u Unresolved) Message() string {
	if u.Forbidden {
		return "the variable " + u.Name + " is Toolherd's own or the database's and never resolves here"
	}
	return "needs the environment variable " + u.Name + ", which is not set"
}

// Hint is the next step.
func (u Unresolved) Hint() string {
	if u.Forbidden {
		return "pass the value in a variable of another name"
	}
	return fmt.Sprintf("set %s, give it a default with ${%s:-default}, or write %s for the literal text", u.Name, u.Name, u.literal)
}

// Expand replaces the references in text. lookup is asked for no variable that is [Forbidden]. The error is [ErrMalformed].
func Expand(text string, lookup func(string) (string, bool)) (Expansion, error) {
	segments, err := Parse(text)
	if err != nil {
		return Expansion{}, err
	}
	var e Expansion
	var b strings.Builder
	for _, s := range segments {
		if s.Name == "" {
			b.WriteString(s.Literal)
			continue
		}
		if Forbidden(s.Name) {
			e.Unresolved = append(e.Unresolved, Unresolved{Name: s.Name, Forbidden: true})
			continue
		}
		value, ok := lookup(s.Name)
		switch {
		case value == "" && s.HasFallback:
			value = s.Fallback
		case !ok:
			e.Unresolved = append(e.Unresolved, Unresolved{Name: s.Name, literal: literal(text, s.Name)})
			continue
		}
		b.WriteString(value)
		e.Values = append(e.Values, Segment{Name: s.Name, Literal: value})
	}
	if len(e.Unresolved) == 0 {
		e.Text = b.String()
	}
	return e, nil
}

// literal shows how the reference to name that stands in text is written if it is not meant as one.
func literal(text, name string) string {
	if text == "$"+name {
		return "$$" + name
	}
	return "$${" + name + "}"
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
