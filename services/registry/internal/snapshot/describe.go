package snapshot

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// namesShown bounds how many names of a kind Describe gives.
const namesShown = 5

// Describe says in one line what after changes against before: "added a; changed b, c; removed d".
func Describe(before, after *Content) string {
	var added, changed, removed []string
	old := map[string]*Entry{}
	for i := range before.Servers {
		old[before.Servers[i].Name] = &before.Servers[i]
	}
	for i := range after.Servers {
		e := &after.Servers[i]
		switch o := old[e.Name]; {
		case o == nil:
			added = append(added, e.Name)
		case !sameEntry(*o, *e):
			changed = append(changed, e.Name)
		}
		delete(old, e.Name)
	}
	for _, e := range before.Servers {
		if old[e.Name] != nil {
			removed = append(removed, e.Name)
		}
	}
	var parts []string
	for _, p := range []struct {
		verb  string
		names []string
	}{{"added", added}, {"changed", changed}, {"removed", removed}} {
		if len(p.names) > 0 {
			parts = append(parts, p.verb+" "+Names(p.names))
		}
	}
	if strings.Join(before.Interceptors, "\n") != strings.Join(after.Interceptors, "\n") {
		parts = append(parts, "changed mcpInterceptors")
	}
	return strings.Join(parts, "; ")
}

// Names lists names for people, a few of them if they are many.
func Names(names []string) string {
	names = slices.Clone(names)
	for i, name := range names {
		if quoted := strconv.QuoteToASCII(name); quoted != `"`+name+`"` {
			names[i] = quoted // of an entry in error: a database takes no NUL, and a terminal not all else
		}
	}
	if len(names) <= namesShown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:namesShown], ", "), len(names)-namesShown)
}

func sameEntry(a, b Entry) bool {
	a.Source, b.Source = "", ""
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
