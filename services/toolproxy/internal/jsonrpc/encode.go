package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// AppendRequest appends a request on one line, without a line end. params are valid JSON or empty, and go on
// token for token.
func AppendRequest(dst []byte, id int64, method string, params json.RawMessage) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = strconv.AppendInt(dst, id, 10)
	dst = append(dst, ',')
	return appendCall(dst, method, params)
}

// AppendNotification appends a notification on one line, as [AppendRequest] does.
func AppendNotification(dst []byte, method string, params json.RawMessage) []byte {
	dst = append(dst, `{"jsonrpc":"2.0",`...)
	return appendCall(dst, method, params)
}

func appendCall(dst []byte, method string, params json.RawMessage) []byte {
	dst = append(dst, `"method":`...)
	dst = AppendString(dst, method)
	if len(params) > 0 {
		dst = append(dst, `,"params":`...)
		dst = appendLine(dst, params)
	}
	return append(dst, '}')
}

// AppendResult appends the response to the request id on one line. result is valid JSON.
func AppendResult(dst []byte, id ID, result json.RawMessage) []byte {
	dst = appendID(dst, id)
	dst = append(dst, `,"result":`...)
	dst = appendLine(dst, result)
	return append(dst, '}')
}

// AppendError appends the failure of the request id on one line; a nil id becomes null.
func AppendError(dst []byte, id ID, e *Error) []byte {
	dst = appendID(dst, id)
	dst = append(dst, `,"error":`...)
	dst = e.append(dst)
	return append(dst, '}')
}

func appendID(dst []byte, id ID) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	if id == nil {
		return append(dst, "null"...)
	}
	return append(dst, id...)
}

// AppendMeta appends params with members, such as `"progressToken":7`, put first into their _meta object, which
// is made where it is missing. Everything else goes on token for token. params are a valid JSON object or empty.
func AppendMeta(dst []byte, params json.RawMessage, members string) ([]byte, error) {
	if len(params) == 0 {
		return fmt.Appendf(dst, `{"_meta":{%s}}`, members), nil
	}
	if !IsObject(params) {
		return dst, errors.New("put _meta into params: they are not an object")
	}
	before, after := "", ""
	start, end := find(params, "_meta")
	switch meta := params[start:end]; {
	case start == end: // none yet
		start = skipSpace(params, 0) + 1
		end = start
		before, after = `"_meta":{`, `}`
		if params[skipSpace(params, start)] != '}' {
			after = `},`
		}
	case IsObject(meta):
		start++
		end = start
		if params[skipSpace(params, start)] != '}' {
			after = ","
		}
	case IsNull(meta):
		before, after = "{", "}"
	default:
		return dst, errors.New("put _meta into params: there is one that is not an object")
	}
	dst = slices.Grow(dst, len(params)+len(before)+len(members)+len(after))
	dst = append(dst, params[:start]...)
	dst = append(dst, before...)
	dst = append(dst, members...)
	dst = append(dst, after...)
	return append(dst, params[end:]...), nil
}

// appendLine appends valid JSON in one line: a line end outside of strings, and there is none inside, is white
// space and becomes a space.
func appendLine(dst []byte, raw json.RawMessage) []byte {
	start := len(dst)
	dst = append(dst, raw...)
	replaceAll(dst[start:], '\n', ' ')
	replaceAll(dst[start:], '\r', ' ')
	return dst
}

func replaceAll(b []byte, from, to byte) {
	for i := bytes.IndexByte(b, from); i >= 0; i = bytes.IndexByte(b, from) {
		b[i] = to
		b = b[i+1:]
	}
}

// AppendString appends s as a JSON string. Nothing is escaped that JSON does not ask for; invalid UTF-8
// becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(dst, s[start:i]...)
				dst = append(dst, "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}
