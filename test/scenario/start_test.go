package scenario

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toolherd/toolherd/test/partners"
)

// httpGet asks a program's HTTP listener.
func (h *Herd) httpGet(t testing.TB, program, path string) (status int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Get("http://" + h.http[program] + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(content)
}

// CLI-002, OPS-006, CLI-003: every program says when it serves, and where; what it names answers.
func TestProgramsSayWhenTheyServe(t *testing.T) {
	servers := map[string]any{
		"fake": partners.Fake(t).Entry(), "missing": map[string]any{"command": "no-such-command"}, "off": with(partners.Fake(t).Entry(), "enabled", false),
	}
	Each(t, Options{Servers: servers, Workers: 1, Notifiers: 1}, func(t *testing.T, h *Herd) {
		// The ready line is not written before calls are served: this one is not repeated.
		if _, err := h.Tools(t).ListTools(t.Context(), nil); err != nil {
			t.Error(err)
		}
		for _, program := range h.programs() {
			// OPS-005: by service, as far as the program has it for callers on this listener.
			for service, s := range contract() {
				internal := service == "toolherd.toolproxy.v1.BackgroundToolService" || service == "toolherd.task.v1.TaskIntakeService"
				want := "NotFound"
				if s.program == program || forwards(program, service) || program == up && s.program != "" && !internal {
					want = serving
				}
				Eventually(t, service+" of "+program+" is "+want, func() bool { return h.health(t, program, service) == want })
			}
			if got := h.health(t, program, ""); got != serving {
				t.Errorf("%s as a whole is %s", program, got)
			}
			for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ok\n", "/metrics": `toolherd_build_info{service="`} {
				if status, body := h.httpGet(t, program, path); status != http.StatusOK || !strings.Contains(body, want) {
					t.Errorf("%s %s: %d %.300s", program, path, status, body)
				}
			}
		}
		if h.Topology == Split {
			return // the summary is the all-in-one's
		}
		h.Settled(t, "fake", "missing", "off")
		row := regexp.MustCompile(`(?m)^NAME +STATUS +TRANSPORT +TOOLS +REASON +NEXT STEP\nfake +ok +stdio +[1-9]\d*\nmissing +error +stdio +0 +.*no-such-command.*\noff +disabled +stdio +0 +\S.*$`)
		Eventually(t, "the summary is printed", func() bool { return row.MatchString(h.Proxy.Stdout()) })
		h.Write(t, map[string]any{"fake": partners.Fake(t, "-filler", "2").Entry(), "more": partners.Fake(t).Entry()})
		for _, line := range []string{`(?m)^more  ok  stdio  \d+ tools$`, `(?m)^missing  removed$`} {
			Eventually(t, "a line "+line, func() bool { return regexp.MustCompile(line).MatchString(h.Proxy.Stdout()) })
		}
	})
}

// CLI-001, OPS-006: the flags and the addresses without flags.
func TestFlagsAndDefaultAddresses(t *testing.T) {
	t.Parallel()
	help := Run(t, partners.Command{Path: partners.Toolherd(t), Args: []string{"up", "--help"}})
	for _, flag := range []string{
		`--listen string .*\(default "127.0.0.1:7400"\)`, `--http-listen string .*\(default "127.0.0.1:7480"\)`, `--state-dir string`, `--project string`,
		`--mcp-config \S+`, `--no-mcp\b`, `--trust-project-mcp\b`, `--postgres string`, `--config string`, `--log-level string`, `--log-file string`,
	} {
		help.want(t, 0, `(?m)^ +`+flag, ``)
	}
	for service, port := range map[string]int{"registry": 7401, "toolproxy": 7402, "taskworker": 7403, "notifier": 7404} {
		r := Run(t, partners.GoProgram(t, filepath.Join("services", service, "cmd", service)).With("--help"))
		if text := r.Stdout + r.Stderr; r.Code != 0 || !regexp.MustCompile(fmt.Sprintf(`--listen string .*\(default "127.0.0.1:%d"\)`, port)).MatchString(text) {
			t.Errorf("%s --help exits with %d:\n%s", service, r.Code, text)
		}
		for peer, port := range map[string]int{"registry": 7401, "toolproxy": 7402, "taskworker": 7403, "notifier": 7404} {
			if flag := fmt.Sprintf(`--%s string .*\(default "127.0.0.1:%d"\)`, peer, port); !regexp.MustCompile(flag).MatchString(r.Stdout + r.Stderr) {
				t.Errorf("%s --help does not have %s", service, flag)
			}
		}
	}
}

// CFG-004: --mcp-config is repeatable, a later one beats an earlier one, `~` is expanded, relative paths count from the
// caller's working directory.
func TestExplicitFilesComeInOrder(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{Idle: true})
	file := func(path string, servers string) {
		h.save(t, path, `{"mcpServers":{`+servers+`}}`)
	}
	fake := func(args ...string) string {
		c := partners.Fake(t, args...)
		return fmt.Sprintf(`{"command":%q,"args":["%s"]}`, c.Path, strings.Join(c.Args, `","`))
	}
	file(h.path("home", "first.json"), `"both":`+fake("-only", "echo")+`,"first":`+fake("-only", "echo"))
	file(h.path("project", "second.json"), `"both":`+fake("-only", "pid,env,counter")+`,"second":`+fake("-only", "echo"))
	h.toolherd(t, "servers", "--mcp-config", "~/first.json", "--mcp-config", "second.json").want(t, 0,
		`\nboth +ok +stdio +3\nfirst +ok +stdio +1\nsecond +ok +stdio +1\n$`, `^$`)
	h.toolherd(t, "servers", "--mcp-config", "second.json", "--mcp-config", "~/first.json").want(t, 0, `\nboth +ok +stdio +1\n`, `^$`)
	list := h.path("home", "first.json") + string(os.PathListSeparator) + "second.json"
	h.toolherdWith(t, []string{"TOOLHERD_MCP_CONFIG=" + list}, "servers").want(t, 0, `\nboth +ok +stdio +3\n`, `^$`)
}

// CFG-011: a file that was named and is missing ends the start; the error names it and who named it.
func TestAMissingExplicitFileIsFatal(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing.json")
	for _, topology := range []Topology{SQLite, Split} {
		h := New(t, topology, Options{Idle: true})
		program := h.programs()[0]
		c := h.Command(t, program)
		Run(t, c.With("--mcp-config", missing)).want(t, 1, `^$`, `--mcp-config.*`+regexp.QuoteMeta(missing))
		for _, variable := range []string{"TOOLHERD_MCP_CONFIG", "DEER_FLOW_EXTENSIONS_CONFIG_PATH"} {
			c := h.Command(t, program)
			c.Args = without(c.Args, "--mcp-config", h.Config)
			c.Env = append(c.Env, variable+"="+missing)
			Run(t, c).want(t, 1, `^$`, variable+`.*`+regexp.QuoteMeta(missing))
		}
	}
}

// without returns args less a flag with its value.
func without(args []string, flag, value string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		if args[i] == flag && i+1 < len(args) && args[i+1] == value {
			i++
			continue
		}
		out = append(out, args[i])
	}
	return out
}

// opens watches files and returns how often any was opened since.
func opens(t *testing.T, paths ...string) func() int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	for _, path := range paths {
		if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
	}
	return func() int {
		buf := make([]byte, 64<<10)
		n, err := unix.Read(fd, buf)
		if err == unix.EAGAIN {
			return 0
		}
		if err != nil {
			t.Fatal(err)
		}
		return n / unix.SizeofInotifyEvent
	}
}

// CFG-006: --no-mcp opens no server file, wherever it is, and starts nothing.
func TestNoMCPOpensNothingAndStartsNothing(t *testing.T) {
	for _, topology := range []Topology{SQLite, Split} {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			h := New(t, topology, Options{Idle: true})
			marker := h.path("out", "started")
			content := fmt.Sprintf(`{"mcpServers":{"x":{"command":"touch","args":[%q]}}}`, marker)
			files := []string{h.path("home", ".toolherd", ".mcp.json"), h.path("project", ".mcp.json")}
			for _, path := range files {
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				h.save(t, path, content)
			}
			opened := opens(t, files...)
			c := h.Command(t, h.programs()[0])
			c.Args = without(c.Args, "--mcp-config", h.Config)
			p := Start(t, "without", h.path("out"), c.With("--no-mcp", "--trust-project-mcp"))
			p.Announced(t, `(?m)^(ready) `)
			if topology == SQLite {
				Eventually(t, "the summary is printed", func() bool { return strings.Contains(p.Stdout(), "no MCP servers are configured") })
			}
			p.Stop(t)
			if n := opened(); n != 0 {
				t.Errorf("the server files were opened %d times", n)
			}
			if _, err := os.Stat(marker); err == nil {
				t.Error("a server was started")
			}
			// Without the flag they are read, and the watch sees it.
			p = Start(t, "with", h.path("out"), c.With("--trust-project-mcp"))
			p.Announced(t, `(?m)^(ready) `)
			if opened() == 0 {
				t.Error("the watch does not see that files are opened")
			}
			p.Stop(t)
		})
	}
}

// CFG-059: a key comes from its flag, else its variable, else toolherd.yaml; an unknown key stops the start.
func TestServiceKeysComeFromFlagVariableAndFile(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{Idle: true})
	file := h.path("config", "toolherd.yaml")
	run := func(env []string, args ...string) Result {
		t.Helper()
		return h.toolherdWith(t, append(env, "TOOLHERD_CONFIG="+file), append([]string{"up"}, args...)...)
	}
	h.save(t, file, "log_level: from-file\n")
	run(nil).want(t, 2, `^$`, `log_level.*from-file`)
	run([]string{"TOOLHERD_LOG_LEVEL=from-variable"}).want(t, 2, `^$`, `log_level.*from-variable`)
	run([]string{"TOOLHERD_LOG_LEVEL=from-variable"}, "--log-level", "from-flag").want(t, 2, `^$`, `log_level.*from-flag`)
	h.save(t, file, "toolproxy:\n  max_mesage_bytes: 1MiB\n")
	run(nil).want(t, 2, `^$`, `toolproxy\.max_mesage_bytes.*did you mean "toolproxy\.max_message_bytes"`)

	// And what the file says is in force.
	h.save(t, file, "toolproxy: {max_message_bytes: 128KiB}\n")
	h.o.Args = []string{"--config", file}
	h.Write(t, map[string]any{"fake": partners.Fake(t).Entry()})
	h.LaunchAll(t)
	h.SettledOK(t, "fake")
	if _, err := h.Do(t, Call{Tool: "fake_big", Arguments: `{"bytes":200000}`}); reasonOf(err).Reason != "PAYLOAD_TOO_LARGE" {
		t.Errorf("a result above the configured limit ends with %v", err)
	}
}

// OPS-001: a listener that others can reach needs tokens and TLS, or says that something else protects it.
func TestAListenerForOthersNeedsTokensAndTLS(t *testing.T) {
	t.Parallel()
	h := New(t, SQLite, Options{Idle: true, Authenticated: true})
	tokens := []string{"--tokens-file", h.path("config", "tokens.yaml")}
	tls := []string{"--tls-cert-file", h.authority.Cert, "--tls-key-file", h.authority.Key}
	refused := func(want string, args ...string) {
		t.Helper()
		h.toolherd(t, append([]string{"up", "--http-listen", "", "--listen", "0.0.0.0:0"}, args...)...).want(t, 1, `^$`, want)
	}
	refused(`auth\.tokens_file.*tls\.cert_file`)
	refused(`auth\.tokens_file`, tls...)
	refused(`tls\.cert_file`, tokens...)
	refused(`auth\.tokens_file`, "--insecure-plaintext")
	for name, args := range map[string][]string{"tls": append(tokens, tls...), "plaintext": append(tokens, "--insecure-plaintext")} {
		p := Start(t, name, h.path("out"), h.clientCommand(t, append([]string{"up", "--http-listen", "", "--listen", "0.0.0.0:0"}, args...)...))
		p.Announced(t, `(?m)^(ready) grpc=`)
		p.Stop(t)
	}
}
