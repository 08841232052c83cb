package strictjson

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// SyntaxError says why a text is not accepted. It holds nothing of the text itself.
type SyntaxError struct {
	Offset  int    // where, in bytes from the start; at the comma if that is what is wrong
	Line    int    // the same as a line counted from 1, or 0 where the text as a whole is meant
	Column  int    // and a column in characters, counted from 1
	Message string // what is wrong
	Hint    string // how to mend it
}

// Error returns place, cause and next step in one line.
func (e *SyntaxError) Error() string {
	if e.Line == 0 {
		return e.Message + ": " + e.Hint
	}
	return fmt.Sprintf("line %d, column %d: %s: %s", e.Line, e.Column, e.Message, e.Hint)
}

func (p *parser) fail(offset int, message, hint string) error {
	line, column := position(p.src, offset)
	return &SyntaxError{Offset: offset, Line: line, Column: column, Message: message, Hint: hint}
}

func position(src string, offset int) (line, column int) {
	before := src[:offset]
	start := strings.LastIndexByte(before, '\n') + 1
	return strings.Count(before, "\n") + 1, utf8.RuneCountInString(before[start:]) + 1
}

func (p *parser) failHere(message, hint string) error { return p.fail(p.pos, message, hint) }

func (p *parser) failDepth() error {
	return p.failHere(fmt.Sprintf("nested deeper than the limit of %d levels", p.depthLimit), "flatten it")
}

func (p *parser) failTrailingComma() error {
	return p.fail(p.comma, fmt.Sprintf("a trailing comma before %c", p.peek()), "remove the trailing comma")
}

// failName is for a place where an object should go on with a name in double quotes.
func (p *parser) failName(first bool) error {
	switch c := p.peek(); {
	case p.isComment():
		return p.failComment()
	case p.pos == len(p.src):
		return p.failEnd()
	case c == '\'':
		return p.failHere("a property name in single quotes", "put the property name in double quotes")
	case c == ',' && !first:
		return p.failHere("two commas in a row", "remove one, or add the property name and value that are missing between them")
	case isWord(p.src, p.pos):
		return p.failHere("a property name without quotes", "put the property name in double quotes")
	}
	return p.failHere("a property name is missing", "write `\"name\": value`, with the property name in double quotes")
}

// failValue is for a place where a value should begin.
func (p *parser) failValue() error {
	switch c := p.peek(); {
	case p.isComment():
		return p.failComment()
	case p.pos == len(p.src):
		return p.failEnd()
	case c == '\'':
		return p.failHere("a string in single quotes", "put the value in double quotes")
	case c == ',' || c == '}' || c == ']':
		return p.failHere("a value is missing", "add the missing value, or remove what needs one")
	}
	return p.failHere("not a JSON value", "write a value: true, false, null, a number, or text in double quotes")
}

// failDelimiter is for a place where a comma, colon or closing bracket should stand.
func (p *parser) failDelimiter(message, hint string) error {
	switch {
	case p.isComment():
		return p.failComment()
	case p.pos == len(p.src):
		return p.failEnd()
	}
	return p.failHere(message, "missing delimiter: "+hint)
}

func (p *parser) failEnd() error {
	if strings.TrimLeft(p.src, " \t\r\n") == "" {
		return p.failHere("empty", "write at least {}")
	}
	return p.failHere("the text ends too early", "look for a missing delimiter: a } or ] that was never written")
}

func (p *parser) failComment() error {
	return p.failHere("a comment", "JSON has no comments: remove it")
}

// isComment reports whether a comment begins here. After a colon // is more likely an address without quotes.
func (p *parser) isComment() bool {
	rest := p.src[p.pos:]
	if !strings.HasPrefix(rest, "//") && !strings.HasPrefix(rest, "/*") && !strings.HasPrefix(rest, "#") {
		return false
	}
	line := strings.TrimLeft(p.src[strings.LastIndexByte(p.src[:p.pos], '\n')+1:p.pos], " \t\r")
	return !strings.HasSuffix(strings.TrimRight(line, " \t"), ":")
}
