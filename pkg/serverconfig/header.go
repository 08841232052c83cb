package serverconfig

import "strings"

// CheckHeaderValue returns why value must not be sent as an HTTP header, or "" if it may. The reasons are checked in a
// fixed order and never contain the value. The check refuses all that net/http refuses, and more: text outside ASCII
// and blanks at the ends. An empty value, and blanks and tabs inside one, are legal.
func CheckHeaderValue(value string) (reason string) {
	for i := range len(value) {
		if value[i] > 0x7f {
			return "it holds a character outside ASCII"
		}
	}
	if strings.ContainsAny(value, "\x00\n\v\f\r") {
		return "it holds a line break or another forbidden control character"
	}
	if strings.Trim(value, " \t") != value {
		return "it begins or ends with white space"
	}
	for i := range len(value) {
		if c := value[i]; c < 0x20 && c != '\t' || c == 0x7f {
			return "it holds a control character"
		}
	}
	return ""
}

// CheckHeaderName returns why name cannot be the name of a configured HTTP header, or "" if it can: it must be a token
// of RFC 9110, and none of those that belong to the connection and are set by the HTTP client itself.
func CheckHeaderName(name string) (reason string) {
	if strings.Trim(name, " \t") == "" {
		return "a header needs a name"
	}
	for i := range len(name) {
		if !isTokenByte(name[i]) {
			return "a header name holds only letters, digits and !#$%&'*+-.^_`|~"
		}
	}
	switch strings.ToLower(name) {
	case "connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade":
		return "this header belongs to the connection and is set by the HTTP client"
	}
	return ""
}

func isTokenByte(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
