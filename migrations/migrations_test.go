package migrations_test

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"github.com/toolherd/toolherd/migrations"
)

// That both engines have the same names, and that each table belongs to the owner of its file, is tested in test/arch.
func TestNumbersRiseByOneFromOne(t *testing.T) {
	for _, engine := range []string{migrations.Postgres, migrations.SQLite} {
		for i, name := range names(t, engine) {
			if want := fmt.Sprintf("%04d_", i+1); !strings.HasPrefix(name, want) {
				t.Errorf("file %d of %s is %s, want a name that begins with %s", i+1, engine, name, want)
			}
		}
	}
}

func TestFilesGoForwardOnly(t *testing.T) {
	each(t, func(t *testing.T, text string) {
		if strings.Contains(text, "+goose Down") {
			t.Error("has a down part: mend a schema with the next number instead")
		}
	})
}

func TestConstraintsHaveNames(t *testing.T) {
	each(t, func(t *testing.T, text string) {
		for i, line := range strings.Split(text, "\n") {
			line, _, _ = strings.Cut(line, "--")
			unnamed := regexp.MustCompile(`\b(primary key|unique \(|references|check \()`)
			if unnamed.MatchString(line) && !strings.Contains(line, "constraint ") {
				t.Errorf("line %d has a constraint without a name: %s", i+1, strings.TrimSpace(line))
			}
		}
	})
}

func TestUnknownEnginePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("FS of an unknown engine returned")
		}
	}()
	migrations.FS("oracle")
}

func names(t *testing.T, engine string) []string {
	t.Helper()
	found, err := fs.Glob(migrations.FS(engine), "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatalf("%s has no migrations", engine)
	}
	return found
}

func each(t *testing.T, check func(t *testing.T, text string)) {
	t.Helper()
	for _, engine := range []string{migrations.Postgres, migrations.SQLite} {
		for _, name := range names(t, engine) {
			t.Run(engine+"/"+name, func(t *testing.T) {
				text, err := fs.ReadFile(migrations.FS(engine), name)
				if err != nil {
					t.Fatal(err)
				}
				check(t, string(text))
			})
		}
	}
}
