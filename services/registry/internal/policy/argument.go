package policy

import (
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// execFlags run what follows them, for one launcher or interpreter or another.
var execFlags = []string{"-c", "--call", "-e", "--eval", "--print", "--shell", "--node-arg", "--node-options"}

// token is one argument in its normal form.
type token struct {
	flag     string // dashes and name, long names in lower case; empty unless it is an option
	hasValue bool   // behind an equals sign
}

// option reads an argument as an option, or reports that it is none, such as "--" and "-".
func option(v strictjson.Value) (t token, ok bool) {
	text := strings.TrimSpace(v.Text())
	if v.Kind() != strictjson.String || !strings.HasPrefix(text, "-") || strings.Trim(text, "-") == "" {
		return token{}, false
	}
	t.flag, _, t.hasValue = strings.Cut(text, "=")
	if strings.HasPrefix(t.flag, "--") {
		t.flag = strings.ToLower("--" + strings.TrimLeft(t.flag, "-")) // npm takes any number of dashes
	}
	return t, true
}

// isCluster reports whether the token has one dash and more than one letter.
func (t token) isCluster() bool { return len(t.flag) > 2 && t.flag[1] != '-' }

// arguments screens the arguments of command.
func arguments(command string, args strictjson.Value) (Refusal, bool) {
	find := interpreterFlag
	switch strings.ToLower(command) {
	case "npx":
		find = npx.flag
	case "uvx":
		find = uvx.flag
	}
	if i, flag := find(args); flag != "" {
		return Refusal{
			Path:    strictjson.Item("args", i),
			Message: "the flag " + flag + " runs a string as a program",
			Hint:    "name a package or a module to start instead, or write the entry in its file",
		}, false
	}
	return Refusal{}, true
}

// launcher is a program that starts a package. What stands behind the package is the package's own business.
type launcher struct {
	runs       func(t token) string // the flag by which t runs a string, or ""
	takesValue func(t token) bool
	// mayBeOption says that what begins with a dash behind t is an option even though t takes a value.
	mayBeOption func(t token) bool
}

// flag returns the first flag in the launcher's own options that runs a string, and where it is.
//
// Those options end at "--", at "-", at what begins with no dash and is no value of an option, and at what is no string.
func (l launcher) flag(args strictjson.Value) (int, string) {
	var before token // an option whose value may come, or nothing
	for i, element := range args.Elements() {
		t, ok := option(element)
		if before.flag != "" && (!ok || !l.mayBeOption(before)) {
			before = token{}
			continue
		}
		before = token{}
		if !ok {
			return 0, ""
		}
		if flag := l.runs(t); flag != "" {
			return i, flag
		}
		if !t.hasValue && l.takesValue(t) {
			before = t
		}
	}
	return 0, ""
}

var npx = launcher{
	runs:       npxRuns,
	takesValue: func(t token) bool { return !slices.Contains(npxSwitches, t.flag) },
	// As npx itself has it: any other option that could take a value, known or not, leaves alone what begins with a dash.
	mayBeOption: func(t token) bool { return !slices.Contains(npxGreedy, t.flag) },
}

// npxRuns also knows the other spellings that npm takes for its flags: with one dash, cut short, or among other letters.
func npxRuns(t token) string {
	if slices.Contains(execFlags, t.flag) {
		return t.flag
	}
	if slices.Contains(npxSwitches, t.flag) {
		return ""
	}
	name := t.flag
	if t.isCluster() {
		if strings.Contains(t.flag, "c") {
			return "-c"
		}
		name = strings.ToLower("-" + t.flag)
	}
	const shortest = len("--cal") // what is shorter is ambiguous to npm, or a flag of its own
	for _, flag := range execFlags {
		if len(name) >= shortest && strings.HasPrefix(flag, name) {
			return flag
		}
	}
	return ""
}

var uvx = launcher{
	runs: func(t token) string {
		if strings.HasPrefix(t.flag, "--") && slices.Contains(execFlags, t.flag) {
			return t.flag
		}
		return "" // -c is a file of constraints, -p a version of Python
	},
	takesValue:  func(t token) bool { return slices.Contains(uvxValues, t.flag) },
	mayBeOption: func(token) bool { return false },
}

// interpreterFlag screens all arguments of a program that is no launcher. Letters behind one dash are looked at one by
// one, so that a word with one dash and a c, e or p in it is refused whatever it means to the program.
func interpreterFlag(args strictjson.Value) (int, string) {
	for i, element := range args.Elements() {
		t, ok := option(element)
		if !ok {
			continue
		}
		flag := strings.ToLower(t.flag)
		if slices.Contains(execFlags, flag) || flag == "-p" {
			return i, flag
		}
		if !t.isCluster() {
			continue
		}
		if at := strings.IndexAny(flag, "cep"); at >= 0 {
			return i, "-" + flag[at:at+1]
		}
	}
	return 0, ""
}
