package source

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// File is what a layer has to say. It is immutable.
type File struct {
	Layer
	// Document is the last content that could be read; Good says whether there was any.
	Document serverconfig.Document
	Good     bool
	// Problem says what is wrong with what is there now, if anything is. Document is then stale.
	Problem *serverconfig.Problem
}

// Files watches the files of some layers. Only its owner's goroutine may use it.
type Files struct {
	layers  []*tracked
	log     *slog.Logger
	read    readFunc // a field for tests that move a file while it is read
	watcher *fsnotify.Watcher
	watched map[string]bool // paths whose events matter
}

type readFunc = func(path string) ([]byte, serverconfig.Signature, error)

// tracked is the state of one layer:
//
//	absent ──read──▶ good ◀──────▶ good and broken ──missing for DeleteDebounce──▶ absent
//	   └──────────────▶ broken ─────────────┘
type tracked struct {
	File
	signature    serverconfig.Signature
	missingSince time.Time
}

// New returns the files of layers, none of them read yet. It opens nothing.
func New(layers []Layer, log *slog.Logger) *Files {
	f := &Files{log: log, read: Read}
	for _, l := range layers {
		f.layers = append(f.layers, &tracked{File: File{Layer: l}})
	}
	return f
}

// Check reads every file and reports whether any has something else to say than at the last check.
// It is true also where the bytes changed but not what they mean: compare what is made of them.
func (f *Files) Check(now time.Time) bool {
	changed := false
	for i, t := range f.layers {
		if t.InsteadOf != "" && i > 0 && f.layers[i-1].present() {
			changed = t.forget() || changed
			continue
		}
		before := t.Problem
		changed = t.check(f.read, now) || changed
		f.logProblem(t, before)
	}
	f.follow()
	return changed
}

// Present returns the layers that have a file, lowest first.
func (f *Files) Present() []File {
	var out []File
	for _, t := range f.layers {
		if t.present() {
			out = append(out, t.File)
		}
	}
	return out
}

func (f *Files) logProblem(t *tracked, before *serverconfig.Problem) {
	switch {
	case t.Problem != nil && (before == nil || before.Message != t.Problem.Message):
		f.log.Warn("configuration file cannot be used", "file", t.Path, "problem", t.Problem.Message, "last_good_content_kept", t.Good)
	case t.Problem == nil && before != nil && t.Good:
		f.log.Info("configuration file can be used again", "file", t.Path)
	}
}

func (t *tracked) present() bool { return t.Good || t.Problem != nil }

// forget makes the layer absent and reports whether it was not.
func (t *tracked) forget() bool {
	was := t.present()
	*t = tracked{File: File{Layer: t.Layer}}
	return was
}

func (t *tracked) check(read readFunc, now time.Time) bool {
	content, signature, err := read(t.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return t.missing(now)
	}
	t.missingSince = time.Time{}
	if errors.Is(err, errNotAFile) && t.Class != snapshot.Explicit {
		return t.forget() // a directory of that name is no candidate
	}
	if fault.KindOf(err) == fault.Unavailable && t.Good {
		return false // it is being written
	}
	if err != nil {
		t.signature = serverconfig.Signature{}
		return t.broken(unreadable(t.Path, err))
	}
	if signature == t.signature {
		return false
	}
	t.signature = signature
	document, problem := serverconfig.ParseDocument(content)
	if problem != nil {
		return t.broken(problem)
	}
	t.Document, t.Good, t.Problem = document, true, nil
	return true
}

func (t *tracked) broken(p *serverconfig.Problem) bool {
	if t.Problem != nil && *t.Problem == *p {
		return false
	}
	t.Problem = p
	return true
}

func (t *tracked) missing(now time.Time) bool {
	t.signature = serverconfig.Signature{}
	if t.Class == snapshot.Explicit {
		return t.broken(&serverconfig.Problem{
			Reason: "missing", Message: "no longer exists", Hint: "restore it, or restart without it",
		})
	}
	if !t.present() {
		return false
	}
	if t.missingSince.IsZero() {
		t.missingSince = now
	}
	if now.Sub(t.missingSince) < DeleteDebounce {
		return false
	}
	return t.forget()
}

// due returns how long after now the next check is due.
func (f *Files) due(now time.Time) time.Duration {
	wait := RecheckInterval
	for _, t := range f.layers {
		if !t.missingSince.IsZero() {
			wait = min(wait, t.missingSince.Add(DeleteDebounce).Sub(now))
		}
	}
	return max(wait, 0)
}

var errNotAFile = errors.New("not a regular file")

// Read returns the content of a file and its signature. It refuses what is not a regular file before opening it, since opening a named pipe would block.
func Read(path string) ([]byte, serverconfig.Signature, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, serverconfig.Signature{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, serverconfig.Signature{}, errNotAFile
	}
	return serverconfig.ReadSigned(path)
}

func unreadable(path string, err error) *serverconfig.Problem {
	p := serverconfig.Problem{Reason: "unreadable", Message: "cannot be read: " + err.Error(), Hint: "let the user that runs Toolherd read it"}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		p.Message, p.Hint = strings.TrimPrefix(f.Error(), path+" "), ""
	} else if e, ok := errors.AsType[*fs.PathError](err); ok {
		p.Message = "cannot be read: " + e.Err.Error()
	}
	return &p
}
