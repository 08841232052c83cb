package stdio

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
)

// Spec says what to execute and within which limits.
type Spec struct {
	Server  string            // the MCP server's name, for messages
	Command string            // looked up in PATH of Env, else of this service, unless it has a slash
	Args    []string          // without the command
	Env     map[string]string // of the entry, complete: added to the six variables that are inherited
	Dir     string            // working directory; "" is this service's own

	MaxMessageBytes int           // of one message of the server; 0 means link.DefaultMaxMessageBytes
	WriteStall      time.Duration // how long the process may take no byte of what waits for it; 0 means 10 s
	Grace           time.Duration // of each of the two steps of stopping; 0 means 2 s

	Redact func(string) string // applied to stderr; nil leaves it as it is
	Log    *slog.Logger        // nil discards
}

// inherited are the variables of this service that a process sees.
func inherited() []string { return []string{"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"} }

// environ is the environment of the process: what it inherits of lookup, and entry over that.
func environ(lookup func(string) (string, bool), entry map[string]string) ([]string, error) {
	env := map[string]string{}
	for _, name := range inherited() {
		// A value that begins with () is a function that some shells would execute.
		if value, ok := lookup(name); ok && !strings.HasPrefix(value, "()") {
			env[name] = value
		}
	}
	for name, value := range entry {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return nil, fmt.Errorf("env has the name %q, which no variable can have", name)
		}
		if strings.Contains(value, "\x00") {
			return nil, fmt.Errorf("env.%s has a NUL character in it", name)
		}
		env[name] = value
	}
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list, nil
}

// find returns the path of the executable.
func (s Spec) find(env []string) (string, error) {
	path := ""
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = value
		}
	}
	if s.Command == "" {
		return "", s.fail(nil, `it has no command`)
	}
	if strings.Contains(s.Command, "/") {
		file := s.Command
		if !filepath.IsAbs(file) {
			file = filepath.Join(s.Dir, file)
		}
		if err := executable(file); err != nil {
			return "", s.fail(err, "command %q cannot be executed: %v; correct its path (PATH=%s is not searched for a command with a slash)",
				s.Command, reason(err), path)
		}
		return file, nil
	}
	var denied error
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			continue // would be the current directory, which a server's own files could fill
		}
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(s.Dir, dir)
		}
		file := filepath.Join(dir, s.Command)
		switch err := executable(file); {
		case err == nil:
			return file, nil
		case errors.Is(err, fs.ErrPermission):
			denied = err
		}
	}
	if denied != nil {
		return "", s.fail(denied, "command %q cannot be executed: %v; searched PATH=%s", s.Command, reason(denied), path)
	}
	return "", s.fail(fs.ErrNotExist, "command %q was not found, searched PATH=%s; install it, give its full path, or set PATH in the server's env",
		s.Command, path)
}

// executable reports why a file cannot be executed, or nil.
func executable(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return &fs.PathError{Op: "execute", Path: file, Err: syscall.EISDIR}
	}
	if info.Mode()&0o111 == 0 {
		return &fs.PathError{Op: "execute", Path: file, Err: fs.ErrPermission}
	}
	return nil
}

// reason is a file error without its operation: "/x/y: no such file or directory".
func reason(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Path + ": " + pe.Err.Error()
	}
	return err.Error()
}

// checkDir reports why the working directory cannot be used, or nil.
func (s Spec) checkDir() error {
	if s.Dir == "" {
		return nil
	}
	info, err := os.Stat(s.Dir)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "chdir", Path: s.Dir, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return s.fail(err, "its working directory cannot be used: %s; correct cwd or create it", reason(err))
	}
	return nil
}

// notStarted explains an error of execve for a file that is there.
func (s Spec) notStarted(file string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.fail(err, "%s is there but the interpreter or loader it names is not; install that", file)
	case errors.Is(err, syscall.ENOEXEC):
		return s.fail(err, "%s is no program for this machine, nor a script that names its interpreter in the first line", file)
	case errors.Is(err, fs.ErrPermission):
		return s.fail(err, "%s may not be executed by this user: %s", file, reason(err))
	default:
		return s.fail(err, "%s could not be executed: %s", file, reason(err))
	}
}

// fail returns the error of a start. Its text is redacted: a command may come with a secret in it.
func (s Spec) fail(cause error, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return fault.New(fault.ServerError, "server %q cannot be started: %s", s.Server, s.Redact(text)).Because(cause)
}
