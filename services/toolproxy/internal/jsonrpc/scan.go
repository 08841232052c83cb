package jsonrpc

import (
	"encoding/binary"
	"math/bits"
)

// maxDepth is how deep values may nest, as in encoding/json, so that the value is readable by what comes after.
const maxDepth = 10_000

// Valid reports whether data is exactly one JSON value, with white space around it allowed.
func Valid(data []byte) bool {
	end, ok := skipValue(data, skipSpace(data, 0))
	return ok && skipSpace(data, end) == len(data)
}

// skipSpace returns the index of the first byte at or after i that is not JSON white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// nesting is a stack of one bit per open value: set for an object, clear for an array.
// The first 64 levels live in a register; only deeper values allocate.
type nesting struct {
	top   uint64
	depth int
	below []uint64
}

func (n *nesting) push(object bool) bool {
	if n.depth == maxDepth {
		return false
	}
	if n.depth > 0 && n.depth%64 == 0 {
		n.below = append(n.below, n.top)
	}
	n.top <<= 1
	if object {
		n.top |= 1
	}
	n.depth++
	return true
}

func (n *nesting) pop() {
	n.top >>= 1
	n.depth--
	if n.depth > 0 && n.depth%64 == 0 {
		last := len(n.below) - 1
		n.top = n.below[last]
		n.below = n.below[:last]
	}
}

func (n *nesting) inObject() bool { return n.top&1 == 1 }

// skipValue checks the JSON value that begins at b[i], which must not be white space, and returns the index
// after it. If the value is malformed it returns the index of the offending byte and false.
func skipValue(b []byte, i int) (int, bool) {
	var (
		open nesting
		ok   bool
	)
	for {
		// A value begins at b[i].
		if i >= len(b) {
			return i, false
		}
		switch c := b[i]; {
		case c == '"':
			if i, ok = skipString(b, i+1); !ok {
				return i, false
			}
		case c == '{':
			if !open.push(true) {
				return i, false
			}
			i = skipSpace(b, i+1)
			if i < len(b) && b[i] == '}' {
				open.pop()
				i++
				break
			}
			if i, ok = skipKey(b, i); !ok {
				return i, false
			}
			continue
		case c == '[':
			if !open.push(false) {
				return i, false
			}
			i = skipSpace(b, i+1)
			if i < len(b) && b[i] == ']' {
				open.pop()
				i++
				break
			}
			continue
		case c == '-' || '0' <= c && c <= '9':
			if i, ok = skipNumber(b, i); !ok {
				return i, false
			}
		case c == 't':
			if i, ok = skipWord(b, i, "true"); !ok {
				return i, false
			}
		case c == 'f':
			if i, ok = skipWord(b, i, "false"); !ok {
				return i, false
			}
		case c == 'n':
			if i, ok = skipWord(b, i, "null"); !ok {
				return i, false
			}
		default:
			return i, false
		}

		// A value ended before b[i]: close what ends with it, or go on to the next one.
		for {
			if open.depth == 0 {
				return i, true
			}
			i = skipSpace(b, i)
			if i >= len(b) {
				return i, false
			}
			if b[i] == ',' {
				i = skipSpace(b, i+1)
				if open.inObject() {
					if i, ok = skipKey(b, i); !ok {
						return i, false
					}
				}
				break
			}
			if open.inObject() && b[i] != '}' || !open.inObject() && b[i] != ']' {
				return i, false
			}
			open.pop()
			i++
		}
	}
}

// skipKey checks a member's key and colon beginning at b[i] and returns the index where the value begins.
func skipKey(b []byte, i int) (int, bool) {
	if i >= len(b) || b[i] != '"' {
		return i, false
	}
	i, ok := skipString(b, i+1)
	if !ok {
		return i, false
	}
	return skipColon(b, i)
}

// skipColon checks the colon at or after b[i] and returns the index where the value begins.
func skipColon(b []byte, i int) (int, bool) {
	i = skipSpace(b, i)
	if i >= len(b) || b[i] != ':' {
		return i, false
	}
	return skipSpace(b, i+1), true
}

func skipWord(b []byte, i int, word string) (int, bool) {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return i, false
	}
	return i + len(word), true
}

// skipNumber checks the number that begins at b[i] and returns the index after it.
func skipNumber(b []byte, i int) (int, bool) {
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	default:
		end := skipDigits(b, i)
		if end == i {
			return i, false
		}
		i = end
	}
	if i < len(b) && b[i] == '.' {
		end := skipDigits(b, i+1)
		if end == i+1 {
			return end, false
		}
		i = end
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		end := skipDigits(b, i)
		if end == i {
			return i, false
		}
		i = end
	}
	return i, true
}

func skipDigits(b []byte, i int) int {
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	return i
}

// skipString checks the string whose first byte after the opening quote is b[i] and returns the index after
// the closing quote.
func skipString(b []byte, i int) (int, bool) {
	for {
		i = plainRun(b, i)
		if i >= len(b) || b[i] < ' ' {
			return i, false
		}
		if b[i] == '"' {
			return i + 1, true
		}
		// b[i] is a backslash.
		i++
		if i >= len(b) {
			return i, false
		}
		switch b[i] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			i++
		case 'u':
			i++
			for range 4 {
				if i >= len(b) || !isHex(b[i]) {
					return i, false
				}
				i++
			}
		default:
			return i, false
		}
	}
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// plainRun returns the index of the first byte at or after i that is a quote, a backslash or a control
// character, or len(b). It looks at eight bytes at a time: the lowest marked byte of each word is exact, the
// ones above it may be marked by the borrow of a subtraction and are not looked at.
func plainRun(b []byte, i int) int {
	const (
		ones   = 0x0101010101010101
		highs  = 0x8080808080808080
		quotes = ones * '"'
		slash  = ones * '\\'
		spaces = ones * ' '
	)
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		q, s := w^quotes, w^slash
		if m := ((q - ones) &^ q) | ((s - ones) &^ s) | ((w - spaces) &^ w); m&highs != 0 {
			return i + bits.TrailingZeros64(m&highs)>>3
		}
	}
	for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= ' ' {
		i++
	}
	return i
}
