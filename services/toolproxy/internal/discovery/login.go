package discovery

import (
	"errors"
	"net/http"
	"strings"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/exchange"
)

// wantsLogin reports whether a login would mend err: the server answered 401 and asks for a bearer token. One that asks
// for something else, or for nothing, cannot be logged in to.
func wantsLogin(err error) bool {
	if refusal, ok := errors.AsType[*exchange.StatusError](err); ok {
		return refusal.Code == http.StatusUnauthorized && asksForBearer(refusal.Header.Values("WWW-Authenticate"))
	}
	return fault.Is(err, fault.UpstreamUnauthenticated)
}

// asksForBearer reports whether any of the challenges, of which a header value may hold several, is for a bearer token.
func asksForBearer(challenges []string) bool {
	for _, value := range challenges {
		for part := range unquotedCommas(value) {
			scheme, _, _ := strings.Cut(strings.TrimSpace(part), " ")
			if strings.EqualFold(scheme, "Bearer") {
				return true
			}
		}
	}
	return false
}

// unquotedCommas yields the parts of value between commas that are not inside a quoted string.
func unquotedCommas(value string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		start, quoted := 0, false
		for i := 0; i < len(value); i++ {
			switch {
			case quoted && value[i] == '\\':
				i++
			case value[i] == '"':
				quoted = !quoted
			case value[i] == ',' && !quoted:
				if !yield(value[start:i]) {
					return
				}
				start = i + 1
			}
		}
		yield(value[start:])
	}
}

func loginCommand(server string) string { return "toolherd login " + server }
