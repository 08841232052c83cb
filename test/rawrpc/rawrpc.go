// Package rawrpc reads and writes JSON-RPC 2.0 messages without touching the bytes of their parts.
//
// The fake and the evil MCP server and the direct raw client of the tests are built on it. It shares no
// code with the product and none with the MCP SDK, so that it can serve as the judge of both: what a
// server sent is what [Message] holds, white space, key order and number spelling included. It is small
// and lenient on purpose and not meant for anything but tests.
package rawrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Error codes of JSON-RPC 2.0 and of MCP.
const (
	CodeParse              = -32700
	CodeInvalidRequest     = -32600
	CodeMethodNotFound     = -32601
	CodeInvalidParams      = -32602
	CodeInternal           = -32603
	CodeServer             = -32000 // the first code that is the server's own
	CodeHeaderMismatch     = -32020 // MCP 2026-07-28: an HTTP header contradicts the body
	CodeUnsupportedVersion = -32022 // MCP 2026-07-28: data lists what is supported
)

// ErrBatch is the error of [Parse] for an array: MCP has had no batches since 2025-06-18.
var ErrBatch = errors.New("a batch, not a message")

// Message is one JSON-RPC message. Raw parts alias nothing and are nil when the member is absent.
type Message struct {
	ID     json.RawMessage // as written; `null` is present, not absent
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  json.RawMessage
}

// Parse reads one message. Member names are case-sensitive; of a repeated member the last one counts.
// It fails on anything that is not a JSON object with `"jsonrpc":"2.0"` and a method, a result or an error.
func Parse(b []byte) (Message, error) {
	b = bytes.TrimSpace(b)
	if len(b) > 0 && b[0] == '[' {
		return Message{}, ErrBatch
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(b, &members); err != nil {
		return Message{}, fmt.Errorf("parse message: %w", err)
	}
	if v := members["jsonrpc"]; string(v) != `"2.0"` {
		return Message{}, fmt.Errorf("parse message: jsonrpc is %q", v)
	}
	m := Message{ID: members["id"], Params: members["params"], Result: members["result"], Error: members["error"]}
	if raw, ok := members["method"]; ok {
		if err := json.Unmarshal(raw, &m.Method); err != nil {
			return Message{}, fmt.Errorf("parse method: %w", err)
		}
		return m, nil
	}
	if m.Result == nil && m.Error == nil {
		return Message{}, errors.New("parse message: neither method nor result nor error")
	}
	return m, nil
}

// IsRequest reports whether m asks for an answer.
func (m Message) IsRequest() bool { return m.Method != "" && m.ID != nil && string(m.ID) != "null" }

// IsNotification reports whether m is a method call without an id.
func (m Message) IsNotification() bool { return m.Method != "" && m.ID == nil }

// IsResponse reports whether m answers a request.
func (m Message) IsResponse() bool { return m.Method == "" }

// Member returns one member of the params object, nil when params are no object or lack it.
func (m Message) Member(name string) json.RawMessage { return Member(m.Params, name) }

// Members returns the members of a JSON object byte for byte, nil when object is none.
func Members(object json.RawMessage) map[string]json.RawMessage {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(object, &members); err != nil {
		return nil
	}
	return members
}

// Member returns one member of a JSON object, nil when object is none or lacks it.
func Member(object json.RawMessage, name string) json.RawMessage { return Members(object)[name] }

// Text returns a member of object that is a string, else "".
func Text(object json.RawMessage, name string) string {
	var s string
	if err := json.Unmarshal(Member(object, name), &s); err != nil {
		return ""
	}
	return s
}

// ID turns n into the id of a request.
func ID(n int64) json.RawMessage { return strconv.AppendInt(nil, n, 10) }

// Request encodes a request. Nil params are left out.
func Request(id json.RawMessage, method string, params json.RawMessage) []byte {
	return encode("id", id, "method", Quote(method), "params", params)
}

// Notification encodes a notification. Nil params are left out.
func Notification(method string, params json.RawMessage) []byte {
	return encode("method", Quote(method), "params", params)
}

// Result encodes a successful answer; result goes on byte for byte, valid or not.
func Result(id, result json.RawMessage) []byte { return encode("id", id, "result", result) }

// Failure encodes an error answer. A nil id becomes null, as for a request that could not be read.
func Failure(id json.RawMessage, e *Error) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	return encode("id", id, "error", e.JSON())
}

// encode joins name, raw value pairs behind the version member and skips nil values.
func encode(pairs ...any) []byte {
	b := []byte(`{"jsonrpc":"2.0"`)
	for i := 0; i < len(pairs); i += 2 {
		value, _ := pairs[i+1].(json.RawMessage)
		if value == nil {
			continue
		}
		b = append(b, ',', '"')
		b = append(b, pairs[i].(string)...)
		b = append(b, '"', ':')
		b = append(b, value...)
	}
	return append(b, '}')
}

// Quote encodes s as a JSON string without HTML escapes.
func Quote(s string) json.RawMessage { return JSON(s) }

// JSON encodes v without HTML escapes. It panics when v cannot be encoded: callers pass plain data.
func JSON(v any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Prepend returns object with one more member in front. A nil object counts as `{}`; anything but an
// object is returned as it is.
func Prepend(object json.RawMessage, name string, value json.RawMessage) json.RawMessage {
	rest := bytes.TrimSpace(object)
	if len(rest) == 0 {
		rest = []byte("{}")
	}
	if rest[0] != '{' || len(rest) < 2 {
		return object
	}
	rest = bytes.TrimSpace(rest[1:])
	b := append([]byte{'{'}, Quote(name)...)
	b = append(b, ':')
	b = append(b, value...)
	if rest[0] != '}' {
		b = append(b, ',')
	}
	return append(b, rest...)
}

// Error is a JSON-RPC error object: as an answer of a server, what a client's call returns.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Errorf makes an error without data.
func Errorf(code int, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (e *Error) Error() string { return fmt.Sprintf("json-rpc error %d: %s", e.Code, e.Message) }

// JSON encodes e.
func (e *Error) JSON() json.RawMessage { return JSON(e) }

// outcome is what an answer means to the caller that waits for it.
func (m Message) outcome() (json.RawMessage, error) {
	if m.Error == nil {
		return m.Result, nil
	}
	e := new(Error)
	if err := json.Unmarshal(m.Error, e); err != nil {
		return nil, fmt.Errorf("parse error object %s: %w", m.Error, err)
	}
	return nil, e
}
