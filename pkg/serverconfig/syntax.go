package serverconfig

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
	"github.com/toolherd/toolherd/pkg/spelling"
)

// syntaxProblem describes content that is not JSON, with the line that is wrong.
func syntaxProblem(content string, err error) *Problem {
	p := &Problem{Reason: ReasonSyntax, Message: err.Error()}
	e, ok := errors.AsType[*strictjson.SyntaxError](err)
	if !ok {
		return p
	}
	p.Message, p.Hint, p.Line, p.Column = e.Message, e.Hint, e.Line, e.Column
	if e.Line == 0 {
		return p
	}
	start := strings.LastIndexByte(content[:e.Offset], '\n') + 1
	end := len(content)
	if n := strings.IndexByte(content[e.Offset:], '\n'); n >= 0 {
		end = e.Offset + n
	}
	if strings.TrimSpace(content[start:end]) == "" {
		return p
	}
	from, to := around(content, e.Offset, start, end)
	secrets := append(secretsOnLine(content[:to], start, from), unknownWords(content[:to], max(from, doubtful(content[:e.Offset])))...)
	shown := stars(content[from:to], from, secrets)
	column := utf8.RuneCountInString(content[from:e.Offset])
	p.Source, p.Caret = excerpt(shown, column, from > start, to < end)
	return p
}

// window is how many characters of a long line are shown on each side of the error.
const window = 60

// around returns the part of the line content[start:end] that is shown for an error at offset.
func around(content string, offset, start, end int) (from, to int) {
	from, to = offset, offset
	for range window {
		_, n := utf8.DecodeLastRuneInString(content[start:from])
		from -= n
		_, n = utf8.DecodeRuneInString(content[to:end])
		to += n
	}
	return from, to
}

// stars replaces each character of line inside spans, which count from the start of the file, so that columns stay.
func stars(line string, offset int, spans []secret.Span) string {
	slices.SortFunc(spans, func(a, b secret.Span) int { return cmp.Compare(a.Start, b.Start) })
	var b strings.Builder
	done := 0
	for _, s := range spans {
		from, to := max(s.Start-offset, done), min(s.End-offset, len(line))
		if to <= from {
			continue
		}
		b.WriteString(line[done:from])
		b.WriteString(strings.Repeat("*", utf8.RuneCountInString(line[from:to])))
		done = to
	}
	return b.String() + line[done:]
}

// excerpt returns line as it is shown, and a line whose ^ stands below its character number column, counted from 0.
// What does not print becomes U+FFFD; tabs stay, in both lines.
func excerpt(line string, column int, cutBefore, cutAfter bool) (source, caret string) {
	var src, mark strings.Builder
	if cutBefore {
		src.WriteString("…")
		mark.WriteString(" ")
	}
	i := 0
	for _, r := range strings.TrimRight(line, "\r") {
		if r != '\t' && !unicode.IsPrint(r) {
			r = utf8.RuneError
		}
		src.WriteRune(r)
		if i < column {
			if r != '\t' {
				r = ' '
			}
			mark.WriteRune(r)
		}
		i++
	}
	if cutAfter {
		src.WriteString("…")
	}
	return src.String(), mark.String() + "^"
}

// secretsOnLine returns where content, which is broken JSON cut within a line, holds what may be a secret at or after
// from, which is on that line. Up to the error the text is well-formed, so the place of each value is known. Behind it
// this is a guess, to which unknownWords adds.
func secretsOnLine(content string, lineStart, from int) []secret.Span {
	const context = 256
	var spans []secret.Span
	windowStart := max(lineStart, from-context)
	for _, s := range secret.Find(content[windowStart:]) {
		spans = append(spans, secret.Span{Start: windowStart + s.Start, End: windowStart + s.End})
	}
	type container struct {
		key    string // the last name, or the last element of a list
		list   bool
		secret bool // all that is in it
	}
	stack := []container{{}}
	top := func() *container { return &stack[len(stack)-1] }
	hidden := func() bool {
		t := top()
		return t.secret || t.key != "" && (secret.LooksSecret(t.key) || secret.IsSecretOption(t.key))
	}
	for i := 0; i < len(content); {
		switch c := content[i]; c {
		case '{', '[':
			inside := hidden() || isSecretMap(top().key)
			stack = append(stack, container{list: c == '[', secret: inside})
			i++
		case '}', ']':
			if len(stack) > 1 {
				stack = stack[:len(stack)-1]
			}
			i++
		case ' ', '\t', '\r', '\n', ',', ':':
			i++
		default:
			start, end, next := token(content, i)
			after := strings.TrimLeft(content[next:], " \t\r\n")
			before := strings.TrimRight(content[:i], " \t\r\n")
			isName := !top().list && strings.HasPrefix(after, ":") && !strings.HasSuffix(before, ":")
			if !isName && end > from && hidden() {
				spans = append(spans, secret.Span{Start: start, End: end})
			}
			top().key = content[start:end]
			i = next
		}
	}
	return spans
}

// doubtful returns from where on nobody can tell what the text is, where an error follows content: from the error, or
// from the string before it unless that is the value of a name.
func doubtful(content string) int {
	before, ok := strings.CutSuffix(strings.TrimRight(content, " \t\r\n"), `"`)
	if !ok {
		return len(content)
	}
	start := strings.LastIndexByte(before, '"')
	if start < 0 || strings.HasSuffix(strings.TrimRight(before[:start], " \t\r\n"), ":") {
		return len(content)
	}
	return start + 1
}

// unknownWords returns where content, from offset on, has a word that is not one of those that
// configurations are made of. Nobody can tell what it is: a quote that is missing turns values into names and names into
// values. Short words, of which no secret is made, are shown.
func unknownWords(content string, offset int) []secret.Span {
	var spans []secret.Span
	start := offset
	for start > 0 && !endsWord(content, start-1) {
		start--
	}
	for i := start; i < len(content); {
		if endsWord(content, i) {
			i++
			continue
		}
		end := i + 1
		for end < len(content) && !endsWord(content, end) {
			end++
		}
		shown := harmless(content[i:end])
		if utf8.RuneCountInString(content[i+shown:end]) >= secret.MinLength {
			spans = append(spans, secret.Span{Start: i + shown, End: end})
		}
		i = end
	}
	return spans
}

// endsWord reports whether the character at i stands between words: white space, a quote or a bracket, and a comma or
// colon beside one of them, since inside a value they are part of it.
func endsWord(content string, i int) bool {
	between := func(i int) bool {
		return i < 0 || i >= len(content) || strings.IndexByte(" \t\r\n{}[]\"'", content[i]) >= 0
	}
	return between(i) || (content[i] == ',' || content[i] == ':') && (between(i-1) || between(i+1))
}

// harmless returns how much of word, from its beginning, is no secret wherever it stands: all of a key or a fixed value
// of a configuration, in any case, and scheme and host of a URL.
func harmless(word string) int {
	for _, words := range [][]string{
		entryKeys, topLevel, oauthKeys, authKeys, userAuthKeys, headersFromContextKeys, routingKeys, toolsetKeys, {"mcp_servers", "undefined"},
	} {
		if slices.ContainsFunc(words, func(known string) bool { return strings.EqualFold(known, word) }) {
			return len(word)
		}
	}
	scheme, rest, ok := strings.Cut(word, "://")
	if !ok || scheme != "http" && scheme != "https" || strings.Contains(rest, "@") {
		return 0
	}
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	return len(scheme) + len("://") + len(rest)
}

// secretMaps are the objects whose members are all secret.
var secretMaps = []string{"env", "headers", "users", "extra_token_params"}

// isSecretMap reports whether key is one of them, or one slip away from it.
func isSecretMap(key string) bool {
	return slices.ContainsFunc(secretMaps, func(known string) bool {
		return len(key) >= len(known)-1 && len(key) <= len(known)+1 && spelling.Distance(strings.ToLower(key), known) <= 1
	})
}

// token returns the inside of the string or word that begins at i, and where to go on.
func token(content string, i int) (start, end, next int) {
	quote := content[i]
	if quote != '"' && quote != '\'' {
		end = i
		for end < len(content) && strings.IndexByte(" \t\r\n,:{}[]\"'", content[end]) < 0 {
			end++
		}
		return i, end, end
	}
	for j := i + 1; j < len(content); j++ {
		switch content[j] {
		case '\\':
			j++
		case quote:
			return i + 1, j, j + 1
		case '\n':
			return i + 1, j, j
		}
	}
	return i + 1, len(content), len(content)
}
