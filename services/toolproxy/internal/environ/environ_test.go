package environ

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	const content = "\ufeff# a comment\n" +
		"PLAIN=value\n" +
		"  SPACED =  two words  \n" +
		"export EXPORTED=yes\n" +
		"exported=no\n" +
		"COMMENTED=value # behind\n" +
		"HASH=a#b\n" +
		"SINGLE='$HOME # \\n'\n" +
		"DOUBLE=\"a\\n\\\"b\\\" \\$x \\q\" # behind\n" +
		"EMPTY=\n" +
		"URL=postgres://u:p@h/d?x=y\n" +
		"CRLF=value\r\n" +
		"TWICE=1\nTWICE=2\n" +
		"OPEN=\"never closed\n" +
		"1BAD=x\nno equals sign\n=x\n"
	want := map[string]string{
		"PLAIN": "value", "SPACED": "two words", "EXPORTED": "yes", "exported": "no", "COMMENTED": "value", "HASH": "a#b",
		"SINGLE": `$HOME # \n`, "DOUBLE": "a\n\"b\" $x \\q", "EMPTY": "", "URL": "postgres://u:p@h/d?x=y", "CRLF": "value", "TWICE": "2",
	}
	if diff := cmp.Diff(want, Parse(content)); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseDoesNotPanic(f *testing.F) {
	f.Add("export A=\"\\")
	f.Fuzz(func(_ *testing.T, content string) { Parse(content) })
}

func TestProcessComesBeforeFilesAndFilesInTheirOrder(t *testing.T) {
	home := t.TempDir()
	files := Files(home)
	for i, content := range []string{"IN_PROCESS=1\nIN_BOTH=first\n", "IN_BOTH=second\nIN_SECOND=x\n"} {
		if err := os.MkdirAll(filepath.Dir(files[i]), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(files[i], []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	process := func(name string) (string, bool) { return "", name == "IN_PROCESS" }
	lookup := Read(process, append(files, filepath.Join(home, "missing")), slog.New(slog.DiscardHandler))
	for name, want := range map[string]string{"IN_PROCESS": "", "IN_BOTH": "first", "IN_SECOND": "x"} {
		if got, ok := lookup(name); !ok || got != want {
			t.Errorf("%s is %q, %v", name, got, ok)
		}
	}
	if _, ok := lookup("NOWHERE"); ok {
		t.Error("a name that nobody sets was found")
	}
}
