package secret

import "strings"

// Span is the half-open range of bytes [Start, End) of a text.
type Span struct{ Start, End int }

// Find returns where text holds what looks like a credential, in rising order of Start:
//
//	Authorization: …            the rest of the line, or of the quoted value; cookies alike
//	Bearer … and Basic …        the value; words of prose such as "Basic authentication" aside
//	password=… api_key: …       the value behind a name that ends in a secret word, quoted or not, and behind key=
//	--token …                   the word after such an option
//	scheme://user:pass@host     the userinfo
//	sk-… ghp_… eyJ….….…         what begins like a well-known kind of token
//
// A reference such as ${TOKEN} counts as part of a value. Find errs towards redacting too much.
func Find(text string) []Span {
	var spans []Span
	for i := 0; i < len(text); {
		var s Span
		var ok bool
		switch text[i] {
		case ':', '=':
			if s, ok = userinfo(text, i); !ok {
				s, ok = assignment(text, i)
			}
		case ' ', '\t':
			if s, ok = scheme(text, i); !ok {
				s, ok = option(text, i)
			}
		default:
			s, ok = wellKnown(text, i)
		}
		if !ok {
			i++
			continue
		}
		spans = append(spans, s)
		i = max(s.End, i+1)
	}
	return spans
}

// Find looks back and ahead only so far, so that reading stays linear.
const (
	maxName      = 64
	maxReference = 256
)

// userinfo finds what stands before the @ of a URL whose "://" begins at i.
func userinfo(text string, i int) (Span, bool) {
	if !strings.HasPrefix(text[i:], "://") || i == 0 || !isAlnum(text[i-1]) {
		return Span{}, false
	}
	start := i + 3
	at := -1
	for j := start; j < len(text) && !strings.ContainsRune("/?# \t\r\n\"'<>`", rune(text[j])); j++ {
		if n := reference(text, j); n > 0 {
			j += n - 1
		} else if text[j] == '@' {
			at = j
		}
	}
	return Span{start, at}, at > start
}

// assignment finds the value that a secret name gets by the : or = at i.
func assignment(text string, i int) (Span, bool) {
	end := i
	for end > 0 && (text[end-1] == ' ' || text[end-1] == '"' || text[end-1] == '\'' || text[end-1] == '\\') && i-end < 4 {
		end--
	}
	start := end
	for start > 0 && end-start < maxName && isName(text[start-1]) {
		start--
	}
	name := strings.Trim(text[start:end], "-_.")
	switch {
	case name == "" || strings.HasPrefix(text[i:], "://"):
		return Span{}, false
	case isHeader(name):
		quote := byte(0)
		if end == i && start > 0 && strings.IndexByte("\"'", text[start-1]) >= 0 {
			quote = text[start-1] // the header as a whole stands in quotes: -H "Authorization: Bearer x"
		}
		return header(text, i+1, quote)
	case endsSecret(name) || text[i] == '=' && strings.EqualFold(name, "key"):
		return value(text, i+1)
	}
	return Span{}, false
}

// isHeader names the headers whose value may hold blanks, and is secret to its end.
func isHeader(name string) bool {
	switch strings.ToLower(name) {
	case "authorization", "proxy-authorization", "cookie", "set-cookie":
		return true
	}
	return false
}

// scheme finds the credentials after the word Bearer or Basic that ends at i.
func scheme(text string, i int) (Span, bool) {
	start := i
	for start > 0 && i-start < 8 && isAlnum(text[start-1]) {
		start--
	}
	if word := text[start:i]; !strings.EqualFold(word, "bearer") && !strings.EqualFold(word, "basic") {
		return Span{}, false
	}
	s, ok := value(text, i)
	if !ok || s.End-s.Start < MinLength {
		return Span{}, false
	}
	v := text[s.Start:s.End]
	switch strings.ToLower(strings.TrimRight(v, ".,:;!?")) {
	case "authentication", "authorization", "challenge", "credential", "credentials", "header", "scheme", "tokens":
		return Span{}, false
	}
	// A challenge (WWW-Authenticate: Bearer realm="x") has parameters in that place.
	if name, _, isParam := strings.Cut(v, "="); isParam {
		switch strings.ToLower(name) {
		case "realm", "scope", "error", "error_description", "resource_metadata", "charset":
			return Span{}, false
		}
	}
	return s, true
}

// option finds the argument after a secret command-line option that ends at i.
func option(text string, i int) (Span, bool) {
	start := i
	for start > 0 && i-start < maxName && isName(text[start-1]) {
		start--
	}
	if !IsSecretOption(text[start:i]) {
		return Span{}, false
	}
	s, ok := value(text, i)
	return s, ok && text[s.Start] != '-'
}

// IsSecretOption reports whether argument is a command-line option, such as --api-key, whose value is the next argument
// and a secret.
func IsSecretOption(argument string) bool {
	return strings.HasPrefix(argument, "-") && !strings.Contains(argument, "=") && endsSecret(argument)
}

// value finds the value that begins at or after i on the same line.
func value(text string, i int) (Span, bool) {
	for i < len(text) && strings.IndexByte(" \t=>[({", text[i]) >= 0 {
		i++
	}
	if s, ok := quoted(text, i); ok {
		return s, s.End > s.Start
	}
	end := bare(text, i)
	if IsAuthScheme(text[i:end]) && end+1 < len(text) && text[end] == ' ' {
		end = bare(text, end+1)
	}
	return Span{i, end}, end > i
}

// header finds what a header holds: a quoted value, or all up to quote, if there is one, or the end of the line.
func header(text string, i int, quote byte) (Span, bool) {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t') {
		i++
	}
	if s, ok := quoted(text, i); ok {
		return s, s.End > s.Start
	}
	end := i
	for end < len(text) && text[end] != '\n' && text[end] != '\r' && (quote == 0 || text[end] != quote) {
		end++
	}
	return Span{i, end}, end > i
}

// quoted finds the inside of the quotes that open at i; inside encoded JSON they have backslashes before them.
func quoted(text string, i int) (Span, bool) {
	open := i
	for open < len(text) && text[open] == '\\' {
		open++
	}
	if open == len(text) || text[open] != '"' && text[open] != '\'' {
		return Span{}, false
	}
	start := open + 1
	if open > i {
		if n := strings.Index(text[start:], text[i:start]); n >= 0 {
			return Span{start, start + n}, true
		}
		return Span{start, len(text)}, true
	}
	for j := start; j < len(text); j++ {
		switch text[j] {
		case '\\':
			j++
		case text[open]:
			return Span{start, j}, true
		}
	}
	return Span{start, len(text)}, true
}

// bare returns where the unquoted value that begins at i ends. Closing punctuation ends it only where a blank, a quote
// or nothing follows: it may be part of a password.
func bare(text string, i int) int {
	for i < len(text) {
		if n := reference(text, i); n > 0 {
			i += n
			continue
		}
		switch text[i] {
		case ' ', '\t', '\r', '\n', '"', '\'', '`', '<', '>', '&':
			return i
		case '\\':
			if i+1 < len(text) && (text[i+1] == '"' || text[i+1] == '\'') {
				return i
			}
		case ',', ';', '.', ':', '!', '?', ')', ']', '}', '|':
			next := i + 1
			for next < len(text) && strings.IndexByte(",;.:!?)]}|", text[next]) >= 0 {
				next++
			}
			if next == len(text) || strings.IndexByte(" \t\r\n\"'`", text[next]) >= 0 {
				return i
			}
			i = next
			continue
		}
		i++
	}
	return i
}

// reference returns the length of the ${…} that begins at i, or 0.
func reference(text string, i int) int {
	if !strings.HasPrefix(text[i:], "${") {
		return 0
	}
	if n := strings.IndexByte(text[i:min(len(text), i+maxReference)], '}'); n > 0 {
		return n + 1
	}
	return 0
}

// IsAuthScheme reports whether word, in any case, is one that stands before a credential, such as Bearer.
func IsAuthScheme(word string) bool {
	switch strings.ToLower(word) {
	case "bearer", "basic", "token", "apikey", "api-key", "digest", "negotiate", "dpop":
		return true
	}
	return false
}

// kinds are the beginnings of well-known tokens and how many more characters make one.
var kinds = [...]struct {
	prefix string
	more   int
}{
	{"sk-", 6},
	{"sk_live_", 8},
	{"sk_test_", 8},
	{"rk_live_", 8},
	{"ghp_", 10},
	{"gho_", 10},
	{"ghu_", 10},
	{"ghs_", 10},
	{"ghr_", 10},
	{"github_pat_", 10},
	{"glpat-", 10},
	{"xoxb-", 10},
	{"xoxp-", 10},
	{"xoxa-", 10},
	{"xoxr-", 10},
	{"xoxs-", 10},
	{"xapp-", 10},
	{"npm_", 36},
	{"hf_", 20},
	{"AIza", 30},
	{"AKIA", 16},
	{"eyJ", 20},
}

// wellKnown finds a token of a well-known kind that begins at i.
func wellKnown(text string, i int) (Span, bool) {
	switch text[i] {
	case 's', 'r', 'g', 'x', 'n', 'h', 'A', 'e':
	default:
		return Span{}, false
	}
	if i > 0 && (isAlnum(text[i-1]) || text[i-1] == '_' || text[i-1] == '-') {
		return Span{}, false
	}
	for _, k := range kinds {
		if !strings.HasPrefix(text[i:], k.prefix) {
			continue
		}
		end := i + len(k.prefix)
		dots := 0
		for end < len(text) && (isAlnum(text[end]) || text[end] == '-' || text[end] == '_' || k.prefix == "eyJ" && text[end] == '.') {
			if text[end] == '.' {
				dots++
			}
			end++
		}
		if end-i-len(k.prefix) < k.more || k.prefix == "eyJ" && dots < 2 {
			return Span{}, false
		}
		return Span{i, end}, true
	}
	return Span{}, false
}

func isName(c byte) bool { return isAlnum(c) || c == '_' || c == '-' || c == '.' }
