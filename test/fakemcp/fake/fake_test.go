package fake_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/test/fakemcp/fake"
	"github.com/toolherd/toolherd/test/rawrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipe serves s over a pair of pipes until the test ends and returns the client's ends of them.
func pipe(t *testing.T, s *fake.Server) (io.Reader, io.WriteCloser) {
	t.Helper()
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := s.ServeStdio(context.WithoutCancel(t.Context()), in, out)
		served <- errors.Join(err, out.Close())
	}()
	t.Cleanup(func() {
		_ = toServer.Close() // the client has closed it, unless the test failed
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		s.Close()
	})
	return fromServer, toServer
}

// dial opens a session of the version over stdio.
func dial(t *testing.T, s *fake.Server, version string, o rawrpc.ClientOptions) *rawrpc.Stdio {
	t.Helper()
	o.Modern = version == rawrpc.V20260728
	out, in := pipe(t, s)
	c := rawrpc.NewStdio(out, in, o)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if o.Modern {
		return c
	}
	result, err := rawrpc.Initialize(t.Context(), c, version, o.Capabilities)
	if err != nil {
		t.Fatal(err)
	}
	if got := rawrpc.Text(result, "protocolVersion"); got != version {
		t.Fatalf("negotiated %s, want %s", got, version)
	}
	return c
}

// call runs a tool and returns the result object.
func call(t *testing.T, c rawrpc.Caller, tool, arguments string) json.RawMessage {
	t.Helper()
	var args json.RawMessage
	if arguments != "" {
		args = json.RawMessage(arguments)
	}
	result, err := c.Call(t.Context(), "tools/call", rawrpc.CallParams(tool, args))
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return result
}

// content returns the structured content of a result.
func content(t *testing.T, result json.RawMessage, v any) {
	t.Helper()
	if err := json.Unmarshal(rawrpc.Member(result, "structuredContent"), v); err != nil {
		t.Fatalf("structured content of %s: %v", result, err)
	}
}

func statsOf(t *testing.T, c rawrpc.Caller) fake.Stats {
	t.Helper()
	var s fake.Stats
	content(t, call(t, c, "stats", ""), &s)
	return s
}

// poll waits until ok holds and fails the test with what after ten seconds.
func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited 10 s for %s", what)
		}
	}
}

// everyVersion runs f once for each protocol version.
func everyVersion(t *testing.T, f func(t *testing.T, version string)) {
	for _, v := range []string{rawrpc.V20250618, rawrpc.V20251125, rawrpc.V20260728} {
		t.Run(v, func(t *testing.T) { f(t, v) })
	}
}

var allVersions = []string{rawrpc.V20250618, rawrpc.V20251125, rawrpc.V20260728}

const awkward = `{"id":9007199254740993, "amt":1.10,"big":1e400,"exp":1E5,"z":null,"a":[ 1.0 ],"s":"<&>\u00e9\u2028 é","id":2}`

func TestEchoReturnsArgumentsByteForByte(t *testing.T) {
	everyVersion(t, func(t *testing.T, version string) {
		c := dial(t, fake.New(fake.Options{Versions: allVersions}), version, rawrpc.ClientOptions{})
		result := call(t, c, "echo", awkward)
		if got := string(rawrpc.Member(result, "structuredContent")); got != awkward {
			t.Errorf("structured content %s, want %s", got, awkward)
		}
		want := `{"content":[{"type":"text","text":` + string(rawrpc.Quote(awkward)) + `}],"structuredContent":` + awkward + `}`
		if version == rawrpc.V20260728 {
			want = `{"resultType":"complete",` + want[1:]
		}
		if got := string(result); got != want {
			t.Errorf("result\n%s, want\n%s", got, want)
		}
	})
}

func TestRawReturnsTheLiteralByteForByte(t *testing.T) {
	literal := `{"z":1.10,"content":[ ],"content":[],"a":1e400}`
	broken := "{\"content\":[{\"type\":\"text\",\"text\":\"a\xff\xfeb\"}]}"
	everyVersion(t, func(t *testing.T, version string) {
		c := dial(t, fake.New(fake.Options{Versions: allVersions}), version, rawrpc.ClientOptions{})
		for name, args := range map[string]string{
			literal:     `{"result":` + literal + `}`,
			broken:      `{"base64":"` + fake.Base64([]byte(broken)) + `"}`,
			`{"a" : 1}`: `{"literal":"{\"a\" : 1}"}`,
		} {
			if got := string(call(t, c, "raw", args)); got != name {
				t.Errorf("raw %s = %q, want %q", args, got, name)
			}
		}
		_, err := c.Call(t.Context(), "tools/call", rawrpc.CallParams("raw", json.RawMessage(`{"error":{"code":-32042,"message":"no <luck>","data":{"n":1.0}}}`)))
		want := &rawrpc.Error{Code: -32042, Message: "no <luck>", Data: json.RawMessage(`{"n":1.0}`)}
		if e, ok := errors.AsType[*rawrpc.Error](err); !ok || !cmp.Equal(e, want) {
			t.Errorf("raw error = %v, want %v", err, want)
		}
		if _, err := c.Call(t.Context(), "tools/call", rawrpc.CallParams("raw", json.RawMessage(`{"literal":"nonsense"}`))); err == nil {
			t.Error("a literal that is no JSON was accepted")
		}
	})
}

func TestBigReturnsThatManyBytes(t *testing.T) {
	c := dial(t, fake.New(fake.Options{}), rawrpc.V20251125, rawrpc.ClientOptions{})
	for _, n := range []int{0, 1, 70_000, 5 << 20} {
		var result struct{ Content []struct{ Text string } }
		if err := json.Unmarshal(call(t, c, "big", fmt.Sprintf(`{"bytes":%d}`, n)), &result); err != nil {
			t.Fatal(err)
		}
		if got := len(result.Content[0].Text); got != n {
			t.Errorf("big %d returned %d bytes", n, got)
		}
	}
}

func TestEveryLiteralOfTheServerIsJSON(t *testing.T) {
	s := fake.New(fake.Options{Exit: func(int) {}, Stderr: io.Discard, Filler: 2})
	for _, d := range s.Definitions() {
		if !json.Valid(d) {
			t.Errorf("definition is no JSON: %s", d)
		}
	}
	c := dial(t, s, rawrpc.V20251125, rawrpc.ClientOptions{})
	for _, tool := range []string{"blocks", "structured_error", "meta", "pid", "env", "headers", "http_status", "counter"} {
		if result := call(t, c, tool, ""); !json.Valid(result) {
			t.Errorf("result of %s is no JSON: %s", tool, result)
		}
	}
}

func TestPagesOfTheToolListAddUp(t *testing.T) {
	everyVersion(t, func(t *testing.T, version string) {
		s := fake.New(fake.Options{Versions: allVersions, PageSize: 7, Filler: 100})
		c := dial(t, s, version, rawrpc.ClientOptions{})
		var got []json.RawMessage
		params := json.RawMessage(nil)
		for pages := 1; ; pages++ {
			result, err := c.Call(t.Context(), "tools/list", params)
			if err != nil {
				t.Fatal(err)
			}
			var page struct {
				Tools      []json.RawMessage
				NextCursor *string
			}
			if err := json.Unmarshal(result, &page); err != nil {
				t.Fatal(err)
			}
			got = append(got, page.Tools...)
			if page.NextCursor == nil {
				if want := (len(got) + 6) / 7; pages != want {
					t.Errorf("%d pages, want %d", pages, want)
				}
				break
			}
			params = rawrpc.JSON(map[string]string{"cursor": *page.NextCursor})
		}
		if diff := cmp.Diff(s.Definitions(), got); diff != "" {
			t.Error(diff)
		}
		if _, err := c.Call(t.Context(), "tools/list", json.RawMessage(`{"cursor":"after:x"}`)); err == nil {
			t.Error("a made-up cursor was accepted")
		}
	})
}

func TestCancelIsSeenAndLeavesTheSessionUsable(t *testing.T) {
	everyVersion(t, func(t *testing.T, version string) {
		s := fake.New(fake.Options{Versions: allVersions})
		c := dial(t, s, version, rawrpc.ClientOptions{})
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		done := make(chan error, 1)
		go func() {
			_, err := c.Call(ctx, "tools/call", rawrpc.CallParams("sleep", json.RawMessage(`{"ms":3600000}`)))
			done <- err
		}()
		poll(t, "the call to run", func() bool { return s.Stats().Calls["sleep"] == 1 })
		cancel(enough)
		if err := <-done; !errors.Is(err, enough) {
			t.Errorf("cancelled call: %v", err)
		}
		poll(t, "the cancel", func() bool { return s.Stats().InFlight == 0 && len(s.Stats().Cancelled) == 1 })
		got := statsOf(t, c).Cancelled
		want := []fake.Cancelled{{Tool: "sleep", Method: "tools/call", RequestID: got[0].RequestID, Reason: "enough", By: "notification"}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestCallsRunSideBySide(t *testing.T) {
	s := fake.New(fake.Options{})
	c := dial(t, s, rawrpc.V20251125, rawrpc.ClientOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	for range 50 {
		go func() {
			_, err := c.Call(ctx, "tools/call", rawrpc.CallParams("sleep", json.RawMessage(`{"ms":3600000}`)))
			done <- err
		}()
	}
	poll(t, "50 running calls", func() bool { return s.Stats().InFlight == 50 })
	cancel()
	for range 50 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("call: %v", err)
		}
	}
}

func TestProgressAndLogComeBeforeTheAnswer(t *testing.T) {
	everyVersion(t, func(t *testing.T, version string) {
		var seen []string
		c := dial(t, fake.New(fake.Options{Versions: allVersions}), version, rawrpc.ClientOptions{OnMessage: func(m rawrpc.Message) {
			seen = append(seen, m.Method+" "+string(m.Params))
		}})
		params := `{"name":"progress","arguments":{"steps":2,"message":"step"},"_meta":{"progressToken":"t-1"}}`
		if _, err := c.Call(t.Context(), "tools/call", json.RawMessage(params)); err != nil {
			t.Fatal(err)
		}
		params = `{"name":"log","arguments":{"level":"warning","data":{"n":1.0},"count":2},"_meta":{"` + rawrpc.MetaLogLevel + `":"debug"}}`
		if _, err := c.Call(t.Context(), "tools/call", json.RawMessage(params)); err != nil {
			t.Fatal(err)
		}
		want := []string{
			`notifications/progress {"progressToken":"t-1","progress":1,"total":2,"message":"step 1"}`,
			`notifications/progress {"progressToken":"t-1","progress":2,"total":2,"message":"step 2"}`,
			`notifications/message {"level":"warning","data":{"n":1.0}}`,
			`notifications/message {"level":"warning","data":{"n":1.0}}`,
		}
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Error(diff)
		}
		seen = nil
		call(t, c, "progress", `{"steps":3}`)
		if len(seen) != 0 {
			t.Errorf("progress without a token: %v", seen)
		}
	})
}

func TestListChangedTellsTheClient(t *testing.T) {
	everyVersion(t, func(t *testing.T, version string) {
		s := fake.New(fake.Options{Versions: allVersions, Only: []string{"list_changed", "echo"}})
		seen := make(chan string, 8)
		c := dial(t, s, version, rawrpc.ClientOptions{OnMessage: func(m rawrpc.Message) { seen <- m.Method }})
		if version == rawrpc.V20260728 {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := c.Call(ctx, "subscriptions/listen", json.RawMessage(`{"notifications":{"toolsListChanged":true}}`))
				done <- err
			}()
			defer func() { cancel(); <-done }()
			if got := <-seen; got != "notifications/subscriptions/acknowledged" {
				t.Fatalf("first message of the stream is %s", got)
			}
		}
		call(t, c, "list_changed", `{"add":["extra"],"remove":["echo"]}`)
		if got := <-seen; got != "notifications/tools/list_changed" {
			t.Errorf("got %s", got)
		}
		call(t, c, "list_changed", `{"add":["more"],"silent":true}`)
		call(t, c, "extra", "{}")
		if _, err := c.Call(t.Context(), "tools/call", rawrpc.CallParams("echo", nil)); err == nil {
			t.Error("the removed tool can be called")
		}
		if len(seen) != 0 {
			t.Errorf("a silent change was told: %s", <-seen)
		}
	})
}

func TestElicitAsksInTheWayOfTheVersion(t *testing.T) {
	everyVersion(t, func(t *testing.T, version string) {
		asked := ""
		c := dial(t, fake.New(fake.Options{Versions: allVersions}), version, rawrpc.ClientOptions{
			Capabilities: json.RawMessage(`{"elicitation":{}}`),
			Answer: func(m rawrpc.Message) (json.RawMessage, *rawrpc.Error) {
				asked = m.Method
				return json.RawMessage(`{"action":"accept","content":{"name":"Ann"}}`), nil
			},
		})
		result := call(t, c, "elicit", `{"message":"who?"}`)
		if version == rawrpc.V20260728 {
			if got := rawrpc.Text(result, "resultType"); got != "input_required" {
				t.Fatalf("result type %q", got)
			}
			params := fmt.Appendf(nil, `{"name":"elicit","inputResponses":{"name":{"action":"accept","content":{"name":"Ann"}}},"requestState":%s}`, rawrpc.Member(result, "requestState"))
			var err error
			if result, err = c.Call(t.Context(), "tools/call", params); err != nil {
				t.Fatal(err)
			}
		} else if asked != "elicitation/create" {
			t.Errorf("asked %q", asked)
		}
		want := `{"result":{"action":"accept","content":{"name":"Ann"}}}`
		if got := string(rawrpc.Member(result, "structuredContent")); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestExitEndsTheProcessWithTheCode(t *testing.T) {
	code := -1
	c := dial(t, fake.New(fake.Options{Exit: func(n int) { code = n }}), rawrpc.V20251125, rawrpc.ClientOptions{})
	call(t, c, "exit", `{"code":7}`)
	if code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
}

func TestBreachesOfTheProtocolAreWrittenDown(t *testing.T) {
	s := fake.New(fake.Options{})
	out, in := pipe(t, s)
	c := rawrpc.NewStdio(out, in, rawrpc.ClientOptions{})
	if _, err := c.Call(t.Context(), "tools/list", nil); err == nil {
		t.Error("tools/list works before initialize")
	}
	if _, err := rawrpc.Initialize(t.Context(), c, rawrpc.V20251125, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := rawrpc.Initialize(t.Context(), c, rawrpc.V20251125, nil); err == nil {
		t.Error("a second initialize works")
	}
	if err := c.Send([]byte(`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`)); err != nil {
		t.Fatal(err)
	}
	got := statsOf(t, c).Violations
	want := []string{"tools/list before initialize", "a second initialize in one session", "a line that is no message: a batch, not a message"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTheSDKClientAgrees(t *testing.T) {
	everyVersion(t, func(t *testing.T, version string) {
		s := fake.New(fake.Options{Versions: allVersions})
		out, in := pipe(t, s)
		client := mcp.NewClient(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
		transport := &mcp.IOTransport{Reader: io.NopCloser(out), Writer: in}
		session, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		if got := session.InitializeResult().ProtocolVersion; got != version {
			t.Errorf("negotiated %s", got)
		}
		var names []string
		for tool, err := range session.Tools(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, tool.Name)
		}
		if !slices.Contains(names, "echo") || !slices.Contains(names, "strange_recursive") {
			t.Errorf("tools: %v", names)
		}
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"a": "b"}})
		if err != nil || result.IsError {
			t.Fatalf("echo: %+v, %v", result, err)
		}
		if got := result.Content[0].(*mcp.TextContent).Text; got != `{"a":"b"}` {
			t.Errorf("echo returned %s", got)
		}
		if v := s.Stats().Violations; len(v) > 0 {
			t.Errorf("violations of the SDK: %s", strings.Join(v, "; "))
		}
		if err := session.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
