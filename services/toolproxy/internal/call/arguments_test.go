package call

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/toolherd/toolherd/pkg/fault"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

func withJSON(text string) *toolproxyv1.CallToolRequest {
	return &toolproxyv1.CallToolRequest{Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: text}}
}

// CALL-002: arguments_json goes on token for token.
func TestArgumentsJSONStaysAsItIs(t *testing.T) {
	for _, text := range []string{
		`{}`, `{"n":9007199254740993,"d":1.10,"e":1e400,"z":-0.0}`, `{"b":1,"a":{"y":[],"x":"\u0041\/<&>"}}`, " {\n\"a\" : 1 }\t",
		`{"a":{"k":1},"b":{"k":1},"c":[{"k":1},{"k":1}]}`, `{"":"","\"":"\\\""}`,
	} {
		got, err := arguments(withJSON(text))
		if err != nil || string(got) != text {
			t.Errorf("%s became %s, %v", text, got, err)
		}
	}
	if got, err := arguments(&toolproxyv1.CallToolRequest{}); got != nil || err != nil {
		t.Errorf("no arguments became %s, %v", got, err)
	}
}

func TestBadArgumentsJSONIsRefused(t *testing.T) {
	var many strings.Builder
	many.WriteString(`{"k0":0`)
	for i := range 100 {
		fmt.Fprintf(&many, `,"k%d":0`, i+1)
	}
	for name, text := range map[string]string{
		"not JSON":                `{"a":}`,
		"two values":              `{} {}`,
		"an array":                `[1]`,
		"a string":                `"{}"`,
		"null":                    `null`,
		"a duplicate":             `{"a":1,"a":2}`,
		"a duplicate deep inside": `{"a":[{"b":{"c":1,"d":[{}],"c":2}}]}`,
		"a duplicate in disguise": `{"name":1,"n\u0061me":2}`,
		"a duplicate among many":  many.String() + `,"k50":1}`,
	} {
		if got, err := arguments(withJSON(text)); !fault.Is(err, fault.InvalidArguments) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	if _, err := arguments(withJSON(many.String() + "}")); err != nil {
		t.Errorf("many keys: %v", err)
	}
}

// The one-pass search for duplicates agrees with a plain one on whatever is valid.
func FuzzDuplicateKey(f *testing.F) {
	for _, s := range []string{`{"a":1,"a":2}`, `[{"a":"\\\"","b":{}},{"a":[]}]`, `{"\u0061":1,"a":"}"}`, `"{"`, `{"a":{"a":1}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !jsonrpc.Valid([]byte(text)) {
			return
		}
		_, got := duplicateKey([]byte(text))
		if want := hasDuplicate(json.RawMessage(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	})
}

func hasDuplicate(raw json.RawMessage) bool {
	seen := map[string]bool{}
	for key, value := range jsonrpc.Members(raw) {
		if seen[string(key)] || hasDuplicate(value) {
			return true
		}
		seen[string(key)] = true
	}
	for e := range jsonrpc.Elements(raw) {
		if hasDuplicate(e) {
			return true
		}
	}
	return false
}

func withStruct(t *testing.T, m map[string]any) *toolproxyv1.CallToolRequest {
	t.Helper()
	s, err := structpb.NewStruct(m)
	if err != nil {
		t.Fatal(err)
	}
	return &toolproxyv1.CallToolRequest{Args: &toolproxyv1.CallToolRequest_Arguments{Arguments: s}}
}

func TestStructArguments(t *testing.T) {
	got, err := arguments(withStruct(t, map[string]any{
		"b": true, "a": nil, "n": 1.5, "i": 9007199254740991.0, "neg": -3.0, "tiny": 1e-9, "zero": 0.0,
		"s": "a\"<&>\u2028", "l": []any{1.0, "x", []any{}}, "o": map[string]any{"y": 1.0, "x": map[string]any{}},
	}))
	want := `{"a":null,"b":true,"i":9007199254740991,"l":[1,"x",[]],"n":1.5,"neg":-3,"o":{"x":{},"y":1},"s":"a\"<&>` + "\u2028" + `","tiny":1e-09,"zero":0}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v\nwant %s", got, err, want)
	}
	if !json.Valid(got) {
		t.Error("that is no JSON")
	}
}

// CALL-002: a number of 2^53 or more in a Struct is refused with a pointer to arguments_json.
func TestNumbersThatMayHaveLostDigitsAreRefused(t *testing.T) {
	for _, n := range []float64{1 << 53, -(1 << 53), 1 << 60, 1e300} {
		_, err := arguments(withStruct(t, map[string]any{"a": map[string]any{"l": []any{1.0, n}}}))
		if !fault.Is(err, fault.InvalidArguments) || !strings.Contains(err.Error(), "arguments_json") || !strings.Contains(err.Error(), "arguments.a.l[1]") {
			t.Errorf("%v: %v", n, err)
		}
	}
	for _, n := range []float64{math.NaN(), math.Inf(1)} {
		if _, err := arguments(withStruct(t, map[string]any{"n": n})); !fault.Is(err, fault.InvalidArguments) {
			t.Errorf("%v: %v", n, err)
		}
	}
	empty := &toolproxyv1.CallToolRequest_Arguments{Arguments: &structpb.Struct{Fields: map[string]*structpb.Value{"v": {}}}}
	if _, err := arguments(&toolproxyv1.CallToolRequest{Args: empty}); !fault.Is(err, fault.InvalidArguments) {
		t.Errorf("a value without a kind: %v", err)
	}
}
