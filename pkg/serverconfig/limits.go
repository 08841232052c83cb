package serverconfig

import (
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// limits reads how long things may take, who shares a session and how the server is spoken to.
func (d *decoder) limits(e *Entry, root strictjson.Value) {
	d.timeout("tool_call_timeout", root.Get("tool_call_timeout"), &e.ToolCallTimeout)
	d.timeout("tool_call_max_timeout", root.Get("tool_call_max_timeout"), &e.ToolCallMaxTimeout)
	d.timeout("session_init_timeout", root.Get("session_init_timeout"), &e.SessionInitTimeout)
	e.SessionScope = Scope(d.word("session_scope", root.Get("session_scope"), "thread", "user", "shared"))
	e.Era = Era(d.word("era", root.Get("era"), "auto", "legacy", "modern"))
}

const timeoutHint = `write seconds, as in 30 or "30", or a duration, as in "1m30s"; null means no own limit`

// timeout reads seconds, a numeric string or a Go duration into field, which keeps its value where v is absent.
// Null is zero: no own limit.
func (d *decoder) timeout(path string, v strictjson.Value, field *time.Duration) {
	var text string
	switch v.Kind() {
	case strictjson.Missing:
		return
	case strictjson.Null:
		*field = 0
		return
	case strictjson.Number:
		text = v.Raw()
	case strictjson.String:
		text = strings.TrimSpace(v.Text())
	default:
		d.report(Problem{Path: path, Reason: ReasonWrongType, Message: "must be a time, not " + v.Kind().String(), Hint: timeoutHint})
		return
	}
	duration, problem := parseTimeout(text)
	if problem != "" {
		d.report(Problem{Path: path, Reason: ReasonOutOfRange, Message: problem, Hint: timeoutHint})
		return
	}
	*field = duration
}

var decimal = regexp.MustCompile(`^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$`)

// parseTimeout returns the time that text means, or what is wrong with it.
func parseTimeout(text string) (time.Duration, string) {
	const tooLong = "is longer than a time can be"
	var d time.Duration
	if decimal.MatchString(text) {
		seconds, err := strconv.ParseFloat(text, 64)
		nanoseconds := math.Round(seconds * float64(time.Second))
		switch {
		case err != nil && seconds > 0, nanoseconds >= math.MaxInt64:
			return 0, tooLong
		case nanoseconds <= 0:
			return 0, "must be more than 0"
		}
		d = time.Duration(nanoseconds)
	} else {
		var err error
		if d, err = time.ParseDuration(text); err != nil {
			return 0, "is not a time"
		}
	}
	if d <= 0 {
		return 0, "must be more than 0"
	}
	return d, ""
}

// presentation reads what concerns the tools of the server as agents see them.
func (d *decoder) presentation(e *Entry, root strictjson.Value) {
	e.ToolNamePrefix = d.flag("tool_name_prefix", root.Get("tool_name_prefix"), true)
	e.Description = d.optionalText("description", root.Get("description"))
	e.AllowedTools = d.filter("allowedTools", root.Get("allowedTools"))
	e.DisabledTools = d.filter("disabledTools", root.Get("disabledTools"))
	if root.Get("allowedTools").Kind() != strictjson.Missing && root.Get("disabledTools").Kind() != strictjson.Missing {
		d.report(Problem{
			Path: "disabledTools", Reason: ReasonConflict, Message: "allowedTools and disabledTools exclude each other", Hint: "remove one of them",
		})
	}
	e.Routing = d.routing("routing", root.Get("routing"))
	d.tools(e, root.Get("tools"))
}

// filter reads a list that selects something, where an empty one is more likely a mistake than meant.
func (d *decoder) filter(path string, v strictjson.Value) []string {
	list := d.list(path, v)
	if v.Kind() == strictjson.Array && isEmpty(v) {
		d.report(Problem{Path: path, Reason: ReasonMissing, Message: "must not be empty", Hint: "omit it if it is not to filter"})
	}
	return list
}

var routingKeys = []string{"mode", "priority", "keywords"}

func (d *decoder) routing(path string, v strictjson.Value) Routing {
	r := Routing{Mode: "off"}
	if !d.object(path, v) {
		return r
	}
	at := func(key string) string { return strictjson.Field(path, key) }
	d.keys(path, v, SeverityError, routingKeys)
	r.Mode = d.word(at("mode"), v.Get("mode"), "off", "prefer")
	r.Keywords = d.list(at("keywords"), v.Get("keywords"))

	priority := v.Get("priority")
	if priority.Kind() == strictjson.Missing {
		return r
	}
	number, err := strconv.ParseFloat(priority.Raw(), 64)
	if priority.Kind() != strictjson.Number || err != nil || number != math.Trunc(number) {
		d.wrongType(at("priority"), "a whole number from 0 to 100", priority)
		return r
	}
	clamped := max(0, min(100, number))
	if clamped != number {
		d.report(Problem{
			Severity: SeverityWarning, Path: at("priority"), Reason: ReasonOutOfRange,
			Message: "is outside 0 to 100 and counts as " + strconv.Itoa(int(clamped)), Hint: "write a number from 0 to 100",
		})
	}
	r.Priority = int(clamped)
	return r
}

var toolKeys = []string{"routing"}

func (d *decoder) tools(e *Entry, v strictjson.Value) {
	if !d.object("tools", v) {
		return
	}
	for name, tool := range v.Members() {
		path := strictjson.Field("tools", name)
		if tool.Kind() != strictjson.Object {
			d.wrongType(path, "an object", tool)
			continue
		}
		d.routing(strictjson.Field(path, "routing"), tool.Get("routing"))
		d.keys(path, tool, SeverityWarning, toolKeys)
		if e.Tools == nil {
			e.Tools = map[string]json.RawMessage{}
		}
		e.Tools[name] = json.RawMessage(tool.Raw())
	}
}

var toolsetKeys = []string{"name", "submit_tool", "status_tool", "cancel_tool", "answer_tool", "background_scope"}

// maxToolsetName is the longest name of a toolset, in characters.
const maxToolsetName = 255

func (d *decoder) taskToolsets(v strictjson.Value) []TaskToolset {
	if v.Kind() == strictjson.Missing {
		return nil
	}
	if v.Kind() != strictjson.Array {
		d.wrongType("task_toolsets", "a list of objects", v)
		return nil
	}
	var sets []TaskToolset
	roles := map[string]string{} // raw tool name → the field that claims it
	for i, item := range v.Elements() {
		path := strictjson.Item("task_toolsets", i)
		if item.Kind() != strictjson.Object {
			d.wrongType(path, "an object", item)
			continue
		}
		sets = append(sets, d.taskToolset(path, item, roles))
	}
	return sets
}

func (d *decoder) taskToolset(path string, item strictjson.Value, roles map[string]string) TaskToolset {
	d.keys(path, item, SeverityError, toolsetKeys)
	at := func(key string) string { return strictjson.Field(path, key) }
	required := func(key string) string {
		v := item.Get(key)
		if given(v) && v.Kind() != strictjson.String {
			d.wrongType(at(key), "a string", v)
			return ""
		}
		if strings.TrimSpace(v.Text()) == "" {
			d.report(Problem{Path: at(key), Reason: ReasonMissing, Message: "must be there and not blank", Hint: "add it"})
		}
		return v.Text()
	}
	set := TaskToolset{
		Name:            required("name"),
		SubmitTool:      required("submit_tool"),
		StatusTool:      required("status_tool"),
		CancelTool:      required("cancel_tool"),
		BackgroundScope: Scope(d.word(at("background_scope"), item.Get("background_scope"), "thread", "user", "shared")),
	}
	if len([]rune(set.Name)) > maxToolsetName {
		d.report(Problem{Path: at("name"), Reason: ReasonOutOfRange, Message: "is longer than 255 characters", Hint: "shorten it"})
	}
	if given(item.Get("answer_tool")) {
		set.AnswerTool = required("answer_tool")
	}
	for _, role := range []struct{ key, tool string }{
		{"submit_tool", set.SubmitTool}, {"status_tool", set.StatusTool}, {"cancel_tool", set.CancelTool}, {"answer_tool", set.AnswerTool},
	} {
		if role.tool == "" {
			continue
		}
		if first, ok := roles[role.tool]; ok {
			d.report(Problem{
				Path: at(role.key), Reason: ReasonConflict, Message: "names the same tool as " + first, Hint: "a tool has one role over all toolsets of a server",
			})
			continue
		}
		roles[role.tool] = at(role.key)
	}
	return set
}
