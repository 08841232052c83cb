package strictjson

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits bound what [Parse] accepts.
type Limits struct {
	Bytes int // at most this much text, up to 1 GiB
	Depth int // at most this many containers inside each other, up to 1000
}

// Parse reads data, which must be one JSON value. The error is a [*SyntaxError].
// data is copied and may be changed afterwards.
func Parse(data []byte, limits Limits) (Value, error) {
	if limits.Bytes > 1<<30 || limits.Depth > 1000 {
		panic("strictjson: limits out of range")
	}
	if len(data) > limits.Bytes {
		return Value{}, &SyntaxError{Message: "larger than the limit of " + size(limits.Bytes), Hint: "split it, or make it smaller"}
	}
	p := parser{document: &document{src: string(data)}, depthLimit: limits.Depth}
	if i := firstInvalid(p.src); i >= 0 {
		return Value{}, p.fail(i, "not UTF-8", "save the file in UTF-8")
	}
	p.space()
	if err := p.value(1); err != nil {
		return Value{}, err
	}
	p.space()
	if p.pos < len(p.src) {
		return Value{}, p.failHere("more text after the end of the value", "remove what follows, or look for a closing bracket too many before it")
	}
	return Value{p.document, 0}, nil
}

type parser struct {
	*document
	pos        int
	depthLimit int
	comma      int // where the last comma stands
}

func (p *parser) peek() byte {
	if p.pos < len(p.src) {
		return p.src[p.pos]
	}
	return 0
}

func (p *parser) space() {
	for p.pos < len(p.src) {
		switch p.src[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// open appends the node of the value that begins here and returns its index; close completes it.
func (p *parser) open(kind Kind) int {
	p.nodes = append(p.nodes, node{kind: kind, start: uint32(p.pos)})
	return len(p.nodes) - 1
}

func (p *parser) close(i int) {
	p.nodes[i].end = uint32(p.pos)
	p.nodes[i].next = uint32(len(p.nodes))
}

func (p *parser) value(depth int) error {
	switch c := p.peek(); {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		return p.string()
	case c == '-' || '0' <= c && c <= '9':
		return p.number()
	}
	for _, l := range [...]struct {
		text string
		kind Kind
	}{{"true", Bool}, {"false", Bool}, {"null", Null}} {
		if strings.HasPrefix(p.src[p.pos:], l.text) && !isWord(p.src, p.pos+len(l.text)) {
			i := p.open(l.kind)
			p.pos += len(l.text)
			p.close(i)
			return nil
		}
	}
	return p.failValue()
}

func (p *parser) object(depth int) error {
	if depth > p.depthLimit {
		return p.failDepth()
	}
	i := p.open(Object)
	p.pos++
	p.space()
	for first := true; ; first = false {
		if p.peek() == '}' {
			if !first {
				return p.failTrailingComma()
			}
			break
		}
		if p.peek() != '"' {
			return p.failName(first)
		}
		if err := p.string(); err != nil {
			return err
		}
		p.space()
		if p.peek() != ':' {
			return p.failDelimiter("a colon is missing between a name and its value", "write `\"name\": value`")
		}
		p.pos++
		p.space()
		if err := p.value(depth + 1); err != nil {
			return err
		}
		p.space()
		if p.peek() == '}' {
			break
		}
		if p.peek() != ',' {
			return p.failDelimiter("a comma or } is missing after a value", "put a comma between two properties, and } after the last")
		}
		p.comma = p.pos
		p.pos++
		p.space()
	}
	p.pos++
	p.close(i)
	return nil
}

func (p *parser) array(depth int) error {
	if depth > p.depthLimit {
		return p.failDepth()
	}
	i := p.open(Array)
	p.pos++
	p.space()
	for first := true; ; first = false {
		if p.peek() == ']' {
			if !first {
				return p.failTrailingComma()
			}
			break
		}
		if err := p.value(depth + 1); err != nil {
			return err
		}
		p.space()
		if p.peek() == ']' {
			break
		}
		if p.peek() != ',' {
			return p.failDelimiter("a comma or ] is missing after a value", "put a comma between two elements, and ] after the last")
		}
		p.comma = p.pos
		p.pos++
		p.space()
	}
	p.pos++
	p.close(i)
	return nil
}

func (p *parser) string() error {
	i := p.open(String)
	start := p.pos
	p.pos++
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; {
		case c == '"':
			p.pos++
			p.close(i)
			return nil
		case c == '\\':
			p.nodes[i].escaped = true
			n := escape(p.src[p.pos:])
			if n == 0 {
				return p.failHere("an escape that JSON does not know", `write \\ for a backslash`)
			}
			p.pos += n
		case c == '\n' || c == '\r':
			return p.fail(start, "a string that does not end on its line", `close it with ", or write \n for a line break`)
		case c < 0x20:
			return p.failHere("a control character in a string", `write it as \u00`+hexByte(c))
		default:
			p.pos++
		}
	}
	return p.fail(start, "a string that does not end", `close it with "`)
}

// escape returns the length of the escape sequence that s begins with, or 0.
func escape(s string) int {
	if len(s) < 2 {
		return 0
	}
	switch s[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(s) < 6 {
			return 0
		}
		for i := 2; i < 6; i++ {
			if !isHex(s[i]) {
				return 0
			}
		}
		return 6
	}
	return 0
}

func (p *parser) number() error {
	i := p.open(Number)
	start := p.pos
	digits := func() bool {
		from := p.pos
		for '0' <= p.peek() && p.peek() <= '9' {
			p.pos++
		}
		return p.pos > from
	}
	if p.peek() == '-' {
		p.pos++
	}
	ok := true
	if p.peek() == '0' {
		p.pos++
	} else {
		ok = digits()
	}
	if ok && p.peek() == '.' {
		p.pos++
		ok = digits()
	}
	if ok && (p.peek() == 'e' || p.peek() == 'E') {
		p.pos++
		if p.peek() == '+' || p.peek() == '-' {
			p.pos++
		}
		ok = digits()
	}
	if !ok || isWord(p.src, p.pos) || p.peek() == '.' {
		return p.fail(start, "a number that JSON does not know", "write it like 10, -0.5 or 1e3, without leading zeros, or put it in double quotes")
	}
	p.close(i)
	return nil
}

// isWord reports whether a letter, digit or underscore stands at i, so that what ends there goes on.
func isWord(s string, i int) bool {
	if i >= len(s) {
		return false
	}
	c := s[i]
	return c == '_' || c >= utf8.RuneSelf || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f' }

func hexByte(c byte) string {
	return string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15])
}

// firstInvalid returns where s stops being UTF-8, or -1.
func firstInvalid(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i := 0; ; {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
}

func size(n int) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return strconv.Itoa(n>>20) + " MiB"
	}
	return strconv.Itoa(n) + " bytes"
}
