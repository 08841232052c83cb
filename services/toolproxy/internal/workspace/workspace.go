// Package workspace decides where stdio servers work: their working directory and their temporary directory.
//
// Users and threads become path segments below one root. Every file system access goes through [os.Root], so
// that neither an id nor a symbolic link planted below the root leads outside of it.
package workspace

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolherd/toolherd/pkg/authn"
)

// tempVariables are the names under which programs look for their temporary directory.
var tempVariables = [...]string{"TMPDIR", "TMP", "TEMP"}

// Layout knows where things are. It does no I/O until it is asked for a place.
type Layout struct {
	Root    string // holds users/<user>/threads/<thread>/user-data/workspace; made when first needed
	Project string // the project root: where servers of the scope default work
}

// Place is where one stdio session works.
type Place struct {
	Dir     string            // the working directory, absolute
	Env     map[string]string // TMPDIR, TMP, TEMP, as far as the entry does not set them
	Warning string            // why temporary files are not pinned; empty if they are
}

// Request names the session to place.
type Request struct {
	Scope authn.Scope
	Cwd   string            // the entry's cwd; empty means none
	Env   map[string]string // the entry's env
}

// Place makes the directories of a session and returns them. A workspace that cannot be made is an error; a
// temporary directory that cannot be made is a warning.
func (l Layout) Place(r Request) (Place, error) {
	dir := Dir(r.Scope)
	root, err := l.open()
	if err != nil {
		return Place{}, err
	}
	defer root.Close() //nolint:errcheck // a directory handle that was only read

	p := Place{Env: map[string]string{}}
	if err := root.MkdirAll(dir, 0o750); err != nil {
		return Place{}, fmt.Errorf("make workspace: %w", err)
	}
	switch {
	case r.Cwd != "":
		p.Dir = r.Cwd
		if !filepath.IsAbs(p.Dir) {
			p.Dir = filepath.Join(l.Project, p.Dir)
		}
	case r.Scope == (authn.Scope{UserID: authn.DefaultID, ThreadID: authn.DefaultID}) && l.Project != "":
		p.Dir = l.Project
	default:
		p.Dir = filepath.Join(root.Name(), dir)
	}
	temp := filepath.Join(dir, ".mcp", "tmp")
	if err := makePrivate(root, temp); err != nil {
		p.Warning = fmt.Sprintf("temporary files are not pinned to the workspace: %v", err)
		return p, nil
	}
	for _, name := range tempVariables {
		if _, set := r.Env[name]; !set {
			p.Env[name] = filepath.Join(root.Name(), temp)
		}
	}
	return p, nil
}

func (l Layout) open() (*os.Root, error) {
	if l.Root == "" {
		return nil, errors.New("no workspace root is configured (toolproxy.workspace_root)")
	}
	path, err := filepath.Abs(l.Root)
	if err != nil {
		return nil, fmt.Errorf("workspace root: %w", err)
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return nil, fmt.Errorf("make workspace root: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open workspace root: %w", err)
	}
	return root, nil
}

// makePrivate makes a directory that only its owner can read.
func makePrivate(root *os.Root, path string) error {
	if err := root.MkdirAll(path, 0o700); err != nil {
		return err
	}
	info, err := root.Lstat(path)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return &fs.PathError{Op: "make", Path: path, Err: errors.New("not a directory")}
	case info.Mode().Perm() != 0o700:
		return root.Chmod(path, 0o700)
	}
	return nil
}

// Dir returns the workspace of a scope, relative to the root.
func Dir(s authn.Scope) string {
	return filepath.Join("users", segment(s.UserID), "threads", segment(s.ThreadID), "user-data", "workspace")
}

// segment returns id as one path segment: itself where it has only [A-Za-z0-9_-], else what is left of it and 16 hex
// digits over the whole. Only an id of legal characters that ends in the very hash of another shares that one's segment.
func segment(id string) string {
	clean := strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
			return c
		default:
			return '_'
		}
	}, id)
	if clean == id && id != "" {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return clean + "-" + hex.EncodeToString(sum[:8])
}

// ProjectRoot returns the root of the project that dir lies in: the nearest directory at or above it, links resolved, with
// a .git directory, or a .git file that leads to one as those of worktrees do. A .git file that leads nowhere ends the
// search. Without a root it is dir; an empty dir stays empty.
func ProjectRoot(dir string) string {
	if dir == "" {
		return ""
	}
	start, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	if resolved, err := filepath.EvalSymlinks(start); err == nil {
		start = resolved
	}
	for at := start; ; at = filepath.Dir(at) {
		info, err := os.Stat(filepath.Join(at, ".git"))
		switch {
		case err != nil:
		case info.IsDir():
			return at
		default:
			if leadsSomewhere(at) {
				return at
			}
			return start
		}
		if at == filepath.Dir(at) {
			return start
		}
	}
}

// leadsSomewhere reports whether the .git file of dir names a directory.
func leadsSomewhere(dir string) bool {
	content, err := os.ReadFile(filepath.Join(dir, ".git"))
	if err != nil {
		return false
	}
	target, ok := strings.CutPrefix(string(content), "gitdir: ")
	if target = strings.TrimSpace(target); !ok || target == "" {
		return false
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(dir, target)
	}
	info, err := os.Stat(target) //nolint:gosec // only whether it is a directory is learned
	return err == nil && info.IsDir()
}
