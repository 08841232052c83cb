package serverconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// The limits of a configuration file.
const (
	MaxBytes = 8 << 20 // 8 MiB
	MaxDepth = 64      // objects and lists inside each other
)

// entryLimits leave room for the file around an entry, so that what is accepted alone can also be written to a file.
var entryLimits = strictjson.Limits{Bytes: MaxBytes, Depth: MaxDepth - 2}

// publicLimits leave room for the references that take the place of literals, each longer and one level deeper.
var publicLimits = strictjson.Limits{Bytes: 32 * MaxBytes, Depth: MaxDepth}

// Document is a configuration file: the servers it defines and what else is in it.
type Document struct {
	Servers      []RawServer     // in the order of the file
	Interceptors json.RawMessage // mcpInterceptors as written; nil if absent
	Extras       []Extra         // all other top-level keys, in the order of the file
	Warnings     []Problem       // such as an unknown top-level key; the first 100
}

// RawServer is one server entry as written.
type RawServer struct {
	Name string
	JSON json.RawMessage
	// Problem says why the entry cannot be read at all: a key occurs twice in it. [Decode] finds the same, without the
	// line. It is nil for all other entries, good or bad.
	Problem *Problem
}

// Extra is a top-level key that does not concern servers, kept for whoever writes the file back.
type Extra struct {
	Key  string
	JSON json.RawMessage
}

// topLevel are the known keys of a file.
var topLevel = []string{"mcpServers", "mcpInterceptors", "skills", "middlewares", "$schema"}

// ParseDocument reads a configuration file: strict JSON of at most [MaxBytes] and [MaxDepth], in UTF-8 with or without
// a byte order mark. A file that cannot be read as a whole gives a Problem without a server: broken JSON, a top level or
// mcpServers that is no object, a top-level key that occurs twice, or two entries of one name. A bad entry is not one
// of those. A file without mcpServers defines no servers.
func ParseDocument(content []byte) (Document, *Problem) {
	content = bytes.TrimPrefix(content, []byte("\ufeff"))
	root, err := strictjson.Parse(content, strictjson.Limits{Bytes: MaxBytes, Depth: MaxDepth})
	if err != nil {
		return Document{}, syntaxProblem(string(content), err)
	}
	if root.Kind() != strictjson.Object {
		return Document{}, broken(root, Problem{
			Reason: ReasonWrongType, Message: "a configuration must be an object, not " + root.Kind().String(), Hint: `write {"mcpServers": {…}}`,
		})
	}

	var doc Document
	var servers strictjson.Value
	serversKey := ""
	seen := map[string]bool{}
	for key, v := range root.Members() {
		if seen[key] {
			return Document{}, broken(v, Problem{
				Path: strictjson.Field("", key), Reason: ReasonDuplicateKey, Message: "this key occurs twice in the file", Hint: "keep one of them",
			})
		}
		seen[key] = true
		switch key {
		case "mcpServers", "mcp_servers":
			if serversKey != "" {
				return Document{}, broken(v, Problem{
					Path: key, Reason: ReasonConflict, Message: "mcpServers and mcp_servers are the same thing", Hint: "move all servers to mcpServers",
				})
			}
			serversKey, servers = key, v
		case "mcpInterceptors":
			doc.Interceptors = json.RawMessage(v.Raw())
		default:
			doc.Extras = append(doc.Extras, Extra{key, json.RawMessage(v.Raw())})
			if !slices.Contains(topLevel, key) && len(doc.Warnings) < maxProblems {
				p := unknownKey(key, "", topLevel)
				p.Line, p.Column = v.Position()
				doc.Warnings = append(doc.Warnings, p)
			}
		}
	}
	if serversKey == "" {
		return doc, nil
	}
	if servers.Kind() != strictjson.Object {
		return Document{}, broken(servers, Problem{
			Path: serversKey, Reason: ReasonWrongType, Message: "must be an object, not " + servers.Kind().String(), Hint: "write one member per server, with its name as the key",
		})
	}
	names := map[string]bool{}
	for name, v := range servers.Members() {
		if names[name] {
			return Document{}, broken(v, Problem{
				Path: strictjson.Field(serversKey, name), Reason: ReasonDuplicateKey, Message: "two servers have this name", Hint: "rename or remove one of them",
			})
		}
		names[name] = true
		doc.Servers = append(doc.Servers, RawServer{Name: name, JSON: json.RawMessage(v.Raw()), Problem: duplicateIn(name, v)})
	}
	return doc, nil
}

// broken completes a problem that makes the file unreadable with its place.
func broken(v strictjson.Value, p Problem) *Problem {
	p.Line, p.Column = v.Position()
	return &p
}

// duplicateIn returns the problem of an entry in which a key occurs twice, or nil.
func duplicateIn(server string, entry strictjson.Value) *Problem {
	path, second := entry.Duplicate()
	if path == "" {
		return nil
	}
	line, column := second.Position()
	return &Problem{
		Server: server, Path: path, Reason: ReasonDuplicateKey, Message: "this key occurs twice", Hint: "keep one of them", Line: line, Column: column,
	}
}

// ParseInterceptors reads the value of mcpInterceptors: a list of non-empty strings, or one string as a list of one.
// Nil and null are an empty list. Anything else is a problem, since leaving an interceptor out would be less safe.
func ParseInterceptors(raw json.RawMessage) ([]string, *Problem) {
	if len(raw) == 0 {
		return nil, nil
	}
	v, err := strictjson.Parse(raw, entryLimits)
	if err != nil {
		return nil, &Problem{Path: "mcpInterceptors", Reason: ReasonSyntax, Message: err.Error()}
	}
	bad := func(path string, v strictjson.Value) *Problem {
		p := Problem{Path: path, Reason: ReasonWrongType, Message: "must be the name of an interceptor, not " + v.Kind().String(), Hint: `write a list such as ["grpc://127.0.0.1:9100"]`}
		if v.Kind() == strictjson.String {
			p.Reason, p.Message = ReasonBadValue, "must not be empty"
		}
		return &p
	}
	var names []string
	switch v.Kind() {
	case strictjson.Null:
	case strictjson.String:
		if v.Text() == "" {
			return nil, bad("mcpInterceptors", v)
		}
		names = []string{v.Text()}
	case strictjson.Array:
		for i, element := range v.Elements() {
			if element.Text() == "" {
				return nil, bad(strictjson.Item("mcpInterceptors", i), element)
			}
			names = append(names, element.Text())
		}
	default:
		return nil, bad("mcpInterceptors", v)
	}
	return names, nil
}

// Canonical returns raw without white space, its keys sorted by code points, its strings with no more escapes than they
// need and its numbers token for token. The error names what is not JSON, or the key that occurs twice.
func Canonical(raw []byte) ([]byte, error) {
	v, err := strictjson.Parse(raw, strictjson.Limits{Bytes: MaxBytes, Depth: MaxDepth})
	if err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	if path, _ := v.Duplicate(); path != "" {
		return nil, fmt.Errorf("canonical JSON: %s occurs twice", path)
	}
	return v.Canonical(), nil
}
