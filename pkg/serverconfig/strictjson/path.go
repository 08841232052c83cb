package strictjson

import (
	"strconv"
	"strings"
)

// Field returns the path of the member name of the object at path, such as env.TOKEN. A name that is not made of ASCII
// letters, digits, underscores and hyphens is quoted, as in users["bob@example.com"], so that a path names one place
// and shows on one line.
func Field(path, name string) string {
	if !isPlain(name) {
		return path + "[" + strconv.QuoteToASCII(name) + "]"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// Item returns the path of the element index of the list at path, such as args[2].
func Item(path string, index int) string { return path + "[" + strconv.Itoa(index) + "]" }

// join appends to path one that is relative to it.
func join(path, below string) string {
	if strings.HasPrefix(below, "[") {
		return path + below
	}
	return path + "." + below
}

func isPlain(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return name != ""
}
