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
	shown := stars(content[from:to], from, secretsOnLine(content[:to], start, from))
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
// from, which is on that line. Up to the error the text is well-formed, so the place of each value is known; behind it
// a guess does.
func secretsOnLine(content string, lineStart, from int) []secret.Span {
	const context = 256
	var spans []secret.Span
	near := max(lineStart, from-context)
	for _, s := range secret.Find(content[near:]) {
		spans = append(spans, secret.Span{Start: near + s.Start, End: near + s.End})
	}
	type container struct {
		key    string // the last name, or the last element of a list
		secret bool   // all that is in it
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
			inside := hidden() || slices.Contains(secretMaps, top().key)
			stack = append(stack, container{secret: inside})
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
			rest := strings.TrimLeft(content[next:], " \t\r\n")
			isName := strings.HasPrefix(rest, ":")
			if !isName && end > from && hidden() {
				spans = append(spans, secret.Span{Start: start, End: end})
			}
			top().key = content[start:end]
			i = next
		}
	}
	return spans
}

// secretMaps are the objects whose members are all secret.
var secretMaps = []string{"env", "headers", "users", "extra_token_params"}

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
