package evil

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/test/rawrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryModeIsNamedAndDescribed(t *testing.T) {
	name := regexp.MustCompile(`^[a-z0-9-]+$`)
	seen := map[string]bool{}
	for _, m := range Modes() {
		if !name.MatchString(m.Name) || seen[m.Name] || m.About == "" {
			t.Errorf("mode %q, described %q, seen before: %t", m.Name, m.About, seen[m.Name])
		}
		seen[m.Name] = true
		ways := 0
		for _, set := range []bool{m.frames != nil, m.process != nil, m.wire != nil} {
			if set {
				ways++
			}
		}
		if ways != 1 {
			t.Errorf("mode %s has %d ways to misbehave, want 1", m.Name, ways)
		}
	}
	var list bytes.Buffer
	if err := List(&list); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(list.String(), "\n"), len(Modes()); got != want {
		t.Errorf("the list has %d lines for %d modes", got, want)
	}
	if _, err := Find("no-such-mode"); err == nil {
		t.Error("an unknown mode was found")
	}
}

// conversation is what a client says to come past everything: a handshake, a list, a call.
var conversation = []rawrpc.Message{
	{ID: json.RawMessage("1"), Method: "initialize", Params: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)},
	{ID: json.RawMessage("2"), Method: "tools/list"},
	{ID: json.RawMessage("3"), Method: "tools/call", Params: json.RawMessage(`{"name":"echo","arguments":{"a":1}}`)},
}

// small keeps the modes with sizes quick.
func small(m Mode) Options {
	o := m.with(Options{Target: "http://127.0.0.1:1/target", Delay: time.Millisecond})
	o.Size = min(o.Size, 1000)
	return o
}

func TestFrameModesAreHonestUpToTheirMethod(t *testing.T) {
	for _, m := range Modes() {
		if m.frames == nil {
			continue
		}
		for _, msg := range conversation {
			honest := rawrpc.Result(msg.ID, json.RawMessage(`{"honest":true}`))
			r := &request{o: small(m), msg: msg, honest: honest}
			frames := m.answered(r)
			same := len(frames) == 1 && bytes.Equal(frames[0], honest)
			if triggered := r.o.triggers(msg); same == triggered {
				t.Errorf("%s on %s: honest %t, triggered %t", m.Name, msg.Method, same, triggered)
			}
			for _, f := range frames {
				if bytes.ContainsRune(f, '\n') {
					t.Errorf("%s on %s: a frame has a line break: %.100q", m.Name, msg.Method, f)
				}
			}
		}
	}
}

func TestWellFormedFramesAreWellFormed(t *testing.T) {
	// These are about lines that no reader can take for a message; all other frames are JSON.
	broken := map[string]bool{"noise": true, "noise-long": true, "crlf": true, "bom": true}
	for _, m := range Modes() {
		if m.frames == nil || broken[m.Name] {
			continue
		}
		o := small(m)
		msg := conversation[2]
		if o.On != "*" {
			msg.Method = o.On
		}
		for i, f := range m.answered(&request{o: o, msg: msg, honest: rawrpc.Result(msg.ID, json.RawMessage("{}"))}) {
			if !json.Valid(f) {
				t.Errorf("%s: frame %d is no JSON: %.200q", m.Name, i, f)
			}
		}
	}
}

func TestSizesAreWhatTheySay(t *testing.T) {
	for name, want := range map[string]int{"long-70k": 70_000, "long-5m": 5 << 20, "long-20m": 20 << 20, "long-20m-id-last": 20 << 20, "long-20m-decoy": 20 << 20} {
		m, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		frames := m.answered(&request{o: m.with(Options{}), msg: conversation[2], honest: []byte("{}")})
		if got := len(frames[0]); got < want || got > want+200 {
			t.Errorf("%s answers with %d bytes, want %d and a little", name, got, want)
		}
		if name == "long-20m" || name == "long-20m-id-last" {
			id := bytes.Index(frames[0], []byte(`"id":3`))
			if result := bytes.Index(frames[0], []byte(`"result"`)); (id < result) != (name == "long-20m") {
				t.Errorf("%s: id at %d, result at %d", name, id, result)
			}
		}
	}
}

// post sends one message and reads at most 1 MiB of the answer.
func post(ctx context.Context, t *testing.T, url, session string, m rawrpc.Message) (*http.Response, []byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(rawrpc.Request(m.ID, m.Method, m.Params)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Mcp-Session-Id", session)
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp, body, err
}

func TestHTTPModesAreHonestUpToTheirMethod(t *testing.T) {
	for _, m := range Modes() {
		if m.process != nil || m.On == http.MethodGet {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			handler, end, err := Handler(m, small(m))
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewServer(handler)
			defer end()
			defer server.Close()
			session := ""
			for _, msg := range conversation {
				triggered := small(m).triggers(msg)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				if triggered {
					cancel()
					ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond) // some never answer
				}
				resp, body, err := post(ctx, t, server.URL+"/mcp", session, msg)
				cancel()
				if triggered {
					session = sessionOf(resp, session)
					continue
				}
				if m.On == "initialize" && msg.Method != "initialize" {
					continue // there is no session to be honest in, or one of an odd name
				}
				if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"result"`)) {
					t.Fatalf("%s: %v, %.200q", msg.Method, err, body)
				}
				session = sessionOf(resp, session)
				if msg.Method == "initialize" {
					note := rawrpc.Message{Method: "notifications/initialized"}
					if resp, _, err := post(t.Context(), t, server.URL+"/mcp", session, note); err != nil || resp.StatusCode != http.StatusAccepted {
						t.Fatalf("initialized: %v, %v", resp, err)
					}
				}
			}
		})
	}
}

func sessionOf(resp *http.Response, session string) string {
	if resp != nil && resp.Header.Get(sessionHeader) != "" {
		return resp.Header.Get(sessionHeader)
	}
	return session
}

// attack serves a mode and returns what its triggering method is answered with.
func attack(t *testing.T, name string) (*http.Response, []byte, error) {
	t.Helper()
	m, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	handler, end, err := Handler(m, small(m))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer end()
	defer server.Close()
	session := ""
	for _, msg := range conversation {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		resp, body, err := post(ctx, t, server.URL+"/mcp", session, msg)
		cancel()
		if small(m).triggers(msg) {
			return resp, body, err
		}
		if err != nil {
			t.Fatal(err)
		}
		session = sessionOf(resp, session)
	}
	t.Fatalf("%s was never triggered", name)
	return nil, nil, nil
}

func TestHTTPAttacksAreWhatTheySay(t *testing.T) {
	for name, ok := range map[string]func(resp *http.Response, body []byte, err error) bool{
		"http-silent": func(_ *http.Response, _ []byte, err error) bool { return os.IsTimeout(err) },
		"conn-reset":  func(_ *http.Response, _ []byte, err error) bool { return err != nil && !os.IsTimeout(err) },
		"sse-comments-forever": func(_ *http.Response, b []byte, err error) bool {
			return os.IsTimeout(err) && bytes.Contains(b, []byte(": still here"))
		},
		"body-short": func(_ *http.Response, _ []byte, err error) bool { return err == io.ErrUnexpectedEOF },
		"gzip-unasked": func(resp *http.Response, b []byte, err error) bool {
			return err == nil && resp.Header.Get("Content-Encoding") == "gzip" && bytes.HasPrefix(b, []byte("\x1f\x8b"))
		},
		"gzip-bomb": func(resp *http.Response, b []byte, err error) bool {
			return err == nil && resp.Header.Get("Content-Encoding") == "gzip" && bytes.HasPrefix(b, []byte("\x1f\x8b"))
		},
		"redirect-cross": func(resp *http.Response, _ []byte, err error) bool {
			return err == nil && resp.StatusCode == 307 && resp.Header.Get("Location") == "http://127.0.0.1:1/target"
		},
		"auth-target": func(resp *http.Response, _ []byte, err error) bool {
			return err == nil && resp.StatusCode == 401 && strings.Contains(resp.Header.Get("WWW-Authenticate"), `"http://127.0.0.1:1/target"`)
		},
		"session-id-huge": func(resp *http.Response, _ []byte, err error) bool {
			return err == nil && len(resp.Header.Get(sessionHeader)) == 1000
		},
		"session-lost": func(resp *http.Response, _ []byte, err error) bool { return err == nil && resp.StatusCode == 404 },
		"header-huge": func(resp *http.Response, _ []byte, err error) bool {
			return err == nil && len(resp.Header.Get("X-Huge")) == 1000
		},
		"sse-no-blank-line": func(_ *http.Response, b []byte, err error) bool {
			return err == nil && bytes.HasSuffix(b, []byte("}\n"))
		},
		"sse-odd": func(_ *http.Response, b []byte, err error) bool {
			return err == nil && bytes.HasPrefix(b, []byte("\xef\xbb\xbfdata:\r\n"))
		},
		"sse-two-lines": func(_ *http.Response, b []byte, err error) bool {
			return err == nil && bytes.Count(b, []byte("data: ")) == 2
		},
	} {
		if resp, body, err := attack(t, name); !ok(resp, body, err) {
			t.Errorf("%s: %v, %v, %.300q", name, resp, err, body)
		}
	}
}
