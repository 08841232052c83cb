package rpc

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzClip(f *testing.F) {
	f.Add("server \"x\": exit 1")
	f.Add(strings.Repeat("日本語\xff%", 1000))
	f.Add("\xe6\x97")
	f.Fuzz(func(t *testing.T, message string) {
		got := clip(message)
		if !utf8.ValidString(got) {
			t.Errorf("%q became invalid UTF-8", message)
		}
		if len(got) > maxMessageCost {
			t.Errorf("%d bytes are left", len(got))
		}
		if clip(got) != got && !strings.HasSuffix(got, truncatedMarker) {
			t.Errorf("%q is cut twice", message)
		}
	})
}
