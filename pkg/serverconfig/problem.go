package serverconfig

import (
	"fmt"
	"strings"

	"github.com/toolherd/toolherd/pkg/fault"
)

// Severity says what a problem means for what it is about.
type Severity uint8

// The severities.
const (
	SeverityError   Severity = iota // the entry, or the file, cannot be used
	SeverityWarning                 // it can be used, though perhaps not as meant
)

// String returns "error" or "warning".
func (s Severity) String() string {
	if s == SeverityWarning {
		return "warning"
	}
	return "error"
}

// The reasons: stable words for programs.
const (
	ReasonSyntax            = "syntax"              // not JSON, or beyond a limit
	ReasonDuplicateKey      = "duplicate_key"       // an object has two members of one name
	ReasonBadName           = "bad_name"            // a server name or a header name outside its rule
	ReasonWrongType         = "wrong_type"          // such as a number where text is wanted
	ReasonMissing           = "missing"             // a field that has to be there
	ReasonConflict          = "conflict"            // two fields that exclude each other
	ReasonUnsupported       = "unsupported"         // a word that is none of the known ones
	ReasonOutOfRange        = "out_of_range"        // a number, time or length beyond its bounds
	ReasonBadValue          = "bad_value"           // text that cannot be what the field is for
	ReasonUnknownKey        = "unknown_key"         // a key that nothing reads
	ReasonIgnored           = "ignored"             // a field without effect on this transport
	ReasonBadReference      = "bad_reference"       // a ${ that is no reference
	ReasonForbiddenVariable = "forbidden_variable"  // a variable that never resolves in an entry
	ReasonUnsetVariable     = "unset_variable"      // a variable that is not set and has no default
	ReasonIllegalHeader     = "illegal_header"      // a header value that must not reach the wire
	ReasonTooMany           = "too_many"            // problems that are not listed one by one
	ReasonMaskedValue       = "masked_value"        // stars that stand for nothing that is stored
	ReasonMissingSecret     = "missing_secret"      // a literal that the store does not have
	ReasonChanged           = "changed_public_json" // public JSON that Externalize did not write
)

// Problem is one finding about an entry or a file. It is for people and programs, and never contains a credential value.
type Problem struct {
	Severity Severity
	Server   string // empty where the whole file is meant
	Path     string // the field, such as headers.Authorization or args[2]; empty for the whole entry or file
	Reason   string // one of the Reason constants
	Message  string // what is wrong
	Hint     string // the next step

	// Where in a file, if known: counted from 1, in characters, a byte order mark aside.
	Line, Column int
	// Source is the offending line of broken JSON, perhaps shortened, with stars for secrets. Caret is a line to show
	// below it, whose ^ marks the column. Both are empty where there is nothing to point at.
	Source, Caret string
}

// String returns the finding for a terminal: place, cause and next step on one line, then the line of a broken file.
func (p Problem) String() string {
	var b strings.Builder
	if p.Server != "" {
		fmt.Fprintf(&b, "server %q: ", p.Server)
	}
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d, column %d: ", p.Line, p.Column)
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString(": " + p.Hint)
	}
	if p.Caret != "" {
		b.WriteString("\n    " + p.Source + "\n    " + p.Caret)
	}
	return b.String()
}

// HasErrors reports whether any of the problems is an error.
func HasErrors(problems []Problem) bool {
	for _, p := range problems {
		if p.Severity == SeverityError {
			return true
		}
	}
	return false
}

// Fault returns the errors among problems as one fault, or nil if there is none. Its reason is CREDENTIAL_ILLEGAL where
// all of them are illegal header values, else CONFIG_INVALID; its violations are the errors one by one.
func Fault(problems []Problem) error {
	var lines []string
	var violations []fault.Violation
	reason := fault.CredentialIllegal
	for _, p := range problems {
		if p.Severity != SeverityError {
			continue
		}
		if p.Reason != ReasonIllegalHeader {
			reason = fault.ConfigInvalid
		}
		lines = append(lines, p.String())
		field := p.Path
		if p.Server != "" {
			field = strings.TrimSuffix("mcpServers."+p.Server+"."+p.Path, ".")
		}
		violations = append(violations, fault.Violation{Field: field, Description: p.Message + ": " + p.Hint})
	}
	if len(lines) == 0 {
		return nil
	}
	return fault.New(reason, "%s", strings.Join(lines, "\n")).WithViolations(violations...)
}
