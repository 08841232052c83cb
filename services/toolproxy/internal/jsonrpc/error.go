package jsonrpc

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Codes that JSON-RPC reserves and that this side uses.
const (
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
)

// Error is the error object of a failure: the peer received the request and refused it.
type Error struct {
	Code    int64
	Message string
	Data    json.RawMessage // raw, nil where absent
}

// Error gives the message and the code.
func (e *Error) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("JSON-RPC error %d", e.Code)
	}
	return fmt.Sprintf("%s (JSON-RPC error %d)", e.Message, e.Code)
}

// DecodeError reads a failure's error object, which is valid JSON. Data aliases raw.
// An object without an integer code or with a message that is no string is refused.
func DecodeError(raw json.RawMessage) (*Error, error) {
	var (
		e       Error
		hasCode bool
	)
	for key, value := range Members(raw) {
		var ok bool
		switch string(key) {
		case "code":
			if e.Code, ok = Int(value); !ok {
				return nil, errors.New("decode a JSON-RPC error: its code is not an integer")
			}
			hasCode = true
		case "message":
			if e.Message, ok = String(value); !ok {
				return nil, errors.New("decode a JSON-RPC error: its message is not a string")
			}
		case "data":
			e.Data = value
		}
	}
	if !hasCode {
		return nil, errors.New("decode a JSON-RPC error: it has no code")
	}
	return &e, nil
}

func (e *Error) append(dst []byte) []byte {
	dst = append(dst, `{"code":`...)
	dst = strconv.AppendInt(dst, e.Code, 10)
	dst = append(dst, `,"message":`...)
	dst = AppendString(dst, e.Message)
	if len(e.Data) > 0 {
		dst = append(dst, `,"data":`...)
		dst = appendLine(dst, e.Data)
	}
	return append(dst, '}')
}
