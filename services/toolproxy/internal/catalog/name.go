package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	hashDigits      = 8
	maxOriginalName = 1024 // bytes of a tool's own name; longer ones are not names
)

// checkOriginal reports why a tool's own name must not reach a prompt, or nil.
func checkOriginal(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > maxOriginalName:
		return errors.New("it is longer than 1024 bytes")
	case !utf8.ValidString(name):
		return errors.New("it is not valid UTF-8")
	}
	for _, c := range name {
		switch {
		case unicode.IsSpace(c):
			return errors.New("it contains white space")
		case strings.ContainsRune("<>&`", c):
			return errors.New("it contains markup")
		case !unicode.IsPrint(c):
			return errors.New("it contains a control or invisible character")
		}
	}
	return nil
}

// visibleName returns the name under which a tool is served, before collisions are settled: only [A-Za-z0-9_-],
// at most limit bytes, and a function of server, original name and limit alone, so that it survives restarts.
func visibleName(server, original string, prefix bool, limit int) string {
	name := legal(original)
	if prefix {
		name = legal(server) + "_" + name
	}
	if len(name) <= limit {
		return name
	}
	return withSuffix(name, hash(server, original), limit)
}

// legal replaces every character outside [A-Za-z0-9_-] by `_`.
func legal(name string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
			return c
		default:
			return '_'
		}
	}, name)
}

// withSuffix returns head_<suffix>, where head is as much of name as fits into limit bytes.
func withSuffix(name, suffix string, limit int) string {
	head := name[:min(len(name), max(0, limit-len(suffix)-1))]
	return head + "_" + suffix
}

// hash returns 8 hex digits over the parts as a tuple.
func hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))[:hashDigits]
}
