package secret_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/toolherd/toolherd/pkg/secret"
)

func TestStringShowsNothingHoweverItIsPrinted(t *testing.T) {
	const value = "hunter2hunter2"
	type holder struct {
		Public secret.String
		hidden secret.String
		list   []secret.String
		ptr    *secret.String
	}
	s := secret.NewString(value)
	h := holder{s, s, []secret.String{s}, &s}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "%p", "%08b", "%U"} {
		fmt.Fprintf(&out, verb+verb+verb, s, h, &h)
	}
	var logs bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&logs, nil), slog.NewJSONHandler(&logs, nil)} {
		slog.New(handler).Info("x", "s", s, "h", h, "p", &h)
	}
	encoded, err := json.Marshal(map[string]any{"s": s, "p": &s, "h": h, "m": map[secret.String]int{s: 1}})
	if err != nil {
		t.Fatal(err)
	}
	all := out.String() + logs.String() + string(encoded)
	for _, leak := range []string{value, fmt.Sprintf("%x", value), fmt.Sprintf("%X", value)} {
		if strings.Contains(all, leak) {
			t.Errorf("leaks as %q", leak)
		}
	}
	if !strings.Contains(string(encoded), `"s":"***"`) {
		t.Errorf("JSON: %s", encoded)
	}
	if s.Reveal() != value || !s.Equal(secret.NewString(value)) || s.IsEmpty() {
		t.Error("the value is lost")
	}
}

func TestEmptyStringIsEmpty(t *testing.T) {
	var zero secret.String
	for _, s := range []secret.String{zero, secret.NewString("")} {
		if !s.IsEmpty() || s.Reveal() != "" || s.String() != "" || !s.Equal(zero) {
			t.Errorf("%#v", s)
		}
	}
}

func TestStringIsReadFromText(t *testing.T) {
	var cfg struct{ Token secret.String }
	if err := json.Unmarshal([]byte(`{"Token":"hunter2hunter2"}`), &cfg); err != nil {
		t.Fatal(err)
	}
	if cfg.Token.Reveal() != "hunter2hunter2" {
		t.Errorf("read %q", cfg.Token.Reveal())
	}
}
