package arch

import (
	"go/ast"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const maxLines = 500

func TestFilesAreShort(t *testing.T) {
	for _, f := range sources(t) {
		if f.lines > maxLines {
			t.Errorf("%s has %d lines, at most %d: split it by topic", f.path, f.lines, maxLines)
		}
		if path.Base(f.path) == "main.go" && within(f.pkg, "services") && f.lines > 40 {
			t.Errorf("%s has %d lines: a service's main only wires, in at most 40", f.path, f.lines)
		}
	}
}

func TestEveryPackageHasOneDoc(t *testing.T) {
	docs, seen := map[string][]string{}, map[string]bool{}
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		seen[f.pkg] = true
		if f.ast.Doc != nil && strings.TrimSpace(f.ast.Doc.Text()) != "" {
			docs[f.pkg] = append(docs[f.pkg], f.path)
		}
	}
	for pkg := range seen {
		if len(docs[pkg]) != 1 {
			t.Errorf("package %s has %d package docs %v, want exactly one", pkg, len(docs[pkg]), docs[pkg])
		}
	}
}

func TestNoPackageIsNamedForNothing(t *testing.T) {
	empty := []string{"util", "utils", "common", "shared", "helper", "helpers", "types", "models", "base", "misc", "errors", "log", "context"}
	for _, f := range sources(t) {
		if slices.Contains(empty, f.ast.Name.Name) || slices.Contains(empty, path.Base(f.pkg)) {
			t.Errorf("%s: package %s says nothing about what it provides, or hides a package of the standard library", f.path, f.ast.Name.Name)
		}
	}
}

func TestStoresAreSmallAndNamesPlain(t *testing.T) {
	stutter := regexp.MustCompile(`(Impl|Manager|Helper|Base)$`)
	for _, f := range sources(t) {
		for _, decl := range f.ast.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range gen.Specs {
				ts, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				if stutter.MatchString(ts.Name.Name) {
					t.Errorf("%s: type %s: name what it is", f.path, ts.Name.Name)
				}
				if iface, ok := ts.Type.(*ast.InterfaceType); ok && len(iface.Methods.List) > 12 {
					t.Errorf("%s: interface %s has %d methods, at most 12", f.path, ts.Name.Name, len(iface.Methods.List))
				}
			}
		}
	}
}

func TestNoInitFunctions(t *testing.T) {
	for _, f := range sources(t) {
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s has an init function: wire it where it is used", f.path)
			}
		}
	}
}

// owners maps a table prefix to the module that may name it in SQL. The outbox is written by two services through pkg/outbox.
var owners = map[string]string{
	"registry_":     "services/registry",
	"credential_":   "services/registry",
	"task_":         "services/taskworker",
	"notification_": "services/notifier",
	"outbox":        "pkg/outbox",
}

// OPS-013: migrations have equal numbers and names on both engines, and each table is in one of its owner's.
func TestTablesBelongToTheOwnerNamedInTheMigration(t *testing.T) {
	create := regexp.MustCompile(`(?im)^\s*create\s+table\s+(?:if\s+not\s+exists\s+)?([a-z_]+)`)
	header := regexp.MustCompile(`^-- owner: ([a-z]+)\n`)
	byEngine := map[string][]string{}
	for _, name := range listFiles(t, "migrations/*.sql") {
		content, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		engine := path.Base(path.Dir(name))
		byEngine[engine] = append(byEngine[engine], path.Base(name))
		m := header.FindSubmatch(content)
		if m == nil {
			t.Errorf("%s does not begin with '-- owner: SERVICE'", name)
			continue
		}
		for _, table := range create.FindAllSubmatch(content, -1) {
			owner, ok := ownerOf(string(table[1]))
			if !ok || path.Base(owner) != string(m[1]) {
				t.Errorf("%s, owner %s, creates %s, which belongs to %q", name, m[1], table[1], owner)
			}
		}
	}
	slices.Sort(byEngine["postgres"])
	slices.Sort(byEngine["sqlite"])
	if !slices.Equal(byEngine["postgres"], byEngine["sqlite"]) || len(byEngine["postgres"]) == 0 {
		t.Errorf("migrations differ between engines: %v", byEngine)
	}
}

func ownerOf(table string) (string, bool) {
	for prefix, owner := range owners {
		if strings.HasPrefix(table, prefix) {
			return owner, true
		}
	}
	return "", false
}

// OPS-013, NOTE-004: no statement names another service's table; the notifier's name no task's, and the outbox is in those of
// pkg/outbox alone.
func TestSQLNamesOnlyTablesOfItsOwner(t *testing.T) {
	use := regexp.MustCompile(`(?i)\b(?:from|into|update|join|using|table|only)\s+((?:registry|credential|task|notification)_[a-z_]+|outbox[a-z_]*)`)
	for _, f := range sources(t) {
		if f.test || within(f.pkg, "test") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok {
				return true
			}
			for _, m := range use.FindAllStringSubmatch(lit.Value, -1) {
				if owner, _ := ownerOf(strings.ToLower(m[1])); !within(f.pkg, owner) {
					t.Errorf("%s touches table %s, which only %s may", f.path, m[1], owner)
				}
			}
			return true
		})
	}
}

func TestEveryModuleBuildsOutsideTheWorkspace(t *testing.T) {
	for _, mod := range listFiles(t, "*go.mod") {
		dir := path.Dir(mod)
		if dir == "tools" {
			continue
		}
		t.Run(dir, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "go", "build", "./...")
			cmd.Dir = filepath.Join(root(t), dir)
			cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("a module names every sibling it imports in its go.mod: %v\n%s", err, out)
			}
		})
	}
}

func TestTheTreeNamesNoMachine(t *testing.T) {
	path := regexp.MustCompile(`(/home/[a-z]+/|/root/)`)
	for _, name := range listFiles(t, "*.md", "*.go", "*.json", "*.yaml", "*.yml", "Makefile", ".ci/run", "Dockerfile") {
		if strings.HasPrefix(name, "test/arch/") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		if m := path.Find(content); m != nil {
			t.Errorf("%s names %s", name, m)
		}
	}
}

func TestOnlyTestsInABubbleSleep(t *testing.T) {
	bubbles := map[string]bool{}
	for _, f := range sources(t) {
		bubbles[f.pkg] = bubbles[f.pkg] || slices.Contains(f.imports, "testing/synctest")
	}
	for _, f := range sources(t) {
		if f.test && bubbles[f.pkg] {
			continue // time is virtual there
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Sleep" {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
				t.Errorf("%s sleeps: wait for an event, or use testing/synctest", f.path)
			}
			return true
		})
	}
}
