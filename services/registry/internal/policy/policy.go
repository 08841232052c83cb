// Package policy is the launch policy: which command, arguments and environment an entry may have that is written through
// the API.
//
//	command ──▶ bare word, on the list ──▶ arguments ──▶ no flag that runs a string ──▶ env ──▶ no name that loads code
//
// It is defence in depth and no boundary: npx and uvx fetch and run code from elsewhere, which is what they are for.
// It keeps a caller of the API from running a string of its own by the flags of a launcher that was meant to start a
// package. Files are not judged, nor are servers that are reached over HTTP.
//
// The package looks at an entry alone and at nothing else: no file, no environment, no program. Who calls it decides which
// entries a write touches. No refusal holds what the caller wrote, but for the name of a variable.
package policy

import (
	"slices"
	"strconv"
	"strings"

	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// AllowlistVariable is the variable that extends the allowlist beside registry.stdio_command_allowlist. pkg/config reads it.
const AllowlistVariable = "DEER_FLOW_MCP_STDIO_COMMAND_ALLOWLIST"

// builtin are the commands that are always allowed.
var builtin = [...]string{"npx", "uvx"}

// Policy judges launches. The zero value allows npx and uvx.
type Policy struct{ extra []string }

// New returns a policy that allows the commands of extra too, compared exactly. Blank ones are left out.
func New(extra []string) Policy {
	var p Policy
	for _, name := range extra {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(p.Allowed(), name) {
			p.extra = append(p.extra, name)
		}
	}
	return p
}

// Allowed returns the commands that are allowed.
func (p Policy) Allowed() []string { return append(slices.Clone(builtin[:]), p.extra...) }

// Refusal is one reason not to launch an entry. It is for people and programs.
type Refusal struct {
	Path    string // such as command, args[1] or env.NODE_OPTIONS
	Message string // what is refused, by the name of the flag or variable
	Hint    string // the next step
}

// Applies reports whether entry is one of a server that is started here: its type, in lower case, is stdio, or it has
// none and no url.
func Applies(entry strictjson.Value) bool {
	for _, key := range []string{"type", "transport"} {
		if v := entry.Get(key); v.Kind() != strictjson.Missing && v.Kind() != strictjson.Null && v.Raw() != `""` {
			return strings.EqualFold(v.Text(), "stdio")
		}
	}
	return entry.Get("url").Text() == ""
}

// Judge returns why entry must not be launched: at most one refusal of its command and one of its arguments, and one for
// each variable. What is of a wrong type altogether is not judged but for the command; validation finds it.
func (p Policy) Judge(entry strictjson.Value) []Refusal {
	if !Applies(entry) {
		return nil
	}
	var out []Refusal
	command := entry.Get("command").Text()
	if r, ok := p.command(command); !ok {
		out = append(out, r)
	}
	if r, ok := arguments(command, entry.Get("args")); !ok {
		out = append(out, r)
	}
	for name := range entry.Get("env").Members() {
		if normal := strings.ToUpper(strings.TrimSpace(name)); loadsCode(normal) {
			shown := strconv.QuoteToASCII(normal)
			out = append(out, Refusal{
				Path:    strictjson.Field("env", name),
				Message: "the variable " + shown[1:len(shown)-1] + " makes a program load or run something else",
				Hint:    "remove it, or write the entry in its file",
			})
		}
	}
	return out
}

func (p Policy) command(name string) (Refusal, bool) {
	hint := "use one of " + strings.Join(p.Allowed(), ", ") + ", or let an operator extend registry.stdio_command_allowlist or " + AllowlistVariable
	refuse := func(message string) (Refusal, bool) { return Refusal{"command", message, hint}, false }
	switch {
	case strings.TrimSpace(name) == "":
		return refuse("a command must not be blank")
	case name != strings.TrimSpace(name):
		return refuse("a command must not begin or end with white space")
	case strings.ContainsAny(name, `/\`):
		return refuse("a command must be the name of a program, not a path")
	case strings.ContainsAny(name, ";|&`$<>") || strings.ContainsFunc(name, isSpace):
		return refuse("a command must be one word without characters of a shell")
	case !slices.Contains(p.Allowed(), name):
		return refuse("this command is not allowed")
	}
	return Refusal{}, true
}

// isSpace reports whether r is white space, as a terminal or a shell may take it.
func isSpace(r rune) bool { return r <= ' ' || strings.TrimSpace(string(r)) == "" }

// codeVariables make programs load or run what they name.
var codeVariables = [...]string{
	"BASH_ENV", "DYLD_INSERT_LIBRARIES", "ENV", "LD_AUDIT", "LD_PRELOAD", "NODE_OPTIONS", "PERL5OPT", "PYTHONHOME", "PYTHONPATH",
	"PYTHONSTARTUP", "RUBYOPT",
	"PATH", "GIT_EXEC_PATH", // which program a bare name is
}

// loadsCode reports whether a variable, in upper case, decides which code runs.
func loadsCode(name string) bool {
	if slices.Contains(codeVariables[:], name) {
		return true
	}
	uv, isUV := strings.CutPrefix(name, "UV_")
	return strings.HasPrefix(name, "NPM_CONFIG_") || strings.HasPrefix(name, "GIT_SSH") ||
		isUV && (strings.Contains(uv, "INDEX") || strings.HasPrefix(uv, "PYTHON"))
}
