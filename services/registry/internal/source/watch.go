package source

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Watch starts to listen for file events. Where the system has none to give, checks come by time alone.
// Whoever called it calls [Files.Close].
func (f *Files) Watch() {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		f.log.Warn("no file events, files are checked by time alone", "err", err, "interval", RecheckInterval)
		return
	}
	f.watcher = w
	f.follow()
}

// Close ends what Watch started.
func (f *Files) Close() {
	if f.watcher != nil {
		f.watcher.Close() //nolint:errcheck // it has nothing to lose
		f.watcher = nil
	}
}

// Wait returns when a check is due: files have changed and then been quiet for a moment, or time has passed, or something
// can be received from early, which may be nil. It returns the error of ctx when that ends.
func (f *Files) Wait(ctx context.Context, early <-chan struct{}) error {
	timer := time.NewTimer(f.due(time.Now()))
	defer timer.Stop()
	var first time.Time // of the events seen
	events := f.events()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-early:
			return nil
		case event, ok := <-events.Events:
			if !ok {
				return ctx.Err()
			}
			if !f.relevant(event) {
				continue
			}
			now := time.Now()
			if first.IsZero() {
				first = now
			}
			timer.Reset(min(settle, max(first.Add(settleAtMost).Sub(now), 0)))
		case err := <-events.Errors:
			// Events were lost: what they were about is unknown, so look at once.
			f.log.DebugContext(ctx, "file events lost", "err", err)
			return nil
		}
	}
}

// events returns the watcher, or one whose channels never deliver.
func (f *Files) events() *fsnotify.Watcher {
	if f.watcher == nil {
		return &fsnotify.Watcher{}
	}
	return f.watcher
}

// follow watches the directories of the files as they are now, those that symlinks lead to included.
func (f *Files) follow() {
	if f.watcher == nil {
		return
	}
	f.watched = map[string]bool{}
	dirs := map[string]bool{}
	for _, t := range f.layers {
		for _, path := range hops(t.Path) {
			f.watched[path] = true
			dirs[filepath.Dir(path)] = true
		}
	}
	for _, dir := range f.watcher.WatchList() {
		if !dirs[dir] {
			f.watcher.Remove(dir) //nolint:errcheck // a directory that is gone needs no removal
		}
		delete(dirs, dir)
	}
	for dir := range dirs {
		// A directory that does not exist yet is found by time, as is one above the system's limit of watches.
		if err := f.watcher.Add(dir); err != nil && !os.IsNotExist(err) {
			f.log.Debug("no file events for directory", "dir", dir, "err", err)
		}
	}
}

// relevant reports whether event may be about one of the files: it names one, or a link on the way to it, or it is
// the swap of a `..data` link by which Kubernetes updates mounted files.
func (f *Files) relevant(event fsnotify.Event) bool {
	return f.watched[event.Name] || strings.HasPrefix(filepath.Base(event.Name), "..")
}

// hops returns path and, while it is a symlink, what it leads to, and the end of the way with all directories resolved.
func hops(path string) []string {
	out := []string{path}
	for at := path; len(out) < 40; {
		target, err := os.Readlink(at)
		if err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(at), target)
		}
		at = filepath.Clean(target)
		out = append(out, at)
	}
	if end, err := filepath.EvalSymlinks(path); err == nil && end != out[len(out)-1] {
		out = append(out, end)
	}
	return out
}
