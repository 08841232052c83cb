package arch

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rule forbids packages below `from` to import anything below one of `deny`, packages in `except` aside.
type rule struct {
	from   string
	deny   []string
	except []string
	tests  bool // also holds for _test.go files
	why    string
}

var rules = []rule{
	{from: "proto", deny: []string{module + "pkg", module + "services", module + "cmd", module + "test"}, tests: true,
		why: "contracts depend on nothing of ours"},
	{from: "migrations", deny: []string{module + "pkg", module + "services", module + "cmd", module + "test"}, tests: true,
		why: "the schema depends on nothing of ours"},
	{from: "pkg", deny: []string{module + "services", module + "cmd", module + "test"}, tests: true,
		why: "a package of pkg could move to its own repository"},
	{from: "services/registry", deny: []string{module + "services/toolproxy", module + "services/taskworker", module + "services/notifier", module + "cmd", module + "test"}, tests: true,
		why: "services meet over gRPC only"},
	{from: "services/toolproxy", deny: []string{module + "services/registry", module + "services/taskworker", module + "services/notifier", module + "cmd", module + "test"}, tests: true,
		why: "services meet over gRPC only"},
	{from: "services/taskworker", deny: []string{module + "services/registry", module + "services/toolproxy", module + "services/notifier", module + "cmd", module + "test"}, tests: true,
		why: "services meet over gRPC only"},
	{from: "services/notifier", deny: []string{module + "services/registry", module + "services/toolproxy", module + "services/taskworker", module + "cmd", module + "test"}, tests: true,
		why: "services meet over gRPC only"},
	{from: "cmd", deny: []string{module + "test"}, tests: true,
		why: "the product does not depend on its system tests"},
	{from: "services/toolproxy", deny: []string{module + "pkg/db", module + "pkg/wake", module + "migrations"}, tests: true,
		why: "toolproxy has no database: killed and restarted it serves the same tools"},
	{from: "services/taskworker", deny: []string{"github.com/modelcontextprotocol", module + "pkg/serverconfig", module + "pkg/safehttp", "os/exec", "net/http"},
		why: "taskworker talks no MCP, starts nothing and reads no server entry"},
	{from: "services/notifier", deny: []string{"github.com/modelcontextprotocol", module + "pkg/serverconfig"}, tests: true,
		why: "notifier talks no MCP and reads no server entry"},
	{from: "services/registry", deny: []string{"github.com/modelcontextprotocol"}, tests: true,
		why: "registry calls no tool"},
	{from: "", deny: []string{module + "pkg/outbox"}, except: []string{"pkg/outbox", "services/taskworker", "services/notifier"}, tests: true,
		why: "taskworker appends to the outbox, notifier takes from it, and nobody else knows it"},
	{from: "", deny: []string{"google.golang.org/grpc/codes", "google.golang.org/grpc/status"}, except: []string{"pkg/rpc"},
		why: "errors are faults; status codes are made in pkg/rpc alone"},
	{from: "", deny: []string{"github.com/jackc/pgx"}, except: []string{"pkg/db", "pkg/wake", "pkg/outbox", "services/registry/internal/*/pgstore", "services/taskworker/internal/*/pgstore", "services/notifier/internal/*/pgstore"},
		why: "nothing above pgstore knows the Postgres driver"},
	{from: "", deny: []string{"modernc.org/sqlite"}, except: []string{"pkg/db", "pkg/outbox", "services/registry/internal/*/litestore", "services/taskworker/internal/*/litestore", "services/notifier/internal/*/litestore"},
		why: "nothing above litestore knows the SQLite driver"},
	{from: "", deny: []string{"testing", "github.com/google/go-cmp", "pgregory.net/rapid", "go.uber.org/goleak"}, except: []string{"test", "*test"},
		why: "production code links no test library"},
	{from: "", deny: []string{"math/rand$"}, tests: true, why: "math/rand/v2 replaces it"},
	{from: "", deny: []string{"unsafe", "C"}, tests: true, why: "CGO_ENABLED=0 builds, and no tricks"},
}

func TestImportsFollowTheHouse(t *testing.T) {
	for _, f := range sources(t) {
		for _, r := range rules {
			if f.test && !r.tests || r.from != "" && !within(f.pkg, r.from) || excepted(f.pkg, r.except) {
				continue
			}
			for _, imp := range f.imports {
				if slices.ContainsFunc(r.deny, func(d string) bool { return denies(d, imp) }) {
					t.Errorf("%s imports %s: %s", f.path, imp, r.why)
				}
			}
		}
	}
}

// reach forbids what a service must not even reach through others.
var reach = []struct {
	dir  string
	deny []string
	why  string
}{
	{"services/taskworker", []string{"github.com/modelcontextprotocol", module + "pkg/serverconfig", module + "pkg/safehttp", module + "services/toolproxy"},
		"taskworker opens no connection to an MCP server and starts none: remote tasks are toolproxy's"},
	{"services/notifier", []string{"github.com/modelcontextprotocol", module + "pkg/serverconfig", module + "services/taskworker"},
		"notifier knows events, not tasks nor servers"},
	{"services/toolproxy", []string{"github.com/jackc/pgx", "modernc.org/sqlite", "github.com/pressly/goose", module + "pkg/outbox"},
		"toolproxy has no database"},
}

// TASK-052: what taskworker does to remote tasks it asks of BackgroundToolService, since it can do nothing else.
func TestServicesReachOnlyWhatIsTheirs(t *testing.T) {
	for _, r := range reach {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", ".")
		cmd.Dir = filepath.Join(root(t), filepath.FromSlash(r.dir))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("list what %s depends on: %v", r.dir, err)
		}
		deps := strings.Fields(string(out))
		if !slices.Contains(deps, "google.golang.org/grpc") {
			t.Fatalf("%s depends on %d packages and not on gRPC: the list is wrong", r.dir, len(deps))
		}
		for _, dep := range deps {
			if slices.ContainsFunc(r.deny, func(d string) bool { return denies(d, dep) }) {
				t.Errorf("%s reaches %s: %s", r.dir, dep, r.why)
			}
		}
	}
}

// denies matches an import with a forbidden path and everything below it, or with the path alone if it ends in $.
func denies(deny, imp string) bool {
	if exact, ok := strings.CutSuffix(deny, "$"); ok {
		return imp == exact
	}
	return within(imp, deny)
}

// excepted matches a package path with patterns: a prefix, one with a * for a segment, or *suffix for the last segment.
func excepted(pkg string, patterns []string) bool {
	for _, p := range patterns {
		if suffix, ok := strings.CutPrefix(p, "*"); ok {
			if strings.HasSuffix(pkg, suffix) {
				return true
			}
			continue
		}
		want, got := strings.Split(p, "/"), strings.Split(pkg, "/")
		if len(got) < len(want) {
			continue
		}
		match := true
		for i := range want {
			match = match && (want[i] == "*" || want[i] == got[i])
		}
		if match {
			return true
		}
	}
	return false
}

func TestExceptionsMatchWhatTheyName(t *testing.T) {
	for _, c := range []struct {
		pkg     string
		pattern string
		want    bool
	}{
		{"pkg/rpc", "pkg/rpc", true},
		{"pkg/rpc/rpctest", "pkg/rpc", true},
		{"pkg/rpcx", "pkg/rpc", false},
		{"services/registry/internal/snapshot/pgstore", "services/registry/internal/*/pgstore", true},
		{"services/registry/internal/snapshot", "services/registry/internal/*/pgstore", false},
		{"pkg/db/dbtest", "*test", true},
		{"pkg/latest/x", "*test", false},
	} {
		if got := excepted(c.pkg, []string{c.pattern}); got != c.want {
			t.Errorf("excepted(%q, %q) = %v", c.pkg, c.pattern, got)
		}
	}
}
