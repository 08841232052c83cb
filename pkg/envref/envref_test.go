package envref_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/toolherd/toolherd/pkg/envref"
)

func lookup(name string) (string, bool) {
	v, ok := map[string]string{
		"A": "one", "EMPTY": "", "NESTED": "${A}", "TOOLHERD_TOKEN": "hidden", "PGPASSWORD": "hidden", envref.ConfigDir: "/etc/x",
	}[name]
	return v, ok
}

func TestExpand(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"plain":                      "plain",
		"${A}":                       "one",
		"$A":                         "one",
		"$$A":                        "$A",
		"x$A":                        "x$A",
		"pa$$word":                   "pa$$word",
		"$${A}":                      "${A}",
		"Bearer ${A}/${EMPTY:-two}/": "Bearer one/two/",
		"${EMPTY}":                   "",
		"${UNSET:-}":                 "",
		"${NESTED}":                  "${A}",
		"${TOOLHERD_CONFIG_DIR}":     "/etc/x",
		"100%$":                      "100%$",
	} {
		if got, err := envref.Expand(text, lookup); err != nil || got.Text != want || len(got.Unresolved) > 0 {
			t.Errorf("%q expands to %+v, %v, want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"${UNSET}":          "UNSET, which is not set: set UNSET, give it a default with ${UNSET:-default}, or write $${UNSET}",
		"$UNSET":            "or write $$UNSET",
		"${TOOLHERD_TOKEN}": "TOOLHERD_TOKEN is Toolherd's own",
		"$PGPASSWORD":       "PGPASSWORD is Toolherd's own",
	} {
		got, err := envref.Expand(text, lookup)
		if err != nil || got.Text != "" || len(got.Unresolved) != 1 {
			t.Errorf("%q expands to %+v, %v, want one unresolved reference", text, got, err)
			continue
		}
		if says := got.Unresolved[0].Message() + ": " + got.Unresolved[0].Hint(); !strings.Contains(says, want) || strings.Contains(says, "hidden") {
			t.Errorf("%q: %s, want %s", text, says, want)
		}
	}
	for _, text := range []string{"${", "${A", "${}", "${1}", "${A-b}", "${A:-{}}"} {
		if _, err := envref.Expand(text, lookup); !errors.Is(err, envref.ErrMalformed) {
			t.Errorf("%q: %v, want a malformed reference", text, err)
		}
	}
}
