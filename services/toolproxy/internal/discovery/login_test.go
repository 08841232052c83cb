package discovery

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
)

// STAT-011: 401 with a Bearer challenge, in any header, position and case, wants a login; anything else is an error.
func TestWantsLogin(t *testing.T) {
	for _, tc := range []struct {
		code       int
		challenges []string
		want       bool
	}{
		{401, []string{"Bearer"}, true},
		{401, []string{`bearer realm="x", error="invalid_token"`}, true},
		{401, []string{`Basic realm="a"`, `BEARER resource_metadata="https://x"`}, true},
		{401, []string{`Basic realm="a, b", charset="UTF-8", Bearer realm="c"`}, true},
		{401, []string{`Negotiate, Bearer`}, true},
		{401, nil, false},
		{401, []string{`Basic realm="Bearer"`}, false},
		{401, []string{`Basic realm="x, Bearer y"`}, false},
		{401, []string{`Basic realm="\", Bearer"`}, false},
		{401, []string{"BearerX"}, false},
		{403, []string{"Bearer"}, false},
		{500, []string{"Bearer"}, false},
	} {
		err := fmt.Errorf("list: %w", &exchange.StatusError{Code: tc.code, Header: http.Header{"Www-Authenticate": tc.challenges}})
		if got := wantsLogin(err); got != tc.want {
			t.Errorf("%d %q: %v", tc.code, tc.challenges, got)
		}
	}
}
