package serverconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// decoder reads fields and collects what is wrong with them.
type decoder struct {
	server   string
	public   bool // literal secrets may be references to the store, as Externalize writes them
	resolved bool // no text is a reference to the environment any more
	problems []Problem
	count    [2]int // by severity
}

// maxProblems bounds how many problems of each severity are reported of an entry, or of the top level of a file.
const maxProblems = 100

func (d *decoder) report(p Problem) {
	d.count[p.Severity]++
	if d.count[p.Severity] > maxProblems {
		return
	}
	p.Server = d.server
	d.problems = append(d.problems, p)
}

// isFull reports whether another problem of this severity would only be counted.
func (d *decoder) isFull(s Severity) bool { return d.count[s] >= maxProblems }

// all returns the problems, and says how many of each severity were too many.
func (d *decoder) all() []Problem {
	for severity, n := range d.count {
		if more := n - maxProblems; more > 0 {
			d.problems = append(d.problems, Problem{
				Severity: Severity(severity), Server: d.server, Reason: ReasonTooMany,
				Message: fmt.Sprintf("%d more of these are not listed", more), Hint: "mend those above first",
			})
		}
	}
	return d.problems
}

func (d *decoder) reportAll(problems []Problem) {
	for _, p := range problems {
		d.report(p)
	}
}

// wrongType reports that the value at path is not what is wanted, such as "a string".
func (d *decoder) wrongType(path, want string, v strictjson.Value) {
	d.report(Problem{Path: path, Reason: ReasonWrongType, Message: "must be " + want + ", not " + v.Kind().String(), Hint: "write " + want})
}

// given reports whether v is there at all; null counts as absent.
func given(v strictjson.Value) bool {
	return v.Kind() != strictjson.Missing && v.Kind() != strictjson.Null
}

// text reads a string. In public JSON a literal secret reads as what may be shown of it.
func (d *decoder) text(path string, v strictjson.Value) (string, bool) {
	if v.Kind() == strictjson.String {
		return v.Text(), true
	}
	if d.public {
		if ref, ok := parseSecretRef(v, path); ok {
			if ref.shown == "" {
				return secret.Mask, true
			}
			return ref.shown, true
		}
	}
	d.wrongType(path, "a string", v)
	return "", false
}

// optionalText is text for a field that may be absent or null.
func (d *decoder) optionalText(path string, v strictjson.Value) string {
	if !given(v) {
		return ""
	}
	s, _ := d.text(path, v)
	return s
}

// flag reads a boolean, which may be absent.
func (d *decoder) flag(path string, v strictjson.Value, absent bool) bool {
	switch v.Kind() {
	case strictjson.Missing:
		return absent
	case strictjson.Bool:
		return v.Raw() == "true"
	default:
		d.wrongType(path, "true or false", v)
		return absent
	}
}

// word reads one of the known words; an absent one is the first.
func (d *decoder) word(path string, v strictjson.Value, known ...string) string {
	if v.Kind() == strictjson.Missing {
		return known[0]
	}
	if v.Kind() != strictjson.String {
		d.wrongType(path, "one of "+strings.Join(known, ", "), v)
		return known[0]
	}
	if !slices.Contains(known, v.Text()) {
		d.report(unsupported(path, known, v.Text()))
		return known[0]
	}
	return v.Text()
}

// unsupported is the problem of a word that is none of the known ones. It does not repeat the word, which may be
// anything.
func unsupported(path string, known []string, got string) Problem {
	p := Problem{Path: path, Reason: ReasonUnsupported, Message: "is none of " + strings.Join(known, ", "), Hint: "use one of them"}
	if match := near(got, known); match != "" {
		p.Hint = "did you mean `" + match + "`?"
	}
	return p
}

// list reads a list of strings. It returns nil where it is absent, and the strings that are good where some are not.
func (d *decoder) list(path string, v strictjson.Value) []string {
	if v.Kind() == strictjson.Missing {
		return nil
	}
	if v.Kind() != strictjson.Array {
		d.wrongType(path, "a list of strings", v)
		return nil
	}
	out := []string{}
	for i, element := range v.Elements() {
		if s, ok := d.text(strictjson.Item(path, i), element); ok {
			out = append(out, s)
		}
	}
	return out
}

// textMap reads an object whose values are strings. It returns nil where it is absent or empty.
func (d *decoder) textMap(path string, v strictjson.Value) map[string]string {
	if v.Kind() == strictjson.Missing {
		return nil
	}
	if v.Kind() != strictjson.Object {
		d.wrongType(path, "an object of strings", v)
		return nil
	}
	var out map[string]string
	for key, member := range v.Members() {
		s, ok := d.text(strictjson.Field(path, key), member)
		if !ok {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = s
	}
	return out
}

// object reads an object that may be absent or null, and reports whether it is there.
func (d *decoder) object(path string, v strictjson.Value) bool {
	if !given(v) {
		return false
	}
	if v.Kind() != strictjson.Object {
		d.wrongType(path, "an object", v)
		return false
	}
	return true
}

// keys reports the members of v that are not known, as warnings or, where nothing may be added, as errors.
func (d *decoder) keys(path string, v strictjson.Value, severity Severity, known []string) {
	for key := range v.Members() {
		if slices.Contains(known, key) {
			continue
		}
		if d.isFull(severity) {
			d.count[severity]++
			continue
		}
		p := unknownKey(key, path, known)
		p.Severity = severity
		if severity == SeverityError {
			p.Message = "unknown key"
		}
		d.report(p)
	}
}

// sameHeader reports pairs of members of v that name one HTTP header in two spellings.
func (d *decoder) sameHeader(path string, v strictjson.Value) {
	seen := map[string]string{}
	for name := range v.Members() {
		lower := strings.ToLower(name)
		if first, ok := seen[lower]; ok {
			d.report(Problem{
				Path: strictjson.Field(path, name), Reason: ReasonConflict,
				Message: "is the same header as " + strictjson.Field(path, first), Hint: "keep one spelling",
			})
			continue
		}
		seen[lower] = name
	}
}
