package arch

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/toolherd/toolherd/"

// goFile is one parsed Go file of the tree, generated code left out.
type goFile struct {
	path    string // from the root, with slashes
	pkg     string // import path below the module prefix
	test    bool
	lines   int
	imports []string
	ast     *ast.File
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// listFiles returns the tracked and the not ignored untracked files that match the patterns.
func listFiles(t *testing.T, patterns ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"ls-files", "-co", "--exclude-standard", "--"}, patterns...)...)
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var files []string
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if _, err := os.Stat(filepath.Join(cmd.Dir, name)); err == nil {
			files = append(files, name)
		}
	}
	if len(files) == 0 {
		t.Fatalf("no file matches %v", patterns)
	}
	return files
}

var parsed struct {
	once  sync.Once
	files []goFile
}

func sources(t *testing.T) []goFile {
	t.Helper()
	parsed.once.Do(func() {
		for _, name := range listFiles(t, "*.go") {
			if strings.HasPrefix(name, "proto/gen/") {
				continue
			}
			content, err := os.ReadFile(filepath.Join(root(t), name))
			if err != nil {
				t.Fatal(err)
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			f := goFile{
				path: name, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go"),
				lines: bytes.Count(content, []byte("\n")), ast: file,
			}
			for _, imp := range file.Imports {
				f.imports = append(f.imports, strings.Trim(imp.Path.Value, `"`))
			}
			parsed.files = append(parsed.files, f)
		}
	})
	if len(parsed.files) < 50 {
		t.Fatalf("only %d Go files found", len(parsed.files))
	}
	return parsed.files
}

// within reports whether the slash path p is dir or below it.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
