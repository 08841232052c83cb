package streamhttp_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange/exchangetest"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// fake is a server that keeps sessions and leaves everything but the handshake to a handler.
func fake(tb testing.TB, handle func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message)) *exchangetest.Server {
	tb.Helper()
	return exchangetest.Serve(tb, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, _ := jsonrpc.Parse(exchangetest.ReadBody(r))
		switch m.Method {
		case "initialize":
			w.Header().Set("Mcp-Session-Id", "sess-1")
			answer(w, m, `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"fake","version":"1"}}`)
		case "notifications/initialized":
			w.WriteHeader(http.StatusAccepted)
		default:
			handle(w, r, m)
		}
	}))
}

// tool returns the name of the tool that m calls.
func tool(m jsonrpc.Message) string {
	name, _ := jsonrpc.String(jsonrpc.Member(m.Params, "name"))
	return name
}

// answer answers m with a JSON body.
func answer(w http.ResponseWriter, m jsonrpc.Message, result string) {
	w.Header().Set("Content-Type", "application/json; Charset=UTF-8")
	_, _ = w.Write(jsonrpc.AppendResult(nil, m.ID, []byte(result)))
}

// fail answers with an HTTP status and a body.
func fail(w http.ResponseWriter, status int, contentType, body string) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// events begins a stream.
func events(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	flush(w)
}

// send writes raw bytes of a stream.
func send(w http.ResponseWriter, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format, args...)
	flush(w)
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

// call makes a tools/call of a tool of the fake.
func call(name string) string { return `{"name":"` + name + `","arguments":{}}` }
