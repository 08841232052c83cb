package stdio

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func newRing() (*ring, *[]string) {
	var seen []string
	return &ring{
		redact: func(s string) string { return strings.ReplaceAll(s, "topsecret", "***") },
		seen:   func(line string) { seen = append(seen, line) },
	}, &seen
}

// SESS-021
func TestStderrIsCleanedRedactedAndCut(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"plain", "hello\nworld\n", "hello\nworld"},
		{"without an end", "hello\nworl", "hello\nworl"},
		{"blank lines", "\n \n\r\na\n\n", "a"},
		{"colours", "\x1b[1;31merror\x1b[0m: no\r\n", "error: no"},
		{"control characters", "a\x00b\x07c\x7f\u0085\td\x1b\n", "abc d"},
		{"invisible formatting", "a\u202eb\u200bc\ufeff\n", "abc"},
		{"invalid UTF-8", "a\xffb\n", "a\uFFFDb"},
		{"a secret", "key topsecret!\n", "key ***!"},
		{"a secret with control characters in it", "key top\x1b[0msec\x00ret!\n", "key ***!"},
		{"a line as long as allowed", strings.Repeat("é", maxLineChars) + "\n", strings.Repeat("é", maxLineChars)},
		{"a longer line", strings.Repeat("é", maxLineChars+1) + "\n", strings.Repeat("é", maxLineChars-len(" …[cut]")+2) + " …[cut]"},
		{"a secret across the cut", strings.Repeat("x", maxLineChars-4) + "topsecret" + strings.Repeat("y", 10) + "\n",
			strings.Repeat("x", maxLineChars-7) + " …[cut]"},
	} {
		for _, size := range []int{1, 1000, 1 << 20} {
			t.Run(fmt.Sprintf("%s, in pieces of %d", c.name, size), func(t *testing.T) {
				r, _ := newRing()
				for rest := []byte(c.in); len(rest) > 0; {
					n := min(size, len(rest))
					r.Write(rest[:n])
					rest = rest[n:]
				}
				got := r.Tail()
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

// SESS-021
func TestStderrIsBounded(t *testing.T) {
	r, seen := newRing()
	for i := range 10_000 {
		r.Write(fmt.Appendf(nil, "line %d %s\n", i, strings.Repeat("x", 100)))
	}
	endless := []byte(strings.Repeat("y", 1<<16))
	for range 100 {
		r.Write(endless)
	}
	tail := r.Tail()
	if len(tail) > maxRingBytes+maxLineChars+100 {
		t.Errorf("%d bytes are kept", len(tail))
	}
	if cap(r.raw) > 2*maxRawBytes {
		t.Errorf("%d bytes are held for one line", cap(r.raw))
	}
	lines := strings.Split(tail, "\n")
	if last := lines[len(lines)-2]; !strings.HasPrefix(last, "line 9999 ") {
		t.Errorf("the last line is %.20q", last)
	}
	if last := lines[len(lines)-1]; utf8.RuneCountInString(last) != maxLineChars || !strings.HasSuffix(last, cutMark) {
		t.Errorf("the endless line is %d characters", len(last))
	}
	if len(*seen) != 10_000 {
		t.Errorf("%d lines were seen", len(*seen))
	}
}

func TestASecretOverTwoLinesIsRedacted(t *testing.T) {
	r, _ := newRing()
	r.redact = func(s string) string { return strings.ReplaceAll(s, "top\nsecret", "***") }
	r.Write([]byte("a top\nsecret b\n"))
	if got := r.Tail(); got != "a *** b" {
		t.Errorf("got %q", got)
	}
}
