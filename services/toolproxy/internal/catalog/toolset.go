package catalog

import (
	"slices"

	"github.com/toolherd/toolherd/pkg/serverconfig"
)

// inBackground is appended to the description of a tool that submits a durable task.
const inBackground = "This tool works in the background: it returns a task_id at once, and the result follows when the task has ended."

// role returns the toolset that the tool with this own name submits to, or whether it is one that follows tasks: workers
// call those, agents never do.
func (r Rules) role(name string) (submits *serverconfig.TaskToolset, follows bool) {
	for i := range r.Toolsets {
		switch s := &r.Toolsets[i]; name {
		case s.SubmitTool:
			return s, false
		case s.StatusTool, s.CancelTool:
			return nil, true
		case s.AnswerTool:
			return nil, name != ""
		}
	}
	return nil, false
}

// MissingTaskTools returns the tools that the toolsets name and the server does not list, in the order of the toolsets.
func (r Rules) MissingTaskTools(defs []Definition) []string {
	if len(r.Toolsets) == 0 {
		return nil
	}
	listed := make(map[string]bool, len(defs))
	for i := range defs {
		listed[defs[i].Name] = true
	}
	var missing []string
	for _, s := range r.Toolsets {
		for _, name := range []string{s.SubmitTool, s.StatusTool, s.CancelTool, s.AnswerTool} {
			if name != "" && !listed[name] && !slices.Contains(missing, name) {
				missing = append(missing, name)
			}
		}
	}
	return missing
}

// describe returns the description of a tool for agents.
func (t candidate) describe() string {
	switch {
	case t.toolset == nil:
		return t.def.Description
	case t.def.Description == "":
		return inBackground
	}
	return t.def.Description + "\n\n" + inBackground
}
