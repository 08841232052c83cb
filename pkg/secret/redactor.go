package secret

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// MinLength is the number of characters from which a value is redacted. Shorter ones would turn ordinary text into
// stars and are not worth guessing at.
const MinLength = 6

const (
	prefixLength = MinLength // bytes that index a value; a value of MinLength characters has at least as many
	filterBits   = 12
)

// Redactor removes secrets from text, by value and by pattern. Text is read once, however many values there are.
// It is safe for concurrent use. A nil Redactor knows no values and redacts by pattern.
type Redactor struct {
	mu     sync.RWMutex
	counts map[string]int      // form of a value → how often it was added and not removed
	index  map[uint64][]string // first bytes → the forms that begin with them, longest first
	filter [1 << filterBits]uint32
}

// NewRedactor returns a Redactor that knows no values yet.
func NewRedactor() *Redactor {
	return &Redactor{counts: map[string]int{}, index: map[uint64][]string{}}
}

// Add makes the Redactor remove values of [MinLength] or more characters, also as they look inside JSON, a URL or
// trimmed, and each long line of a value that has several. A value added twice has to be removed twice.
func (r *Redactor) Add(values ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range values {
		for _, form := range forms(v) {
			r.counts[form]++
			if r.counts[form] > 1 {
				continue
			}
			p := prefixOf(form)
			r.filter[slot(p)]++
			same := append(r.index[p], form)
			slices.SortFunc(same, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
			r.index[p] = same
		}
	}
}

// Remove undoes one Add of each value. A value that was not added is ignored.
func (r *Redactor) Remove(values ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range values {
		for _, form := range forms(v) {
			switch r.counts[form] {
			case 0:
				continue
			case 1:
				delete(r.counts, form)
			default:
				r.counts[form]--
				continue
			}
			p := prefixOf(form)
			r.filter[slot(p)]--
			if rest := slices.DeleteFunc(r.index[p], func(s string) bool { return s == form }); len(rest) > 0 {
				r.index[p] = rest
			} else {
				delete(r.index, p)
			}
		}
	}
}

// Redact returns text with every secret replaced by [Mask]. Text without one is returned as it is.
func (r *Redactor) Redact(text string) string {
	spans := Find(text)
	if r != nil {
		spans = r.appendValues(spans, text)
	}
	return Cut(text, spans)
}

// appendValues appends where known values stand in text. Values that overlap give overlapping spans.
func (r *Redactor) appendValues(spans []Span, text string) []Span {
	if len(text) < prefixLength {
		return spans
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.index) == 0 {
		return spans
	}
	var p uint64
	for i := range prefixLength - 1 {
		p = p<<8 | uint64(text[i])
	}
	for i := prefixLength - 1; i < len(text); i++ {
		p = (p<<8 | uint64(text[i])) & (1<<(8*prefixLength) - 1)
		if r.filter[slot(p)] == 0 {
			continue
		}
		start := i - prefixLength + 1
		for _, form := range r.index[p] {
			if strings.HasPrefix(text[start:], form) {
				spans = append(spans, Span{start, start + len(form)})
				break
			}
		}
	}
	return spans
}

// Cut returns text with each span replaced by [Mask]; spans may be in any order and overlap, and those that touch
// become one.
func Cut(text string, spans []Span) string {
	if len(spans) == 0 {
		return text
	}
	slices.SortFunc(spans, func(a, b Span) int { return cmp.Compare(a.Start, b.Start) })
	var b strings.Builder
	b.Grow(len(text))
	done := 0
	for i := 0; i < len(spans); {
		start, end := spans[i].Start, spans[i].End
		for i++; i < len(spans) && spans[i].Start <= end; i++ {
			end = max(end, spans[i].End)
		}
		b.WriteString(text[done:start])
		b.WriteString(Mask)
		done = end
	}
	b.WriteString(text[done:])
	return b.String()
}

// forms returns the spellings under which value may turn up, without those too short to redact and without repeats.
func forms(value string) []string {
	var out []string
	add := func(form string) {
		if utf8.RuneCountInString(form) >= MinLength && !slices.Contains(out, form) {
			out = append(out, form)
		}
	}
	add(value)
	trimmed := strings.TrimSpace(value)
	add(trimmed)
	if len(out) == 0 {
		return nil
	}
	if quoted, err := json.Marshal(trimmed); err == nil {
		add(string(quoted[1 : len(quoted)-1]))
	}
	add(url.QueryEscape(trimmed))
	add(url.PathEscape(trimmed))
	if strings.ContainsRune(trimmed, '\n') {
		// stderr and logs come line by line, and a key in PEM form would pass them unseen.
		for line := range strings.Lines(trimmed) {
			if line = strings.TrimSpace(line); len(line) >= 2*MinLength {
				add(line)
			}
		}
	}
	return out
}

func prefixOf(form string) uint64 {
	var p uint64
	for i := range prefixLength {
		p = p<<8 | uint64(form[i])
	}
	return p
}

// slot spreads a prefix over the filter (Fibonacci hashing).
func slot(p uint64) uint64 { return p * 0x9e3779b97f4a7c15 >> (64 - filterBits) }
