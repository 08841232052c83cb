package spelling_test

import (
	"testing"

	"github.com/toolherd/toolherd/pkg/spelling"
)

func TestDistanceCountsEdits(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "abd", 1}, {"abc", "ab", 1}, {"abc", "xabc", 1},
		{"form", "from", 1}, {"ca", "abc", 3}, {"kitten", "sitting", 3},
	} {
		if got, back := spelling.Distance(c.a, c.b), spelling.Distance(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("%q and %q: got %d and %d, want %d", c.a, c.b, got, back, c.want)
		}
	}
}

func TestNearestIsWithinItsBoundAndTheFirstOfEquals(t *testing.T) {
	known := []string{"listen", "lists", "log_level"}
	for _, c := range []struct {
		word string
		most int
		want string
	}{
		{"listen", 0, "listen"}, {"lissten", 1, "listen"}, {"lisst", 2, "lists"}, {"liste", 1, "listen"}, {"log", 2, ""}, {"x", -1, ""},
	} {
		if got := spelling.Nearest(c.word, known, c.most); got != c.want {
			t.Errorf("%q within %d: got %q, want %q", c.word, c.most, got, c.want)
		}
	}
}
