package serverconfig_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"pgregory.net/rapid"
)

// tree is JSON whose members are written in an order and with white space that the test chooses.
type tree struct {
	members []member // of an object
	items   []tree   // of a list
	scalar  string   // JSON
	kind    byte     // o, l or s
}

type member struct {
	name  string
	value tree
}

func trees(depth int) *rapid.Generator[tree] {
	return rapid.Custom(func(t *rapid.T) tree {
		kind := byte('s')
		if depth > 0 {
			kind = rapid.SampledFrom([]byte("osl")).Draw(t, "kind")
		}
		switch kind {
		case 'o':
			var members []member
			for _, name := range rapid.SliceOfNDistinct(rapid.String(), 0, 4, rapid.ID).Draw(t, "names") {
				members = append(members, member{name, trees(depth-1).Draw(t, "value")})
			}
			return tree{kind: kind, members: members}
		case 'l':
			return tree{kind: kind, items: rapid.SliceOfN(trees(depth-1), 0, 3).Draw(t, "items")}
		}
		scalar := rapid.SampledFrom([]string{"null", "true", "1.0", "1", "-0", "1e400", "9007199254740993", ""}).Draw(t, "scalar")
		if scalar == "" {
			text, _ := json.Marshal(rapid.String().Draw(t, "text"))
			scalar = string(text)
		}
		return tree{kind: kind, scalar: scalar}
	})
}

// write renders a tree with its members in a drawn order and drawn white space between its tokens.
func (n tree) write(t *rapid.T, b *strings.Builder) {
	blank := func() { b.WriteString(rapid.SampledFrom([]string{"", " ", "\n", "\t ", "\r\n"}).Draw(t, "blank")) }
	blank()
	switch n.kind {
	case 'o':
		b.WriteByte('{')
		for i, m := range rapid.Permutation(n.members).Draw(t, "order") {
			if i > 0 {
				b.WriteByte(',')
			}
			blank()
			name, _ := json.Marshal(m.name)
			b.Write(name)
			blank()
			b.WriteByte(':')
			m.value.write(t, b)
		}
		blank()
		b.WriteByte('}')
	case 'l':
		b.WriteByte('[')
		for i, item := range n.items {
			if i > 0 {
				b.WriteByte(',')
			}
			item.write(t, b)
		}
		blank()
		b.WriteByte(']')
	default:
		b.WriteString(n.scalar)
	}
	blank()
}

func TestCanonicalIsStableUnderKeyOrderAndWhiteSpace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := trees(4).Draw(t, "tree")
		var a, b strings.Builder
		n.write(t, &a)
		n.write(t, &b)
		first, err := serverconfig.Canonical([]byte(a.String()))
		if err != nil {
			t.Fatalf("%s: %v", a.String(), err)
		}
		second, err := serverconfig.Canonical([]byte(b.String()))
		if err != nil || string(first) != string(second) {
			t.Fatalf("%s\n%s\n%s\n%s\n%v", a.String(), b.String(), first, second, err)
		}
		if again, err := serverconfig.Canonical(first); err != nil || string(again) != string(first) {
			t.Fatalf("not its own canonical form: %s", first)
		}
		if serverconfig.Fingerprint([]byte(a.String())) != serverconfig.Fingerprint([]byte(b.String())) {
			t.Fatalf("two fingerprints of %s", first)
		}
	})
}

// pieces make up the texts of entries: references, escapes, dollars, and things that look like credentials.
var pieces = []string{
	"${A}", "${B}", "${EMPTY}", "${UNSET:-fall}", "${EMPTY:-}", "$${", "$A", "$", "$$A", "plain", " ", "Bearer ", "Basic ", "=", ":", "--token", "--api-key=", "https://",
	"@", "/x?token=", "&k=v", "sk-abcdefgh", "\"", "\\", "é", "\n", "{", "}",
}

func text() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 5).Draw(t, "pieces"), "")
	})
}

// entry draws a server entry; the keys are such that secrets are in all places where they can be.
func entry() *rapid.Generator[map[string]any] {
	return rapid.Custom(func(t *rapid.T) map[string]any {
		names := func(some ...string) map[string]any {
			m := map[string]any{}
			for _, name := range some {
				if rapid.Bool().Draw(t, "with "+name) {
					m[name] = text().Draw(t, name)
				}
			}
			return m
		}
		extra := map[string]any{"apiKey": text().Draw(t, "apiKey"), "list": []any{names("password", "note")}, "n": 1.5, "token": map[string]any{"deep": text().Draw(t, "deep")}}
		if rapid.Bool().Draw(t, "remote") {
			return map[string]any{
				"url": "https://x.example/" + text().Draw(t, "url"), "headers": names("X-One", "Authorization"), "extra": extra,
				"oauth":     map[string]any{"token_url": "u", "client_secret": text().Draw(t, "secret"), "extra_token_params": names("p", "q"), "more": extra},
				"user_auth": map[string]any{"users": names("bob", "eve@x")},
			}
		}
		args := []any{}
		for range rapid.IntRange(0, 4).Draw(t, "args") {
			args = append(args, text().Draw(t, "arg"))
		}
		return map[string]any{"command": "c" + text().Draw(t, "command"), "args": args, "env": names("ONE", "A_TOKEN", "a.b"), "cwd": text().Draw(t, "cwd"), "extra": extra}
	})
}

var propertyVars = map[string]string{"A": "value-a", "B": "${A} $A", "EMPTY": ""}

// Taking the literals out and putting them back must change nothing that the server sees. What the server should see is
// computed here from the entry itself, by the rules for references alone.
func TestExternalizeAndResolveGiveWhatIsWritten(t *testing.T) {
	resolved := 0
	rapid.Check(t, func(t *rapid.T) {
		written := entry().Draw(t, "entry")
		raw, _ := json.Marshal(written)
		e, problems := serverconfig.Decode("srv", raw)
		got, err := resolve(string(raw), propertyVars)
		if serverconfig.HasErrors(problems) {
			return // the server is not started, whatever Resolve says
		}
		want, wantErr := serverconfig.Resolve(e, raw, env(propertyVars), nil)
		if (err == nil) != (wantErr == nil) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Fatalf("%s: %v, want %v", raw, err, wantErr)
		}
		if err != nil {
			return
		}
		resolved++
		if diff := cmp.Diff(view(want), view(got)); diff != "" {
			t.Fatalf("%s: %s", raw, diff)
		}
		if diff := cmp.Diff(want.Secrets(), got.Secrets()); diff != "" {
			t.Fatalf("%s: %s", raw, diff)
		}
	})
	if resolved == 0 {
		t.Error("no drawn entry resolved: the test proves nothing")
	}
}

// view makes the fields of a Resolved comparable, which prints as its name otherwise.
func view(r serverconfig.Resolved) any {
	block := func(b *serverconfig.Block) string {
		if b == nil {
			return ""
		}
		c, err := serverconfig.Canonical(b.JSON)
		return fmt.Sprint(string(c), b.Enabled, err)
	}
	return []any{r.Transport, r.Command, r.Args, r.Env, r.Cwd, r.URL, r.Headers, block(r.OAuth), block(r.Auth), block(r.UserAuth)}
}

// No secret may be seen in what is shown or stored in the clear: marked values are put in every secret place.
func TestMaskAndPublicJSONHoldNoSecret(t *testing.T) {
	const mark = "S3cr3t"
	rapid.Check(t, func(t *rapid.T) {
		n := 0
		secretText := func() string {
			n++
			return rapid.SampledFrom([]string{"%", "${A}%", "%${A}", "Bearer %", "${A:-%}", "x$%", "$$%", "\"%\\", "Basic ${A} %", "${%"}).Draw(t, "form")
		}
		fill := func() string { return strings.ReplaceAll(secretText(), "%", fmt.Sprintf("%s%d", mark, n)) }
		key := rapid.SampledFrom([]string{"token", "githubToken", "X-Api-Key", "CLIENT_SECRET", "my.password", "credentials"})
		nested := func() any {
			var v any = map[string]any{key.Draw(t, "key"): rapid.SampledFrom([]any{fill(), []any{fill()}, map[string]any{"x": fill()}}).Draw(t, "value")}
			for range rapid.IntRange(0, 3).Draw(t, "depth") {
				if rapid.Bool().Draw(t, "list") {
					v = []any{v}
				} else {
					v = map[string]any{"x": v}
				}
			}
			return v
		}
		raw, _ := json.Marshal(map[string]any{
			"command": "x", "url": "https://u:" + mark + "@x.example/?token=" + mark, "extra": nested(),
			"args":                 []any{"--token=" + mark, "--api-key", mark, "Authorization: Bearer " + mark, "https://" + mark + "@x.example/", nested()},
			"env":                  map[string]any{"ANY": fill(), "LIST": []any{fill()}},
			"headers":              map[string]any{"Any": fill()},
			"oauth":                map[string]any{"client_secret": fill(), "refresh_token": []any{fill()}, "extra_token_params": map[string]any{"any": fill()}, "more": nested()},
			"auth":                 map[string]any{"type": "oauth", "client_secret": fill(), "more": nested()},
			"user_auth":            map[string]any{"users": map[string]any{"bob": fill()}, "more": nested()},
			"headers_from_context": map[string]any{"more": nested()},
			"tools":                map[string]any{"t": map[string]any{"more": nested()}},
		})
		masked := serverconfig.Mask(raw)
		public, secrets := serverconfig.Externalize("srv", raw, mac)
		for name, shown := range map[string]string{"Mask": string(masked), "Externalize": string(public)} {
			if strings.Contains(shown, mark) {
				t.Fatalf("%s of %s\nshows %s", name, raw, shown)
			}
			if !json.Valid([]byte(shown)) {
				t.Fatalf("%s of %s\nis no JSON: %s", name, raw, shown)
			}
		}
		if len(secrets) == 0 {
			t.Fatal("nothing was taken out")
		}
		_, problems := serverconfig.Decode("srv", raw)
		for _, p := range problems {
			if strings.Contains(p.String(), mark) {
				t.Fatalf("a problem shows a secret: %v", p)
			}
		}
	})
}
