package call

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/toolherd/toolherd/pkg/fault"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// maxExact is 2^53: from there on a float64 may stand for several integers, and the caller's is lost.
const maxExact = 1 << 53

// arguments returns the arguments of a call as a JSON object, or nil where there are none. arguments_json goes on
// token for token.
func arguments(r *toolproxyv1.CallToolRequest) (json.RawMessage, error) {
	switch args := r.GetArgs().(type) {
	case *toolproxyv1.CallToolRequest_ArgumentsJson:
		return checkObject("arguments_json", args.ArgumentsJson)
	case *toolproxyv1.CallToolRequest_Arguments:
		if args.Arguments == nil {
			return nil, nil
		}
		return appendStruct(nil, "arguments", args.Arguments)
	default:
		return nil, nil
	}
}

func invalid(field, format string, args ...any) error {
	description := fmt.Sprintf(format, args...)
	return fault.New(fault.InvalidArguments, "%s: %s", field, description).
		WithViolations(fault.Violation{Field: field, Description: description})
}

// checkObject checks that text is one JSON object in which no key occurs twice at any level. Empty text is no object
// and no error.
func checkObject(field, text string) (json.RawMessage, error) {
	if text == "" {
		return nil, nil
	}
	raw := json.RawMessage(text)
	switch {
	case !jsonrpc.Valid(raw):
		return nil, invalid(field, "not valid JSON")
	case !jsonrpc.IsObject(raw):
		return nil, invalid(field, "a JSON object is needed, such as {\"key\": \"value\"}")
	}
	if key, found := duplicateKey(raw); found {
		return nil, invalid(field, "the key %q occurs twice in one object", key)
	}
	return raw, nil
}

// duplicateKey returns a key that occurs twice in one object of a valid JSON value, in a single pass.
func duplicateKey(raw []byte) (string, bool) {
	var (
		open []object // the objects and arrays around the current byte
		keys [][]byte // the keys of all open objects, innermost last
	)
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '{':
			open = append(open, object{first: len(keys), wantKey: true})
		case '[':
			open = append(open, object{first: len(keys), array: true})
		case '}', ']':
			last := len(open) - 1
			keys = keys[:open[last].first]
			open = open[:last]
		case ',':
			if o := &open[len(open)-1]; !o.array {
				o.wantKey = true
			}
		case '"':
			end := stringEnd(raw, i)
			if len(open) > 0 && open[len(open)-1].wantKey {
				key := raw[i+1 : end]
				if bytes.IndexByte(key, '\\') >= 0 {
					text, _ := jsonrpc.String(raw[i : end+1])
					key = []byte(text)
				}
				if open[len(open)-1].add(&keys, key) {
					return string(key), true
				}
			}
			i = end
		}
	}
	return "", false
}

// object is an open object or array.
type object struct {
	array   bool
	wantKey bool // the next string is a key
	first   int  // index of its first key
	index   map[string]struct{}
}

// manyKeys is where looking through the keys costs more than a map.
const manyKeys = 16

// add notes a key and reports whether the object already has it.
func (o *object) add(keys *[][]byte, key []byte) (found bool) {
	o.wantKey = false
	own := (*keys)[o.first:]
	switch {
	case o.index != nil:
		_, found = o.index[string(key)]
	case len(own) < manyKeys:
		found = slices.ContainsFunc(own, func(k []byte) bool { return bytes.Equal(k, key) })
	default:
		o.index = make(map[string]struct{}, 4*manyKeys)
		for _, k := range own {
			o.index[string(k)] = struct{}{}
		}
		_, found = o.index[string(key)]
	}
	if o.index != nil {
		o.index[string(key)] = struct{}{}
	}
	*keys = append(*keys, key)
	return found
}

// stringEnd returns the index of the quote that ends the string beginning at raw[start].
func stringEnd(raw []byte, start int) int {
	i := start + 1
	for {
		i += bytes.IndexByte(raw[i:], '"')
		escapes := 0
		for raw[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i
		}
		i++
	}
}

// appendStruct appends s as a JSON object with sorted keys. path names it in errors.
func appendStruct(dst []byte, path string, s *structpb.Struct) ([]byte, error) {
	dst = append(dst, '{')
	for i, key := range slices.Sorted(maps.Keys(s.GetFields())) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonrpc.AppendString(dst, key)
		dst = append(dst, ':')
		var err error
		if dst, err = appendValue(dst, path+"."+key, s.Fields[key]); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

func appendValue(dst []byte, path string, v *structpb.Value) ([]byte, error) {
	switch k := v.GetKind().(type) {
	case *structpb.Value_NullValue:
		return append(dst, "null"...), nil
	case *structpb.Value_BoolValue:
		return strconv.AppendBool(dst, k.BoolValue), nil
	case *structpb.Value_StringValue:
		return jsonrpc.AppendString(dst, k.StringValue), nil
	case *structpb.Value_NumberValue:
		return appendNumber(dst, path, k.NumberValue)
	case *structpb.Value_StructValue:
		return appendStruct(dst, path, k.StructValue)
	case *structpb.Value_ListValue:
		dst = append(dst, '[')
		for i, e := range k.ListValue.GetValues() {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = appendValue(dst, fmt.Sprintf("%s[%d]", path, i), e); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	default:
		return nil, invalid(path, "a value without a kind")
	}
}

func appendNumber(dst []byte, path string, f float64) ([]byte, error) {
	switch abs := math.Abs(f); {
	case math.IsNaN(f), math.IsInf(f, 0):
		return nil, invalid(path, "%v is no JSON number", f)
	case abs >= maxExact:
		return nil, invalid(path,
			"the number %v is 2^53 or more and may have lost digits on the way; send the arguments in arguments_json", f)
	case abs != 0 && abs < 1e-6:
		return strconv.AppendFloat(dst, f, 'e', -1, 64), nil
	default:
		return strconv.AppendFloat(dst, f, 'f', -1, 64), nil
	}
}
