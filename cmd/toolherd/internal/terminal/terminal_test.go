package terminal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNothingThatMovesTheCursorIsPassedOn(t *testing.T) {
	for in, want := range map[string]string{
		"plain text, 100 % ünïcode": "plain text, 100 % ünïcode",
		"red \x1b[31mtext\x07":      "red \uFFFD[31mtext\uFFFD",
		"a\tb\r\nc":                 "a b  c",
		"evil\u202etxt\u200b":       "evil\uFFFDtxt\uFFFD",
	} {
		if got := Line(in); got != want {
			t.Errorf("Line(%q) is %q, want %q", in, got, want)
		}
	}
	if got := Text("one\x1b[2J\ntwo"); got != "one\uFFFD[2J\ntwo" {
		t.Errorf("got %q", got)
	}
}

func TestFilesAndBuffersAreNoTerminal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if Is(f, nil) || Is(&strings.Builder{}, nil) {
		t.Error("a file or a buffer is taken for a terminal")
	}
}
