// Package strictjson reads JSON that people write and programs must not misread.
//
// It accepts RFC 8259 and nothing else: UTF-8 text, no comments, no trailing commas, one value. Keys are case-sensitive.
// Size and depth are bounded, and so is memory: 16 bytes per value besides the text. [Value.Duplicate] finds two members of one name, so that
// the caller can refuse them at the level where it wants to. A [SyntaxError] says where and why, and how to mend it.
//
// A [Value] keeps the source: numbers stay as they are written, and a value can be replaced in its text without
// touching what is around it. [Value.Canonical] is equal for values that differ in white space and key order only.
package strictjson

import (
	"iter"
	"strings"
)

// Kind is the type of a value.
type Kind uint8

// The kinds. Missing is the zero Value's.
const (
	Missing Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

// String returns the kind as a person would name it, such as "a number".
func (k Kind) String() string {
	switch k {
	case Null:
		return "null"
	case Bool:
		return "a boolean"
	case Number:
		return "a number"
	case String:
		return "a string"
	case Array:
		return "a list"
	case Object:
		return "an object"
	default:
		return "nothing"
	}
}

// node is one value, or one member name, of a document. The nodes of a container follow it, names before their values.
type node struct {
	kind    Kind
	escaped bool   // a string with a backslash in it
	start   uint32 // its text is src[start:end]
	end     uint32
	next    uint32 // the node after it and all it contains
}

type document struct {
	src   string
	nodes []node
}

// Value is one value of a parsed document. It is immutable. The zero Value is missing and has nothing in it.
type Value struct {
	doc *document
	i   uint32
}

func (v Value) node() node {
	if v.doc == nil {
		return node{}
	}
	return v.doc.nodes[v.i]
}

// Kind returns what the value is.
func (v Value) Kind() Kind { return v.node().kind }

// Raw returns the value's text as it stands in the source.
func (v Value) Raw() string {
	if v.doc == nil {
		return ""
	}
	n := v.node()
	return v.doc.src[n.start:n.end]
}

// Offset returns where [Value.Raw] begins in the source, in bytes.
func (v Value) Offset() int { return int(v.node().start) }

// End returns where [Value.Raw] ends in the source, in bytes.
func (v Value) End() int { return int(v.node().end) }

// Text returns what a string says, and "" for all other kinds.
// An unpaired surrogate reads as U+FFFD, as encoding/json has it.
func (v Value) Text() string {
	n := v.node()
	if n.kind != String {
		return ""
	}
	inner := v.doc.src[n.start+1 : n.end-1]
	if !n.escaped {
		return inner
	}
	return unescape(inner)
}

// Members yields the members of an object in the order of the source, duplicates included.
func (v Value) Members() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		n := v.node()
		if n.kind != Object {
			return
		}
		for i := v.i + 1; i < n.next; {
			member := Value{v.doc, i + 1}
			if !yield(Value{v.doc, i}.Text(), member) {
				return
			}
			i = member.node().next
		}
	}
}

// Elements yields the elements of a list with their indices.
func (v Value) Elements() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		n := v.node()
		if n.kind != Array {
			return
		}
		for i, index := v.i+1, 0; i < n.next; index++ {
			element := Value{v.doc, i}
			if !yield(index, element) {
				return
			}
			i = element.node().next
		}
	}
}

// Get returns the first member of an object with this name, which is compared exactly, or the zero Value.
func (v Value) Get(name string) Value {
	for key, member := range v.Members() {
		if key == name {
			return member
		}
	}
	return Value{}
}

// Duplicate returns the first member of v, at any depth, whose name its object already has, and its path relative to v
// in the form of [Field] and [Item]. Without one it returns "" and the zero Value.
func (v Value) Duplicate() (string, Value) {
	switch v.Kind() {
	case Object:
		seen := map[string]struct{}{}
		for key, member := range v.Members() {
			if _, ok := seen[key]; ok {
				return Field("", key), member
			}
			seen[key] = struct{}{}
			if below, second := member.Duplicate(); below != "" {
				return join(Field("", key), below), second
			}
		}
	case Array:
		for i, element := range v.Elements() {
			if below, second := element.Duplicate(); below != "" {
				return join(Item("", i), below), second
			}
		}
	default: // nothing in it
	}
	return "", Value{}
}

// Position returns where the value begins in the source: its line, and its column in characters, both from 1.
func (v Value) Position() (line, column int) {
	if v.doc == nil {
		return 0, 0
	}
	return position(v.doc.src, v.Offset())
}

// Edit replaces the text of one value.
type Edit struct {
	Value Value
	JSON  string // what stands in its place
}

// Splice returns the text of v with edits made, which are in the order of the source, lie within v and do not overlap.
// All other text stays as it is.
func (v Value) Splice(edits []Edit) string {
	var b strings.Builder
	done := v.Offset()
	for _, e := range edits {
		b.WriteString(v.doc.src[done:e.Value.Offset()])
		b.WriteString(e.JSON)
		done = e.Value.End()
	}
	b.WriteString(v.doc.src[done:v.End()])
	return b.String()
}
