package secret_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/toolherd/toolherd/pkg/secret"
	"pgregory.net/rapid"
)

func TestRedactByPattern(t *testing.T) {
	var none *secret.Redactor
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"nothing to see", "nothing to see"},
		// Bearer and Basic
		{"sent Bearer abcdef123 to it", "sent Bearer *** to it"},
		{"bearer abcdef123.", "bearer ***."},
		{"Basic dXNlcjpwYXNz", "Basic ***"},
		{"Basic authentication is not supported", "Basic authentication is not supported"},
		{"401 with Bearer realm=\"mcp\", error=\"invalid_token\"", "401 with Bearer realm=\"mcp\", error=\"invalid_token\""},
		{"forbearer abcdefgh", "forbearer abcdefgh"},
		// headers
		{"Authorization: Bearer a b c", "Authorization: ***"},
		{"> authorization: ApiKey xyz\r\n> accept: */*", "> authorization: ***\r\n> accept: */*"},
		{"Proxy-Authorization: Digest username=\"bob\", response=\"c0ffee\"", "Proxy-Authorization: ***"},
		{"Cookie: sid=1; theme=dark\nHost: x", "Cookie: ***\nHost: x"},
		{`curl -H "Authorization: Bearer abc def" https://x.example/`, `curl -H "Authorization: ***" https://x.example/`},
		{`{"Authorization":"Bearer abc","x":1}`, `{"Authorization":"***","x":1}`},
		{`{"Authorization":["Bearer abc"],"x":1}`, `{"Authorization":***`},
		{"map[Authorization:[Bearer abc] X:[y]]", "map[Authorization:***"},
		// names and values
		{"key=abc", "key=***"},
		{"token=abc&x=1", "token=***&x=1"},
		{"dial ?token=a:b?c!: refused", "dial ?token=***!: refused"},
		{"password=hunter2, user=bob", "password=***, user=bob"},
		{"password=a,b;c)d. Then", "password=***. Then"},
		{"secret = 's p a c e' end", "secret = '***' end"},
		{"api_key: abc", "api_key: ***"},
		{"API_KEY=abc", "API_KEY=***"},
		{"GITHUB_TOKEN=abc", "GITHUB_TOKEN=***"},
		{"X-Api-Key: abc", "X-Api-Key: ***"},
		{"clientSecret: abc", "clientSecret: ***"},
		{"token: Bearer abc", "token: ***"},
		{"{'token': 'abc'}", "{'token': '***'}"},
		{`{"token":"a\"b","x":"y"}`, `{"token":"***","x":"y"}`},
		{`{\"token\":\"abc\",\"x\":\"y\"}`, `{\"token\":\"***\",\"x\":\"y\"}`},
		{`{"token":["abc"]}`, `{"token":["***"]}`},
		{"token => \"abc\"", "token => \"***\""},
		{`password="never closed`, `password="***`},
		{"max_tokens=5 tokenizer=gpt token_url=https://x.example/", "max_tokens=5 tokenizer=gpt token_url=https://x.example/"},
		{"map key: abc", "map key: abc"},
		{"unexpected token: }", "unexpected token: }"},
		{"key= end", "key= ***"},
		{"token=", "token="},
		// options
		{"npx srv --token abc --verbose", "npx srv --token *** --verbose"},
		{"npx srv --api-key=abc --token --verbose", "npx srv --api-key=*** --token --verbose"},
		// URLs
		{"get https://bob:pw@x.example/a", "get https://***@x.example/a"},
		{"postgres://u:p@ss@db/x", "postgres://***@db/x"},
		{"https://x.example/a@b?q=1", "https://x.example/a@b?q=1"},
		{"https://x.example/?api_key=abc&q=1#f", "https://x.example/?api_key=***&q=1#f"},
		// well-known kinds
		{"sk-abcdef", "***"},
		{"the key sk-ant-api03-x_y is bad", "the key *** is bad"},
		{"task-runner disk-cleanup sk-abc", "task-runner disk-cleanup sk-abc"},
		{"ghp_0123456789abcdef", "***"},
		{"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln!", "***!"},
		{"npm_config_registry=x", "npm_config_registry=x"},
	} {
		if got := none.Redact(c.in); got != c.want {
			t.Errorf("Redact(%q)\n got %q\nwant %q", c.in, got, c.want)
		}
	}
}

func TestRedactByValue(t *testing.T) {
	r := secret.NewRedactor()
	r.Add("hunter2", "hunter2-long", "short", "ölümsü", "öü", "a\"b/c d+e\\", "  padded \n", "-----BEGIN X-----\nMIIabcdefghij\n-----END X-----\n")
	for _, c := range []struct{ in, want string }{
		{"x hunter2 y", "x *** y"},
		{"xhunter2y", "x***y"},
		{"hunter2-long hunter2-", "*** ***-"},
		{"hunter2hunter2", "***"},
		{"short öü", "short öü"},
		{"ölümsü", "***"},
		{`{"p":"a\"b/c d+e\\"}`, `{"p":"***"}`},
		{"?q=a%22b%2Fc+d%2Be%5C", "?q=***"},
		{"/a%22b%2Fc%20d+e%5C/", "/***/"},
		{"<padded>", "<***>"},
		{"got MIIabcdefghij here", "got *** here"},
		{"hunter", "hunter"},
		{"", ""},
	} {
		if got := r.Redact(c.in); got != c.want {
			t.Errorf("Redact(%q)\n got %q\nwant %q", c.in, got, c.want)
		}
	}
}

func TestOverlappingValuesLeaveNoRemainder(t *testing.T) {
	r := secret.NewRedactor()
	r.Add("abcdefgh", "efghijkl", "ghijklmnop")
	if got := r.Redact("<abcdefghijklmnop>"); got != "<***>" {
		t.Errorf("got %q", got)
	}
}

func TestValueUsedByTwoServersStaysUntilBothAreGone(t *testing.T) {
	r := secret.NewRedactor()
	r.Add("shared-value")
	r.Add("shared-value", "other-value")
	r.Remove("shared-value", "never-added")
	if got := r.Redact("shared-value other-value"); got != "*** ***" {
		t.Errorf("after one removal: %q", got)
	}
	r.Remove("shared-value")
	r.Remove("shared-value")
	if got := r.Redact("shared-value other-value"); got != "shared-value ***" {
		t.Errorf("after both: %q", got)
	}
}

// An index that finds by prefix must behave like a search for each value, whatever is added and removed.
func TestRedactorFindsExactlyTheValuesItHolds(t *testing.T) {
	word := rapid.StringOfN(rapid.RuneFrom([]rune("xyé")), 6, 9, -1)
	rapid.Check(t, func(t *rapid.T) {
		r := secret.NewRedactor()
		held := map[string]int{}
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			v := word.Draw(t, "value")
			if rapid.Bool().Draw(t, "add") {
				r.Add(v)
				held[v]++
			} else {
				r.Remove(v)
				held[v] = max(0, held[v]-1)
			}
		}
		text := rapid.StringOfN(rapid.RuneFrom([]rune("xyé ")), 0, 60, -1).Draw(t, "text")
		got := r.Redact(text)
		hit := false
		for v, n := range held {
			if n == 0 {
				continue
			}
			hit = hit || strings.Contains(text, v)
			if strings.Contains(got, v) {
				t.Fatalf("Redact(%q) = %q still holds %q", text, got, v)
			}
		}
		if !hit && got != text {
			t.Fatalf("Redact(%q) = %q, but it holds none of %v", text, got, held)
		}
	})
}

func TestRedactorIsSafeForConcurrentUse(t *testing.T) {
	r := secret.NewRedactor()
	r.Add("constant-value")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			v := fmt.Sprintf("value-of-%d", i)
			for range 200 {
				r.Add(v)
				if got := r.Redact(v + " constant-value"); got != "*** ***" {
					t.Errorf("got %q", got)
				}
				r.Remove(v)
			}
		})
	}
	wg.Wait()
}

func FuzzRedact(f *testing.F) {
	for _, s := range []string{
		"token=token=\"x", "Authorization: 'a", "Bearer ${A} sk-", "a://b@c://d@", `\"token\":\"`, "--token", "eyJ..", "secret:\\",
		"password=${", "key=,;)]}", "\xff\xfe=token:\x00", "basic \t\tabcdefgh",
	} {
		f.Add(s)
	}
	r := secret.NewRedactor()
	r.Add("seeded-secret", "seeded-secret-2", "ab\ncd\nlonger line of it")
	f.Fuzz(func(t *testing.T, text string) {
		last := 0
		for _, s := range secret.Find(text) {
			if s.Start < last || s.End <= s.Start || s.End > len(text) {
				t.Fatalf("Find(%q): bad span %v", text, s)
			}
			last = s.Start
		}
		if got := r.Redact(text + "seeded-secret" + text); strings.Contains(got, "seeded-secret") {
			t.Fatalf("Redact left the value in %q", got)
		}
	})
}

func BenchmarkRedactLineWithManyValues(b *testing.B) {
	r := secret.NewRedactor()
	for i := range 1000 {
		r.Add(fmt.Sprintf("value-%d-of-a-thousand", i))
	}
	line := strings.Repeat("time=2026-01-01T00:00:00Z level=INFO msg=\"server is ready\" server=github tool_count=12 ", 4)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		r.Redact(line)
	}
}
