package verdict

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/source"
)

// noTasks begins the reason of an entry whose toolsets cannot work.
const noTasks = string(fault.TasksUnavailable) + ": "

// unusable says why a valid, enabled and trusted entry must not be called yet, and what the user can do; or nothing.
// A landed version is never less safe than the finished one: what narrows or accompanies a call and is not built
// keeps the server from being called at all.
func (j *Judge) unusable(e serverconfig.Entry, hasLiterals bool, unresolved []string) (reason, fix string) {
	switch fields := e.CredentialLayers(); {
	case len(fields) > 0:
		return "this version does not support " + strings.Join(fields, ", ") + ", and the server is not called without",
			"remove " + strings.Join(fields, ", ") + ", or disable the server"
	case e.Transport.IsRemote() && len(unresolved) > 0:
		return "calls to http and sse servers must pass mcpInterceptors, and this version cannot resolve " + strings.Join(unresolved, ", "),
			"remove mcpInterceptors, or set `on_unresolved: skip` for it in toolherd.yaml"
	case len(e.TaskToolsets) > 0 && j.policy.NoTasks:
		return noTasks + "it has task_toolsets, and durable tasks are switched off",
			"set tasks.enabled to true in toolherd.yaml and restart, or remove task_toolsets to use its tools as ordinary ones"
	case hasLiterals && j.policy.Key == nil:
		return "has a literal secret, and this registry has no key to keep it under",
			"set registry.secret_key_file, or refer to a variable as in ${TOKEN}"
	}
	return "", ""
}

// interceptors sets those of the files in force and returns those that cannot be resolved and must not be left out.
// All files are joined: a file must not switch off what a lower one asks for. Those of an untrusted project do not
// count, so that it cannot keep the user's servers from working.
func (j *Judge) interceptors(files []source.File, c *snapshot.Content) (unresolved []string) {
	for _, f := range files {
		if f.Class == snapshot.Project && !j.policy.TrustProject {
			continue
		}
		names, problem := serverconfig.ParseInterceptors(f.Document.Interceptors)
		if problem != nil {
			names = []string{"an entry of " + f.Name + " (" + problem.String() + ")"}
		}
		for _, name := range names {
			shown := secret.Cut(name, secret.Find(name))
			if slices.Contains(c.Interceptors, shown) {
				continue
			}
			c.Interceptors = append(c.Interceptors, shown)
			if !slices.Contains(j.policy.SkipInterceptors, name) {
				unresolved = append(unresolved, shown)
			}
		}
	}
	return unresolved
}

// brokenFiles returns an entry for each file that cannot be used as it stands. Its name is taken by no server.
func brokenFiles(files []source.File, servers map[string]Raw) []snapshot.Entry {
	var out []snapshot.Entry
	names := map[string]bool{}
	for name := range servers {
		names[name] = true
	}
	for _, f := range files {
		if f.Problem == nil {
			continue
		}
		path := strings.ToValidUTF8(f.Path, "\ufffd")
		name := "<config:" + filepath.Base(path) + ">"
		if names[name] {
			name = "<config:" + f.Name + ">"
		}
		names[name] = true
		reason := path + " " + describe(*f.Problem)
		if f.Good {
			reason += "; its last good content is in force"
		}
		out = append(out, snapshot.Entry{
			Name: name, Synthetic: true, State: snapshot.Error, Transport: "config", Source: f.Name, Class: f.Class,
			Reason: reason, FixCommand: fix(*f.Problem, f.Name), Problems: plain([]serverconfig.Problem{*f.Problem}),
		})
	}
	return out
}

// describe returns a problem as the end of a sentence that begins with its file.
func describe(p serverconfig.Problem) string {
	if p.Line == 0 {
		return p.String()
	}
	return "is broken: " + p.String()
}

// invalid returns the reason of an invalid entry and its mending.
func invalid(problems []snapshot.Problem, source string) (reason, fixCommand string) {
	var first *snapshot.Problem
	more := 0
	for i := range problems {
		switch {
		case problems[i].Severity != serverconfig.SeverityError.String():
		case first == nil:
			first = &problems[i]
		default:
			more++
		}
	}
	if first == nil {
		return "", ""
	}
	reason = first.Message
	if first.Path != "" {
		reason = first.Path + ": " + reason
	}
	if more > 0 {
		reason += fmt.Sprintf(", and %d more", more)
	}
	if first.Hint != "" {
		fixCommand = "edit " + source + ": " + first.Hint
	}
	return reason + " (in " + source + ")", fixCommand
}

func fix(p serverconfig.Problem, source string) string {
	if p.Hint == "" {
		return ""
	}
	return "edit " + source + ": " + p.Hint
}

// plain returns problems without their place in the file, which white space moves.
func plain(problems []serverconfig.Problem) []snapshot.Problem {
	var out []snapshot.Problem
	for _, p := range problems {
		out = append(out, snapshot.Problem{
			Severity: p.Severity.String(), Path: p.Path, Reason: p.Reason, Message: p.Message, Hint: p.Hint,
		})
	}
	return out
}
