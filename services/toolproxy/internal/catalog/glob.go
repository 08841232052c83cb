package catalog

import (
	"slices"
	"strings"
)

// pattern is one entry of allowedTools or disabledTools.
//
// An entry with `*`, `?` or `[` in it is a glob as Python's fnmatchcase understands it, on every operating system:
// it must match the whole name, `*` spans everything, `[!a]` negates, a `]` first in a set is a member of it, an
// unclosed `[` and a backslash stand for themselves, and there are no braces. Any other entry is the exact name.
type pattern struct {
	text string
	glob []element // nil for an exact name
}

// element is one piece of a glob: a run of any characters, or one character out of a set.
type element struct {
	star    bool
	any     bool // `?`
	negated bool
	ranges  []runeRange
}

type runeRange struct{ low, high rune }

func newPattern(text string) pattern {
	p := pattern{text: text}
	if strings.ContainsAny(text, "*?[") {
		p.glob = compile([]rune(text))
	}
	return p
}

func compile(text []rune) []element {
	out := []element{}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '*':
			if len(out) == 0 || !out[len(out)-1].star {
				out = append(out, element{star: true})
			}
		case '?':
			out = append(out, element{any: true})
		case '[':
			set, end := compileSet(text, i+1)
			if end < 0 {
				out = append(out, literal('['))
				continue
			}
			out = append(out, set)
			i = end
		default:
			out = append(out, literal(c))
		}
	}
	return out
}

func literal(c rune) element { return element{ranges: []runeRange{{c, c}}} }

// compileSet reads the set whose first member stands at start, and returns it with the index of its `]`,
// or -1 if the set is not closed.
func compileSet(text []rune, start int) (element, int) {
	var set element
	i := start
	if i < len(text) && text[i] == '!' {
		set.negated = true
		i++
	}
	end := i
	if end < len(text) && text[end] == ']' {
		end++
	}
	for end < len(text) && text[end] != ']' {
		end++
	}
	if end >= len(text) {
		return element{}, -1
	}
	for i < end {
		low, high := text[i], text[i]
		if i+2 < end && text[i+1] == '-' {
			high = text[i+2]
			i += 2
		}
		i++
		if low <= high { // a reversed range has no members
			set.ranges = append(set.ranges, runeRange{low, high})
		}
	}
	return set, end
}

func (e element) matches(c rune) bool {
	if e.any {
		return true
	}
	in := slices.ContainsFunc(e.ranges, func(r runeRange) bool { return r.low <= c && c <= r.high })
	return in != e.negated
}

// matches reports whether the pattern matches the whole of name.
func (p pattern) matches(name string) bool {
	if p.glob == nil {
		return p.text == name
	}
	text := []rune(name)
	at, star, resume := 0, -1, 0
	for i := 0; i < len(text); {
		switch {
		case at < len(p.glob) && p.glob[at].star:
			star, resume = at, i
			at++
		case at < len(p.glob) && p.glob[at].matches(text[i]):
			at++
			i++
		case star >= 0: // let the last star take one character more
			resume++
			i = resume
			at = star + 1
		default:
			return false
		}
	}
	for at < len(p.glob) && p.glob[at].star {
		at++
	}
	return at == len(p.glob)
}
