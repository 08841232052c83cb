package jsonrpc

import (
	"bytes"
	"encoding/json"
	"iter"
	"strconv"
)

// Member returns the value of the member called name of a valid JSON object. Of several with that name the
// last counts, as for encoding/json; the name is compared case-sensitively, with escapes decoded.
// It returns nil if raw is no object or has no such member.
func Member(raw json.RawMessage, name string) json.RawMessage {
	start, end := find(raw, name)
	if start == end {
		return nil
	}
	return raw[start:end:end]
}

// find returns where the value of the object's last member called name stands; start equals end if nowhere.
func find(raw json.RawMessage, name string) (start, end int) {
	walk(raw, func(key []byte, from, to int) bool {
		if string(key) == name {
			start, end = from, to
		}
		return true
	})
	return start, end
}

// Members yields the keys, with escapes decoded, and the raw values of a valid JSON object in their order,
// duplicates included. It yields nothing if raw is no object. What it yields aliases raw.
func Members(raw json.RawMessage) iter.Seq2[[]byte, json.RawMessage] {
	return func(yield func([]byte, json.RawMessage) bool) {
		walk(raw, func(key []byte, from, to int) bool { return yield(key, raw[from:to:to]) })
	}
}

// walk calls visit for each member of an object, with where its value stands, until visit returns false.
func walk(raw json.RawMessage, visit func(key []byte, from, to int) bool) {
	i := skipSpace(raw, 0)
	if i >= len(raw) || raw[i] != '{' {
		return
	}
	i = skipSpace(raw, i+1)
	for i < len(raw) && raw[i] == '"' {
		keyEnd, ok := skipString(raw, i+1)
		if !ok {
			return
		}
		key, _ := unquote(raw[i:keyEnd])
		from, ok := skipColon(raw, keyEnd)
		if !ok {
			return
		}
		to, ok := skipValue(raw, from)
		if !ok || !visit(key, from, to) {
			return
		}
		i = skipSpace(raw, to)
		if i >= len(raw) || raw[i] != ',' {
			return
		}
		i = skipSpace(raw, i+1)
	}
}

// Elements yields the raw elements of a valid JSON array. It yields nothing if raw is no array.
func Elements(raw json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		i := skipSpace(raw, 0)
		if i >= len(raw) || raw[i] != '[' {
			return
		}
		i = skipSpace(raw, i+1)
		for i < len(raw) && raw[i] != ']' {
			end, ok := skipValue(raw, i)
			if !ok || !yield(raw[i:end:end]) {
				return
			}
			i = skipSpace(raw, end)
			if i >= len(raw) || raw[i] != ',' {
				return
			}
			i = skipSpace(raw, i+1)
		}
	}
}

// IsObject reports whether a valid JSON value is an object.
func IsObject(raw json.RawMessage) bool { return firstByte(raw) == '{' }

// IsArray reports whether a valid JSON value is an array.
func IsArray(raw json.RawMessage) bool { return firstByte(raw) == '[' }

// IsNull reports whether raw is absent or null.
func IsNull(raw json.RawMessage) bool {
	c := firstByte(raw)
	return c == 0 || c == 'n'
}

func firstByte(raw json.RawMessage) byte {
	if i := skipSpace(raw, 0); i < len(raw) {
		return raw[i]
	}
	return 0
}

// String returns the text of a valid JSON string, and false if raw is something else.
// Invalid UTF-8 in it becomes U+FFFD where the string has escapes, and stays as it is otherwise.
func String(raw json.RawMessage) (string, bool) {
	s, ok := unquote(bytes.TrimSpace(raw))
	return string(s), ok
}

// Int returns the value of a JSON integer, and false if raw is something else, has a fraction or an exponent,
// or does not fit.
func Int(raw json.RawMessage) (int64, bool) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || !isInteger(raw) {
		return 0, false
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return n, err == nil
}

// unquote decodes a valid JSON string given with its quotes. Without escapes, the usual case, the answer
// aliases the token.
func unquote(token []byte) ([]byte, bool) {
	if len(token) < 2 || token[0] != '"' {
		return nil, false
	}
	inner := token[1 : len(token)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner, true
	}
	var s string
	if json.Unmarshal(token, &s) != nil {
		return nil, false
	}
	return []byte(s), true
}
