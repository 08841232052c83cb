package source

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// Layer is a place where a file may define servers.
type Layer struct {
	Path  string // absolute
	Name  string // as its user would name it; valid UTF-8 even where Path is not
	Class snapshot.Class
	// InsteadOf is the path of the layer before it if this one counts only while that one has no file.
	InsteadOf string
}

// Places says where to look for files.
type Places struct {
	// Explicit names files, later ones above earlier ones; ExplicitFrom is the flag or variable that did.
	Explicit     []string
	ExplicitFrom string
	// WorkDir is the caller's working directory, absolute. Relative explicit paths count from it.
	WorkDir string
	// ProjectDir is where the search for the project's root starts; empty means WorkDir.
	ProjectDir string
	// Home is the user's home directory; empty means that there are no user files.
	Home string
	// None means that no file is to be opened at all.
	None bool
}

const (
	// UserFile is the name of the user's own layer.
	UserFile = "~/.toolherd/.mcp.json"

	legacyName = "mcp_config.json"
)

// Layers returns the layers of p, lowest first. It opens no file but a `.git` one. It fails with CONFIG_INVALID
// where p names a directory or an explicit file that does not exist.
func Layers(p Places) ([]Layer, error) {
	if p.None {
		if len(p.Explicit) > 0 {
			return nil, fault.New(fault.ConfigInvalid, "--no-mcp and %s exclude each other: leave one out", p.explicitFrom())
		}
		return nil, nil
	}
	root, err := p.root()
	if err != nil {
		return nil, err
	}
	layers := p.discovered(root)
	for _, path := range p.Explicit {
		l, err := p.explicit(path)
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	return once(layers), nil
}

func (p Places) explicitFrom() string {
	if p.ExplicitFrom == "" {
		return "--mcp-config"
	}
	return p.ExplicitFrom
}

func (p Places) root() (string, error) {
	if p.ProjectDir == "" {
		return Root(p.WorkDir), nil
	}
	dir := p.Absolute(p.ProjectDir)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", fault.New(fault.ConfigInvalid, "--project: %s is not a directory: name one that exists", dir)
	}
	return Root(dir), nil
}

func (p Places) discovered(root string) []Layer {
	var layers []Layer
	home := p.Home
	if home != "" {
		for _, sub := range []string{".deepagents", ".toolherd"} {
			layers = append(layers, Layer{
				Path: filepath.Join(home, sub, ".mcp.json"), Name: "~/" + sub + "/.mcp.json", Class: snapshot.User,
			})
		}
	}
	project := func(path, insteadOf string) {
		layers = append(layers, Layer{Path: path, Name: valid(path), Class: snapshot.Project, InsteadOf: insteadOf})
	}
	project(filepath.Join(root, ".deepagents", ".mcp.json"), "")
	project(filepath.Join(root, ".toolherd", ".mcp.json"), "")
	extensions := filepath.Join(root, "extensions_config.json")
	project(extensions, "")
	project(filepath.Join(root, legacyName), extensions)
	project(filepath.Join(root, ".mcp.json"), "")
	return layers
}

func (p Places) explicit(name string) (Layer, error) {
	path := p.Absolute(name)
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Layer{}, fault.New(fault.ConfigInvalid,
			"%s: %s does not exist: create it, or name a file that does", p.explicitFrom(), path)
	}
	return Layer{Path: path, Name: valid(path), Class: snapshot.Explicit}, nil // what else is wrong shows when it is read
}

// valid returns path as text that any format can carry.
func valid(path string) string { return strings.ToValidUTF8(path, "\ufffd") }

// Absolute expands a leading ~ and counts a relative path from the working directory.
func (p Places) Absolute(path string) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok && p.Home != "" && (rest == "" || rest[0] == '/') {
		return filepath.Join(p.Home, rest)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.WorkDir, path)
	}
	return filepath.Clean(path)
}

// once drops all but one of the layers that are the same file by the same name: an explicit one beats all, so that its
// class holds, else the first, so that a home directory that is a project's root has user files.
func once(layers []Layer) []Layer {
	at := map[string]int{}
	var out []Layer
	for _, l := range layers {
		key := place(l.Path)
		i, seen := at[key]
		switch {
		case !seen:
			at[key] = len(out)
			out = append(out, l)
		case l.Class == snapshot.Explicit:
			out[i].Path = "" // dropped below; the later place decides the precedence
			at[key] = len(out)
			out = append(out, l)
		}
	}
	kept := out[:0]
	for _, l := range out {
		if l.Path != "" {
			kept = append(kept, l)
		}
	}
	return kept
}

// place resolves links in the directory of path, as far as it exists, but not path itself: a link is a file of its own.
func place(path string) string {
	rest := filepath.Base(path)
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if resolved, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(resolved, rest)
		}
		if dir == filepath.Dir(dir) {
			return path
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
}

// Root returns the project root that dir belongs to: the nearest directory at or above it, links resolved, that has a
// .git directory or a valid .git file, as worktrees and submodules have. An invalid .git file ends the search. Without
// a root it is dir itself.
func Root(dir string) string {
	start, err := filepath.EvalSymlinks(dir)
	if err != nil {
		start = filepath.Clean(dir)
	}
	for at := start; ; at = filepath.Dir(at) {
		git := filepath.Join(at, ".git")
		info, err := os.Stat(git)
		switch {
		case err == nil && info.IsDir():
			return at
		case err == nil && info.Mode().IsRegular():
			if leadsToGitDir(at, git) {
				return at
			}
			return start
		}
		if at == filepath.Dir(at) {
			return start
		}
	}
}

func leadsToGitDir(dir, gitFile string) bool {
	f, err := os.Open(gitFile)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 8192)
	n, _ := f.Read(head)
	rest, ok := bytes.CutPrefix(head[:n], []byte("gitdir: "))
	if !ok {
		return false
	}
	target := strings.TrimRight(string(rest), "\r\n")
	if !filepath.IsAbs(target) {
		target = filepath.Join(dir, target)
	}
	info, err := os.Stat(target)
	return err == nil && info.IsDir()
}

// String names the layer in logs.
func (l Layer) String() string { return fmt.Sprintf("%s (%s)", l.Name, l.Class) }
