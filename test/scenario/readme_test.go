package scenario

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toolherd/toolherd/test/partners"
)

// fenced is a fenced block of README.md.
type fenced struct {
	info  string // what follows the fence, such as "sh tour"
	lines []string
}

func readmeBlocks(t testing.TB) []fenced {
	t.Helper()
	f, err := os.Open(filepath.Join(partners.Root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var blocks []fenced
	open := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		switch info, fence := strings.CutPrefix(line, "```"); {
		case fence && open:
			open = false
		case fence:
			open = true
			blocks = append(blocks, fenced{info: info})
		case open:
			last := &blocks[len(blocks)-1]
			last.lines = append(last.lines, line)
		}
	}
	return blocks
}

const (
	goRun    = "go run ./cmd/toolherd"
	grpcPort = "127.0.0.1:7400"
)

// bash runs lines of README.md in the root of the repository as a person would, but with the built program and at the
// address of the running one. Both output streams come as one.
func (h *Herd) bash(t testing.TB, lines []string) string {
	t.Helper()
	script := strings.Join(lines, "\n")
	script = strings.ReplaceAll(script, goRun, partners.Toolherd(t))
	script = strings.ReplaceAll(script, grpcPort, h.addresses[up])
	r := Run(t, partners.Command{
		Path: "/bin/bash", Args: []string{"-euo", "pipefail", "-c", "exec 2>&1\n" + script}, Dir: partners.Root(t),
		Env: []string{"HOME=" + h.path("home"), "PATH=" + filepath.Dir(partners.Grpcurl(t).Path) + ":" + os.Getenv("PATH")},
	})
	if r.Code != 0 {
		t.Fatalf("exit status %d of\n%s\n%s", r.Code, script, r.Stdout)
	}
	return r.Stdout
}

// OPS-004, CLI-004: README's first command serves, its tour shows what it says, and its grpcurl lines work as printed.
func TestREADMEWorksAsPrinted(t *testing.T) {
	t.Parallel()
	blocks := readmeBlocks(t)
	if len(blocks) < 6 || len(blocks[0].lines) != 1 || !strings.HasPrefix(blocks[0].lines[0], goRun+" up") {
		t.Fatalf("README.md does not begin with the command that runs it: %v", blocks)
	}
	h := New(t, SQLite, Options{Idle: true})
	args := strings.Fields(strings.TrimPrefix(blocks[0].lines[0], goRun))
	p := Start(t, up, h.path("out"), partners.Command{
		Path: partners.Toolherd(t), Args: append(args, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"), Dir: partners.Root(t),
		Env: []string{"HOME=" + h.path("home")},
	})
	h.started[up] = p
	h.AwaitReady(t, up)

	tours := 0
	for i, b := range blocks {
		switch b.info {
		case "text": // what `up` prints
			want := strings.Join(b.lines, "\n") + "\n"
			Eventually(t, "up prints "+want, func() bool { return strings.HasPrefix(p.Stdout(), want) })
		case "sh tour":
			tours++
			rest := h.bash(t, b.lines)
			if i+1 == len(blocks) || blocks[i+1].info != "output" {
				continue
			}
			for _, line := range blocks[i+1].lines {
				at := regexp.MustCompile("(?m)^" + regexp.QuoteMeta(line)).FindStringIndex(rest)
				if at == nil {
					t.Fatalf("%q does not appear, or not in this order:\n%s", line, rest)
				}
				rest = rest[at[1]:]
			}
		case "sh grpcurl":
			tours++
			h.checkGrpcurl(t, b.lines)
		}
	}
	if tours < 3 {
		t.Errorf("README.md has only %d blocks to run", tours)
	}
}

// checkGrpcurl runs each line and looks for what its command is there for.
func (h *Herd) checkGrpcurl(t *testing.T, lines []string) {
	t.Helper()
	for _, want := range []struct{ command, output string }{
		{" list", `(?m)^toolherd\.toolproxy\.v1\.ToolProxyService$`},
		{" describe ", `(?s)toolherd\.toolproxy\.v1\.ToolProxyService\.CallTool is a method:.*rpc CallTool \( \.toolherd\.toolproxy\.v1\.CallToolRequest \)`},
		{"/ListTools", `(?s)"name": "demo_add".*"status": "SERVER_STATUS_OK"`},
		{"/CallTool", `(?s)"result": \{.*"text": "42".*"server": "demo"`},
	} {
		found := false
		for _, line := range lines {
			if !strings.Contains(line, want.command) {
				continue
			}
			found = true
			if got := h.bash(t, []string{line}); !regexp.MustCompile(want.output).MatchString(got) {
				t.Errorf("%s prints no %s:\n%s", line, want.output, got)
			}
		}
		if !found {
			t.Errorf("README.md shows no grpcurl line with %q", want.command)
		}
	}
	for name, s := range contract() {
		got := h.bash(t, []string{"grpcurl -plaintext " + grpcPort + " describe " + name})
		for rpc := range strings.FieldsSeq(s.rpcs) {
			if !strings.Contains(got, "rpc "+rpc+" ") {
				t.Errorf("grpcurl describes %s without %s:\n%s", name, rpc, got)
			}
		}
	}
}
