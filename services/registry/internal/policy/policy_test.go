package policy_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
	"github.com/toolherd/toolherd/services/registry/internal/policy"
)

// parse returns the value that text says.
func parse(tb testing.TB, text string) strictjson.Value {
	tb.Helper()
	v, err := strictjson.Parse([]byte(text), strictjson.Limits{Bytes: 1 << 20, Depth: 20})
	if err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	return v
}

// entry returns a stdio entry. Its arguments are the words of args.
func entry(tb testing.TB, command, args string) strictjson.Value {
	tb.Helper()
	text, err := json.Marshal(map[string]any{"command": command, "args": strings.Fields(args)})
	if err != nil {
		tb.Fatal(err)
	}
	return parse(tb, string(text))
}

// paths returns "path: message" of each refusal.
func paths(refusals []policy.Refusal) []string {
	var out []string
	for _, r := range refusals {
		out = append(out, r.Path+": "+r.Message)
	}
	return out
}

func TestWhichEntriesAreJudged(t *testing.T) {
	for text, want := range map[string]bool{
		`{"command":"x"}`:                                        true,
		`{"type":"stdio","command":"x"}`:                         true,
		`{"type":"STDIO","command":"x"}`:                         true,
		`{"transport":"Stdio","command":"x"}`:                    true,
		`{"type":"","transport":"stdio","url":"http://h"}`:       true,
		`{"type":null,"command":"x"}`:                            true,
		`{}`:                                                     true,
		`{"url":"http://h"}`:                                     false,
		`{"type":"http","command":"x"}`:                          false,
		`{"type":"sse","url":"http://h"}`:                        false,
		`{"type":"streamable-http","transport":"stdio"}`:         false,
		`{"type":7,"command":"x"}`:                               false,
		`{"url":"http://h","command":"x","transport":"stdio"}`:   true,
		`{"type":"http","transport":"stdio","url":"http://h"}`:   false,
		`{"type":"stdio","transport":"http","url":"http://h"}`:   true,
		`{"command":"sh","args":["-c","x"],"url":"http://host"}`: false,
	} {
		v := parse(t, text)
		if got := policy.Applies(v); got != want {
			t.Errorf("%s: judged %v, want %v", text, got, want)
		}
		if got := policy.New(nil).Judge(v); !want && got != nil {
			t.Errorf("%s: is refused: %v", text, got)
		}
	}
}

// POL-003, POL-004
func TestCommands(t *testing.T) {
	p := policy.New([]string{"python", " node ", "", "npx", "python"})
	if diff := cmp.Diff([]string{"npx", "uvx", "python", "node"}, p.Allowed()); diff != "" {
		t.Errorf("allowed (-want +got):\n%s", diff)
	}
	for _, good := range []string{"npx", "uvx", "python", "node"} {
		if got := p.Judge(entry(t, good, "")); got != nil {
			t.Errorf("%s is refused: %v", good, got)
		}
	}
	for bad, why := range map[string]string{
		"": "blank", "  ": "blank", "\t": "blank",
		" npx": "white space", "npx ": "white space", "npx\n": "white space",
		"/usr/bin/npx": "not a path", "./npx": "not a path", `C:\npx`: "not a path",
		"npx ; id": "one word", "npx;id": "one word", "npx|id": "one word", "npx&": "one word", "`id`": "one word", "$SHELL": "one word",
		"npx<x": "one word", "npx>x": "one word", "a\nb": "one word", "a\rb": "one word", "a b": "one word", "a\tb": "one word", "a\u00a0b": "one word",
		"a\x00b": "one word", "bash": "not allowed", "NPX": "not allowed", "Uvx": "not allowed", "npx.cmd": "not allowed",
	} {
		got := p.Judge(entry(t, bad, ""))
		if len(got) != 1 || got[0].Path != "command" || !strings.Contains(got[0].Message, why) {
			t.Errorf("%q: %v, want one refusal of command that says %q", bad, got, why)
			continue
		}
		for _, word := range []string{"npx, uvx, python, node", "registry.stdio_command_allowlist", policy.AllowlistVariable} {
			if !strings.Contains(got[0].Hint, word) {
				t.Errorf("%q: %q does not say %q", bad, got[0].Hint, word)
			}
		}
	}
	var zero policy.Policy
	if got := zero.Judge(entry(t, "uvx", "tool")); got != nil {
		t.Errorf("the zero policy refuses uvx: %v", got)
	}
	if got := zero.Judge(parse(t, `{"type":"stdio"}`)); len(got) != 1 || got[0].Path != "command" {
		t.Errorf("without a command: %v", got)
	}
}

// verdicts checks what is said about command with each line of arguments: the flag that is named, or "" for allowed.
func verdicts(t *testing.T, command string, want map[string]string) {
	t.Helper()
	p := policy.New([]string{"python", "node", "perl", "NPX"})
	for args, flag := range want {
		got := p.Judge(entry(t, command, args))
		switch {
		case flag == "" && got != nil:
			t.Errorf("%s %s is refused: %v", command, args, got)
		case flag != "" && (len(got) != 1 || !strings.HasPrefix(got[0].Path, "args[") || !strings.Contains(got[0].Message, "flag "+flag+" ")):
			t.Errorf("%s %s: %v, want one refusal that names %s", command, args, got, flag)
		}
	}
}

// POL-005, POL-008, POL-011, POL-012
func TestRefusedArgumentsOfNpx(t *testing.T) {
	want := map[string]string{
		"-c X": "-c", "--yes -c X": "-c", "--call=X": "--call", "-c=X": "-c", "--CALL X": "--call", "--eval": "--eval", "-e X": "-e",
		"--print 1": "--print", "--node-arg -e 1": "--node-arg", "--node-options=X": "--node-options", "--shell X": "--shell",

		"-p pkg -c X": "-c", "--package pkg --call X": "--call", "--registry u -c X": "-c", "-w ws --call X": "--call",
		"--loglevel silly -c X": "-c", "--not-an-npm-option value --call X": "--call",
	}
	verdicts(t, "npx", want)
	verdicts(t, "NPX", want)
}

// POL-013
func TestAllowedArgumentsOfNpx(t *testing.T) {
	verdicts(t, "npx", map[string]string{
		"": "", "-y pkg": "", "--yes --package=p bin": "", "-p p bin": "", "-y pkg -c f": "", "-y pkg -e production": "", "-y pkg -- -c f": "",
		"-- pkg --eval x": "", "pkg --call x": "", "--parseable pkg -c f": "", "-C /dir pkg": "", "-P pkg -c f": "", "-y pkg -name v": "",
		"--package -c pkg": "", "- -c x": "", "--ca file pkg": "", "-desc pkg -c x": "", "-porcelain pkg --call x": "",
	})
}

// The region stays open for what npx itself would take for an option there, and closed to other spellings of its flags.
func TestOtherSpellingsOfNpxFlags(t *testing.T) {
	verdicts(t, "npx", map[string]string{
		"-yc X": "-c", "-call X": "-c", "-call=X": "-c", "---call X": "--call", "--cal X": "--call", "-cX": "-c", "--node-opt X": "--node-options",
		"-node-options=X": "--node-options", "--foo --call=X": "--call", "--registry -c X": "-c", "--foo -yc X": "-c",
	})
}

// POL-006, POL-007
func TestWhereTheOptionsOfALauncherEnd(t *testing.T) {
	p := policy.New(nil)
	for args, refused := range map[string]bool{
		`[" -c ","x"]`:                  true,
		`["  --Call=x"]`:                true,
		`["\t--yes","-c"]`:              true,
		`[" -- ","-c"]`:                 false,
		`["-","-c"]`:                    false,
		`["pkg","-c"]`:                  false,
		`["","-c"]`:                     false,
		`[7,"-c"]`:                      false,
		`[null,"-c"]`:                   false,
		`["-y",["x"],"-c"]`:             false,
		`["-C","-y","pkg","-c"]`:        false,
		`["-C","dir","-c"]`:             true,
		`["--prefix=dir","-c"]`:         true,
		`["--prefix","dir","pkg","-c"]`: false,
		`["--PREFIX","dir","-c"]`:       true,
		`["--YES","pkg","-c"]`:          false,
		`"-c"`:                          false,
		`{"0":"-c"}`:                    false,
	} {
		got := p.Judge(parse(t, `{"command":"npx","args":`+args+`}`))
		if (len(got) > 0) != refused {
			t.Errorf("%s: %v, want refused: %v", args, got, refused)
		}
	}
}

// POL-009, POL-014
func TestArgumentsOfUvx(t *testing.T) {
	verdicts(t, "uvx", map[string]string{
		"--eval X tool": "--eval", "--EVAL=X tool": "--eval", "--from p --print x": "--print", "--offline --call x": "--call",
		"tool": "", "--from p tool --print table": "", "-p 3.12 tool": "", "-c constraints.txt tool": "", "tool -e prod": "",
		"--with --eval tool": "", "--unknown tool --eval": "", "-v -e": "", "--from=p tool --eval": "",
	})
}

// POL-010, POL-015
func TestArgumentsOfInterpreters(t *testing.T) {
	verdicts(t, "python", map[string]string{"-c X": "-c", "-Ic": "-c", "-p x": "-p", "-m mod": "", "-m mod -c x": "-c", "-C X": "-c", "--eval=x": "--eval", "--Print": "--print", "-u main.py": "", "-- -c": "-c"})
	verdicts(t, "node", map[string]string{"-p X": "-p", "-p=1": "-p", "-pe": "-p", "-ep": "-e", "-version": "-e", "--version": "", "server.js --port 1": "", "- x": ""})
	verdicts(t, "perl", map[string]string{"-we": "-e", "-w x.pl": ""})
}

// POL-016, POL-017
func TestVariables(t *testing.T) {
	refused := strings.Fields(`BASH_ENV DYLD_INSERT_LIBRARIES ENV LD_AUDIT LD_PRELOAD NODE_OPTIONS PERL5OPT PYTHONHOME PYTHONPATH PYTHONSTARTUP
		RUBYOPT PATH npm_config_registry NPM_CONFIG_call UV_INDEX UV_INDEX_URL UV_DEFAULT_INDEX UV_EXTRA_INDEX_URL UV_PYTHON UV_PYTHON_INSTALL_MIRROR
		GIT_SSH GIT_SSH_COMMAND GIT_EXEC_PATH Path node_options uv_index_x`)
	refused = append(refused, " LD_PRELOAD ", "\tenv\n")
	for _, command := range []string{"npx", "uvx", "python"} {
		p := policy.New([]string{"python"})
		for _, name := range refused {
			text, err := json.Marshal(map[string]any{"command": command, "env": map[string]string{name: "the-value"}})
			if err != nil {
				t.Fatal(err)
			}
			got := p.Judge(parse(t, string(text)))
			if len(got) != 1 || got[0].Path != strictjson.Field("env", name) || !strings.Contains(got[0].Message, strings.ToUpper(strings.TrimSpace(name))) {
				t.Errorf("%s with %q: %v, want one refusal of it", command, name, got)
			}
		}
		for _, name := range []string{"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "NODE_PATH", "TOKEN", "UV_CACHE_DIR", "GIT_DIR", "MY_PATH", "ENVIRONMENT", "NPM_TOKEN", "PYTHONUNBUFFERED", "INDEX"} {
			if got := p.Judge(parse(t, `{"command":"`+command+`","env":{"`+name+`":"v"}}`)); got != nil {
				t.Errorf("%s with %s is refused: %v", command, name, got)
			}
		}
	}
}

// POL-002: whatever the caller wrote is a secret for all anybody knows.
func TestARefusalDoesNotRepeatValues(t *testing.T) {
	const value = "hunter2"
	p := policy.New([]string{"python"})
	for _, text := range []string{
		`{"command":"hunter2"}`, `{"command":"/bin/hunter2"}`, `{"command":"npx","args":["--call=hunter2"]}`, `{"command":"npx","args":["-chunter2"]}`,
		`{"command":"python","args":["-ehunter2"]}`, `{"command":"uvx","args":["--eval=hunter2"]}`, `{"command":"npx","env":{"PATH":"hunter2"}}`,
		`{"command":"npx","args":["--call","hunter2"]}`, `{"command":"python","args":["-c","hunter2"]}`,
	} {
		got := p.Judge(parse(t, text))
		if len(got) == 0 {
			t.Errorf("%s is allowed", text)
		}
		for _, r := range got {
			if strings.Contains(r.Path+r.Message+r.Hint, value) {
				t.Errorf("%s: %v repeats what was written", text, r)
			}
		}
	}
}

func TestAllRefusalsOfAnEntryComeTogether(t *testing.T) {
	got := policy.New(nil).Judge(parse(t, `{"command":"sh","args":["-c","x"],"env":{"PATH":"x","A":"y","LD_PRELOAD":"z"}}`))
	want := []string{
		"command: this command is not allowed", "args[0]: the flag -c runs a string as a program",
		"env.PATH: the variable PATH makes a program load or run something else",
		"env.LD_PRELOAD: the variable LD_PRELOAD makes a program load or run something else",
	}
	if diff := cmp.Diff(want, paths(got)); diff != "" {
		t.Errorf("refusals (-want +got):\n%s", diff)
	}
}
