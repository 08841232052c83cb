package serverconfig

import (
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
	"github.com/toolherd/toolherd/pkg/spelling"
)

// unknownKey is the warning about a key that nothing reads, at path, among the known ones.
func unknownKey(key, path string, known []string) Problem {
	p := Problem{
		Severity: SeverityWarning, Path: strictjson.Field(path, key), Reason: ReasonUnknownKey,
		Message: "unknown key, kept but not used", Hint: "check the spelling, or remove it",
	}
	if match := near(key, known); match != "" {
		p.Hint = "did you mean `" + match + "`?"
	}
	return p
}

// foreign are the names that other MCP clients have for our keys.
var foreign = map[string]string{
	"cmd": "command", "arguments": "args", "environment": "env", "working_directory": "cwd", "work_dir": "cwd", "workdir": "cwd",
	"endpoint": "url", "uri": "url", "server_url": "url", "http_url": "url", "base_url": "url",
	"http_headers": "headers", "request_headers": "headers", "is_active": "enabled", "active": "enabled",
	"include_tools": "allowedTools", "enabled_tools": "allowedTools", "exclude_tools": "disabledTools",
}

// near returns the member of known that key is probably meant to be, or "". It compares without case and without regard
// to how words are joined, and takes the end of a key, some words left out, for the whole: timeuot is near
// tool_call_timeout. Of equally near ones the first in known wins.
func near(key string, known []string) string {
	const longest = 64
	if len(key) > longest {
		return ""
	}
	words := splitWords(key)
	spelled := strings.Join(words, "_")
	if name, ok := foreign[spelled]; ok && slices.Contains(known, name) {
		return name
	}
	best, bestScore := "", 1<<20
	for _, candidate := range known {
		parts := splitWords(candidate)
		whole := strings.Join(parts, "_")
		if d := spelling.Distance(spelled, whole); d <= max(1, len(whole)/4) && d < bestScore {
			best, bestScore = candidate, d
		}
		if len(parts) < 2 {
			continue
		}
		// Every choice of words that keeps the last one, but not all of them. A match of the whole is better than any.
		for choice := range 1<<(len(parts)-1) - 1 {
			var some []string
			for i, part := range parts {
				if i == len(parts)-1 || choice&(1<<i) != 0 {
					some = append(some, part)
				}
			}
			ending := strings.Join(some, "_")
			if d := spelling.Distance(spelled, ending); d <= len(ending)/5 && 100+d < bestScore {
				best, bestScore = candidate, 100+d
			}
		}
	}
	return best
}

// splitWords returns the words of a key in lower case.
func splitWords(key string) []string {
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		if 'A' <= c && c <= 'Z' {
			if i > 0 && (key[i-1] < 'A' || key[i-1] > 'Z') {
				b.WriteByte('_')
			}
			c |= 0x20
		}
		b.WriteByte(c)
	}
	return strings.FieldsFunc(b.String(), func(r rune) bool { return r == '_' || r == '-' || r == ' ' || r == '.' })
}
