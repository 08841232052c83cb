package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/spelling"
)

// Filter says which tools of a server are served. At most one of the lists is set; the zero value keeps every tool.
type Filter struct {
	Allowed  []string // allowedTools: keep the tools that one of these matches
	Disabled []string // disabledTools: drop them
}

// filter is a compiled Filter that remembers which patterns matched a tool.
type filter struct {
	field    string
	keep     bool
	patterns []pattern
	used     []bool
}

func newFilter(f Filter) *filter {
	switch {
	case len(f.Allowed) > 0:
		return compileFilter("allowedTools", true, f.Allowed)
	case len(f.Disabled) > 0:
		return compileFilter("disabledTools", false, f.Disabled)
	default:
		return nil
	}
}

func compileFilter(field string, keep bool, entries []string) *filter {
	f := &filter{field: field, keep: keep, used: make([]bool, len(entries))}
	for _, e := range entries {
		f.patterns = append(f.patterns, newPattern(e))
	}
	return f
}

// keeps reports whether a tool with these names, prefixed and bare, is served. A nil filter keeps all.
func (f *filter) keeps(names ...string) bool {
	if f == nil {
		return true
	}
	matched := false
	for i, p := range f.patterns {
		if slices.ContainsFunc(names, p.matches) {
			matched = true
			f.used[i] = true
		}
	}
	return matched == f.keep
}

// warnings names the entries that matched none of the tools, with the names that come close.
func (f *filter) warnings(server string, names []string) []string {
	if f == nil {
		return nil
	}
	var unused []string
	for i, p := range f.patterns {
		if f.used[i] {
			continue
		}
		text := fmt.Sprintf("%q", p.text)
		if near := nearest(p.text, names); p.glob == nil && near != "" {
			text += fmt.Sprintf(" (did you mean %q?)", near)
		}
		unused = append(unused, text)
	}
	if len(unused) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s of server %q matches no tool: %s", f.field, server, strings.Join(unused, ", "))}
}

// nearest returns the name that text most likely means, or "" if none is close. Case does not count.
func nearest(text string, names []string) string {
	folded := make([]string, len(names))
	for i, name := range names {
		folded[i] = strings.ToLower(name)
	}
	near := spelling.Nearest(strings.ToLower(text), folded, max(2, len(text)/4))
	if near == "" {
		return ""
	}
	return names[slices.Index(folded, near)]
}
