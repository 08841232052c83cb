package evil

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// httpModes misuse statuses, headers, redirects and sessions.
func httpModes() []Mode {
	plain := func(name, about string, status int, kind, body string) Mode {
		return Mode{Name: name, About: about, wire: func(w http.ResponseWriter, _ *httpRequest) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}}
	}
	redirect := func(name, about string, status int, to func(h *httpRequest) string) Mode {
		return Mode{Name: name, About: about, wire: func(w http.ResponseWriter, h *httpRequest) {
			w.Header().Set("Location", to(h))
			w.WriteHeader(status)
		}}
	}
	target := func(h *httpRequest) string { return h.o.Target }
	trap := func(h *httpRequest) string { return "/trap" }
	challenge := func(name, about, value string) Mode {
		return Mode{Name: name, On: "*", About: about, wire: func(w http.ResponseWriter, h *httpRequest) {
			if value != "" {
				w.Header().Set("WWW-Authenticate", strings.ReplaceAll(value, "%TARGET%", h.o.Target))
			}
			w.WriteHeader(http.StatusUnauthorized)
		}}
	}
	html := "<!doctype html><title>Welcome</title><script>token='" + Secret + "'</script>"
	return []Mode{
		{
			Name: "http-silent", About: "accepts the request and never answers",
			wire: func(_ http.ResponseWriter, h *httpRequest) { <-h.r.Context().Done() },
		},
		{
			Name: "http-slow", Delay: 2 * time.Second, About: "answers after -delay",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				pause(h.r.Context(), h.o.Delay)
				h.s.write(w, h.honest)
			},
		},
		plain("html-200", "answers 200 with a web page that has a secret", http.StatusOK, "text/html", html),
		plain("html-502", "answers 502 with a web page that has a secret", http.StatusBadGateway, "text/html", html),
		plain("empty-200", "answers 200 with JSON of no length", http.StatusOK, "application/json", ""),
		plain("empty-202", "answers a request with 202 and no body", http.StatusAccepted, "", ""),
		plain("no-type", "answers 200 with nonsense and no content type", http.StatusOK, "", "???"),
		plain("json-broken", "answers 200 with JSON that breaks off", http.StatusOK, "application/json", `{"jsonrpc":"2.0","id":1,"result":{"content":[`),
		plain("json-other-id", "answers 200 with the answer to another request", http.StatusOK, "application/json", `{"jsonrpc":"2.0","id":987654321,"result":{"content":[]}}`),
		plain("status-400-session", "answers 400 No valid session ID provided", http.StatusBadRequest, "application/json", `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}`),
		plain("status-503-session", "answers 503 session not found", http.StatusServiceUnavailable, "text/plain", "session not found"),
		plain("status-404-rpc", "answers 404 with the JSON-RPC error -32001 Session not found", http.StatusNotFound, "application/json", `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}`),
		plain("status-999", "answers with the status 999", 999, "text/plain", "nine nine nine"),
		{
			Name: "status-429-forever", About: "answers 429 with Retry-After of a year",
			wire: func(w http.ResponseWriter, _ *httpRequest) {
				w.Header().Set("Retry-After", "31536000")
				w.WriteHeader(http.StatusTooManyRequests)
			},
		},
		redirect("redirect-cross", "redirects with 307 to -target, another origin", http.StatusTemporaryRedirect, target),
		redirect("redirect-metadata", "redirects with 308 to a link-local address", http.StatusPermanentRedirect, func(*httpRequest) string { return "http://169.254.169.254/latest/meta-data/" }),
		redirect("redirect-get", "redirects with 302 to a trap on the same origin, which turns POST into GET", http.StatusFound, trap),
		redirect("redirect-loop", "redirects with 307 to itself", http.StatusTemporaryRedirect, func(*httpRequest) string { return "/mcp" }),
		redirect("redirect-scheme", "redirects with 307 to a file", http.StatusTemporaryRedirect, func(*httpRequest) string { return "file:///etc/passwd" }),
		challenge("auth-no-challenge", "answers 401 without a challenge", ""),
		challenge("auth-metadata-bait", "answers 401 with resource metadata at a link-local address", `Bearer resource_metadata="http://169.254.169.254/latest/meta-data/"`),
		challenge("auth-target", "answers 401 with resource metadata at -target", `Bearer resource_metadata="%TARGET%"`),
		challenge("auth-garbage", "answers 401 with a challenge that cannot be parsed", `Bearer realm="unclosed, ,,= error=invalid`+"\t"),
		{
			Name: "session-id-huge", On: "initialize", Size: 16 << 10, About: "gives a session id of -size bytes",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				h.s.alias(w, string(fill(h.o.Size, 's')))
				h.s.write(w, h.honest)
			},
		},
		{
			Name: "session-id-odd", On: "initialize", About: "gives a session id with blanks, quotes and letters that are no ASCII",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				h.s.alias(w, "a b\"; é, c=\t1")
				h.s.write(w, h.honest)
			},
		},
		{
			Name: "session-lost", About: "answers every call with 404, whatever the session",
			wire: func(w http.ResponseWriter, _ *httpRequest) { http.Error(w, "session not found", http.StatusNotFound) },
		},
		{
			Name: "session-changes", On: "*", About: "gives another session id with every answer",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				if h.msg.Method != "initialize" {
					w.Header().Set(sessionHeader, fmt.Sprintf("changed-%d", h.seen))
				}
				h.s.write(w, h.honest)
			},
		},
		{
			Name: "header-huge", Size: 2 << 20, About: "answers with a header of -size bytes",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				w.Header().Set("X-Huge", string(fill(h.o.Size, 'h')))
				h.s.write(w, h.honest)
			},
		},
		{
			Name: "cookies", On: "*", About: "sets cookies with every answer; /evil/seen counts the requests that bring one",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				if h.r.Header.Get("Cookie") != "" {
					h.s.mu.Lock()
					h.s.seen["cookie"]++
					h.s.mu.Unlock()
				}
				w.Header().Set("Set-Cookie", "evil=1; Path=/")
				h.s.write(w, h.honest)
			},
		},
		{
			Name: "get-closes", On: http.MethodGet, About: "ends the standing stream at once, every time",
			wire: func(w http.ResponseWriter, _ *httpRequest) {
				w.Header().Set("Content-Type", "text/event-stream")
				w.WriteHeader(http.StatusOK)
			},
		},
		{
			Name: "get-silent", On: http.MethodGet, About: "accepts the standing stream and sends not even headers",
			wire: func(_ http.ResponseWriter, h *httpRequest) { <-h.r.Context().Done() },
		},
		{
			Name: "get-flood", On: http.MethodGet, Size: 64 << 20, About: "floods the standing stream with -size bytes of notifications and unknown answers",
			wire: func(w http.ResponseWriter, h *httpRequest) {
				w.Header().Set("Content-Type", "text/event-stream")
				w.WriteHeader(http.StatusOK)
				event := "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":987654321,\"result\":{}}\n\n"
				for n := 0; n < h.o.Size; n += len(event) {
					if _, err := w.Write([]byte(event)); err != nil {
						return
					}
				}
			},
		},
	}
}
