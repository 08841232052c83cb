package config

import (
	"reflect"
	"strings"
)

// key is one configuration key and the ways to set it.
type key struct {
	path   string // as in toolherd.yaml, joined by dots
	env    string // the variable without its prefix
	flag   string // the flag without its dashes; empty if there is none
	help   string
	list   bool
	items  []key // of a list of objects: the keys of an item, with their place in it
	isPath bool  // a leading ~ is the user's home directory
	index  []int
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
		if k.list && f.Type.Elem().Kind() == reflect.Struct {
			k.items = walk(f.Type.Elem(), "", nil)
		}
		k.isPath = f.Tag.Get("is") == "path"
		if k.env == "" {
			k.env = strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
		}
		out = append(out, k)
	}
	return out
}
