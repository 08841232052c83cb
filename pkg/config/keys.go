package config

import (
	"reflect"
	"strings"
)

// key is one configuration key and the ways to set it.
type key struct {
	path  string // as in toolherd.yaml, joined by dots
	env   string // the variable without its prefix
	flag  string // the flag without its dashes; empty if there is none
	help  string
	list  bool
	index []int
}

// keys lists every key of [Config], in the order of its fields.
func keys() []key {
	return walk(reflect.TypeFor[Config](), "", nil)
}

func walk(t reflect.Type, prefix string, index []int) []key {
	var out []key
	for f := range t.Fields() {
		tag := f.Tag.Get("koanf")
		if tag == "" || tag == "-" {
			continue
		}
		path := prefix + tag
		at := append(append([]int{}, index...), f.Index...)
		if f.Type.Kind() == reflect.Struct {
			out = append(out, walk(f.Type, path+".", at)...)
			continue
		}
		k := key{path: path, env: f.Tag.Get("env"), flag: f.Tag.Get("flag"), help: f.Tag.Get("help"), index: at}
		k.list = f.Type.Kind() == reflect.Slice
		if k.env == "" {
			k.env = strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
		}
		out = append(out, k)
	}
	return out
}

// nearest returns the candidate that a typing mistake most likely meant, or "".
func nearest(word string, candidates []string) string {
	best, bestDist := "", len(word)/3+2
	for _, c := range candidates {
		if d := distance(word, c); d < bestDist {
			best, bestDist = c, d
		}
	}
	return best
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		prev := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			prev, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, prev+cost)
		}
	}
	return row[len(b)]
}
