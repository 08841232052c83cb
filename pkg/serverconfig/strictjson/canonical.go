package strictjson

import (
	"cmp"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Canonical returns v as JSON without white space, with the members of objects sorted by name (in code points), and
// with strings that escape only what they must. Numbers stay as written: 1.0 and 1 differ, and none loses a digit.
// Values without duplicate members have equal canonical forms exactly if they differ in white space, key order and the
// spelling of strings at most.
func (v Value) Canonical() []byte { return v.appendCanonical(nil) }

func (v Value) appendCanonical(dst []byte) []byte {
	switch v.Kind() {
	case Object:
		type member struct {
			name  string
			value Value
		}
		var members []member
		for name, value := range v.Members() {
			members = append(members, member{name, value})
		}
		slices.SortStableFunc(members, func(a, b member) int { return cmp.Compare(a.name, b.name) })
		dst = append(dst, '{')
		for i, m := range members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(AppendString(dst, m.name), ':')
			dst = m.value.appendCanonical(dst)
		}
		return append(dst, '}')
	case Array:
		dst = append(dst, '[')
		for i, element := range v.Elements() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = element.appendCanonical(dst)
		}
		return append(dst, ']')
	case String:
		return AppendString(dst, v.Text())
	default:
		return append(dst, v.Raw()...)
	}
}

// AppendString appends s as a JSON string. Invalid UTF-8 becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += n
			continue
		}
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			if c < 0x20 {
				dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			} else {
				dst = append(dst, c)
			}
		}
		i++
	}
	return append(dst, '"')
}

// unescape decodes the inside of a string that the scanner has accepted.
func unescape(s string) string {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			b = append(b, s[i])
			i++
			continue
		}
		switch c := s[i+1]; c {
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r := rune(hex4(s[i+2:]))
			i += 6
			if utf16.IsSurrogate(r) {
				pair := rune(utf8.RuneError)
				if len(s) >= i+6 && s[i] == '\\' && s[i+1] == 'u' {
					pair = utf16.DecodeRune(r, rune(hex4(s[i+2:])))
				}
				if pair != utf8.RuneError {
					i += 6
				}
				r = pair
			}
			b = utf8.AppendRune(b, r)
			continue
		default: // " \ /
			b = append(b, c)
		}
		i += 2
	}
	return string(b)
}

func hex4(s string) uint64 {
	n, _ := strconv.ParseUint(s[:4], 16, 32)
	return n
}
