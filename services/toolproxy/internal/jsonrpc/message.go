package jsonrpc

import (
	"encoding/json"
	"fmt"
)

// Kind says what a message is. The zero value is a message that is not valid JSON-RPC.
type Kind uint8

// The kinds, told apart by the presence of keys: a method and an id make a request, a method alone a
// notification, a result a response, an error a failure.
const (
	Invalid Kind = iota
	Request
	Notification
	Response
	Failure
)

// ID is the raw token of a message's id, an integer or a string with its quotes; nil where there is none.
type ID []byte

// Int returns the id as an integer, and false if it is a string, absent or beyond 64 bits.
func (id ID) Int() (int64, bool) { return Int(json.RawMessage(id)) }

// Message is one envelope. Its byte slices alias the bytes that were parsed.
type Message struct {
	Kind   Kind
	ID     ID              // of requests and responses; a failure may have none
	Method string          // of requests and notifications, never empty there
	Params json.RawMessage // of requests and notifications; an object, an array, or nil where absent or null
	Result json.RawMessage // of responses: any value
	Error  json.RawMessage // of failures: an object; [DecodeError] reads it

	seen member
}

// Answers reports whether the message, valid or not, has the marks of an answer to a request: an id, no
// method, and a version, a result or an error. It tells a broken answer, whose caller must hear of it,
// from other output that merely happens to be JSON.
func (m *Message) Answers() bool {
	return m.ID != nil && m.seen&hasMethod == 0 && (m.seen&(hasVersion|hasResult) != 0 || len(m.Error) > 0)
}

// ParseError says why bytes are not a JSON-RPC message.
type ParseError struct {
	Offset int  // of the byte where it was noticed
	Batch  bool // an array: JSON-RPC batches are refused

	cause string
}

// Error describes the violation without quoting the message.
func (e *ParseError) Error() string {
	return fmt.Sprintf("not a JSON-RPC message: %s (at byte %d)", e.cause, e.Offset)
}

// maxMembers bounds the members of an envelope, since each is compared with those before it.
const maxMembers = 32

type member uint8

const (
	hasVersion member = 1 << iota
	hasID
	hasMethod
	hasParams
	hasResult
	hasError
)

func memberOf(key []byte) member {
	switch string(key) {
	case "jsonrpc":
		return hasVersion
	case "id":
		return hasID
	case "method":
		return hasMethod
	case "params":
		return hasParams
	case "result":
		return hasResult
	case "error":
		return hasError
	default:
		return 0
	}
}

// Parse reads one message. The whole of data is checked to be valid JSON.
//
// The error is a *[ParseError]. The message returned with it has kind Invalid and what could be learned all the
// same, its id above all, so that the one who waits for this answer can be told; see [Message.Answers].
func Parse(data []byte) (Message, error) {
	var m Message
	if cause, at := m.scan(data); cause != "" {
		return broken(data, m, &ParseError{Offset: at, cause: cause})
	}
	if cause := m.classify(); cause != "" {
		m.Kind = Invalid
		return m, &ParseError{cause: cause}
	}
	return m, nil
}

// broken completes what Parse returns for bytes that it could not read to their end.
func broken(data []byte, m Message, e *ParseError) (Message, error) {
	if start := skipSpace(data, 0); start < len(data) && data[start] == '[' && Valid(data) {
		e.Batch, e.cause = true, "a batch"
		return m, e
	}
	// The id, or the method that makes it no answer, may stand behind the mistake.
	var h Head
	h.Write(data)
	m.seen |= h.seen
	if m.ID == nil {
		m.ID = h.ID()
	}
	return m, e
}

// scan finds the members of the envelope. It returns the cause and place of the first violation, or "".
func (m *Message) scan(data []byte) (cause string, at int) {
	i := skipSpace(data, 0)
	if i == len(data) || data[i] != '{' {
		return "not an object", i
	}
	i = skipSpace(data, i+1)
	if i < len(data) && data[i] == '}' {
		return tail(data, i+1)
	}
	var others [maxMembers][]byte
	for n := 0; ; n++ {
		if i >= len(data) || data[i] != '"' {
			return "malformed JSON", i
		}
		keyStart := i
		end, ok := skipString(data, i+1)
		if !ok {
			return "malformed JSON", end
		}
		key, _ := unquote(data[keyStart:end])
		valueStart, ok := skipColon(data, end)
		if !ok {
			return "malformed JSON", valueStart
		}
		// Noted before its value is read: broken or not, it tells an answer from other output.
		which := memberOf(key)
		switch {
		case n == maxMembers:
			return "too many members", keyStart
		case which == 0:
			for _, other := range others[:n] {
				if other != nil && string(other) == string(key) {
					return "duplicate member", keyStart
				}
			}
			others[n] = key
		case m.seen&which != 0:
			return "duplicate member " + string(key), keyStart
		}
		m.seen |= which
		if i, ok = skipValue(data, valueStart); !ok {
			return "malformed JSON", i
		}
		if cause := m.take(which, data[valueStart:i:i]); cause != "" {
			return cause, valueStart
		}

		i = skipSpace(data, i)
		if i >= len(data) {
			return "malformed JSON", i
		}
		if data[i] == '}' {
			return tail(data, i+1)
		}
		if data[i] != ',' {
			return "malformed JSON", i
		}
		i = skipSpace(data, i+1)
	}
}

// tail checks that nothing follows the envelope.
func tail(data []byte, i int) (cause string, at int) {
	if i = skipSpace(data, i); i != len(data) {
		return "data after the message", i
	}
	return "", i
}

// take stores a member's value, which is valid JSON, after checking its type.
func (m *Message) take(which member, value []byte) (cause string) {
	null := value[0] == 'n'
	switch which {
	case hasVersion:
		if v, ok := unquote(value); !ok || string(v) != "2.0" {
			return `"jsonrpc" is not "2.0"`
		}
	case hasID:
		if null {
			return ""
		}
		if value[0] != '"' && !isInteger(value) {
			return "an id that is neither an integer nor a string"
		}
		m.ID = value
	case hasMethod:
		method, ok := unquote(value)
		if !ok {
			return "a method that is not a string"
		}
		m.Method = string(method)
	case hasParams:
		if null {
			return ""
		}
		if value[0] != '{' && value[0] != '[' {
			return "params that are neither an object nor an array"
		}
		m.Params = value
	case hasResult:
		m.Result = value
	case hasError:
		if value[0] != '{' {
			return "an error that is not an object"
		}
		m.Error = value
	}
	return ""
}

// classify sets the kind from the keys that were seen, and returns what is wrong with their combination.
func (m *Message) classify() (cause string) {
	const outcomes = hasResult | hasError
	switch {
	case m.seen&hasVersion == 0:
		return `no "jsonrpc"`
	case m.seen&hasMethod != 0 && m.seen&outcomes != 0:
		return "a method together with a result or an error"
	case m.seen&hasMethod != 0 && m.Method == "":
		return "an empty method"
	case m.seen&hasMethod != 0 && m.seen&hasID == 0:
		m.Kind = Notification
	case m.seen&hasMethod != 0:
		m.Kind = Request
		if m.ID == nil {
			return "a request whose id is null"
		}
	case m.seen&outcomes == outcomes:
		return "both a result and an error"
	case m.seen&hasResult != 0:
		m.Kind = Response
		if m.ID == nil {
			return "a result without an id"
		}
	case m.seen&hasError != 0:
		m.Kind = Failure
	default:
		return "neither a method nor a result nor an error"
	}
	return ""
}

// isInteger reports whether a valid JSON value is a number without fraction and exponent.
func isInteger(value []byte) bool {
	if value[0] == '-' {
		value = value[1:]
	}
	return len(value) > 0 && skipDigits(value, 0) == len(value)
}
