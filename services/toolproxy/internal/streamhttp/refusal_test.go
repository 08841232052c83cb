package streamhttp_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange/exchangetest"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/streamhttp"
)

// What matters of a refusal is its status: the call does not wait until the last byte of an error page has come.
func TestRefusalWhoseBodyNeverEndsIsARefusal(t *testing.T) {
	gone := make(chan struct{})
	srv := fake(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
		if tool(m) != "refused" {
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
		send(w, "log in first")
		<-r.Context().Done()
		close(gone)
	})
	p := exchangetest.Start(t, newWire(t, srv.URL))
	p.MustInitialize()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), exchangetest.Patience)
	defer cancel()
	_, err := p.Call(ctx, "tools/call", call("refused"))
	if e, ok := errors.AsType[*streamhttp.StatusError](err); !ok || e.Code != http.StatusUnauthorized || e.Body != "log in first" || ctx.Err() != nil {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
	select {
	case <-gone:
	case <-time.After(exchangetest.Patience):
		t.Error("the connection of the refusal stays open")
	}
}
