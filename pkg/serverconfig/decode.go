package serverconfig

import (
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/toolherd/toolherd/pkg/envref"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// entryKeys are the known keys of an entry, those first that a near match should prefer.
var entryKeys = []string{
	"command", "args", "env", "cwd", "url", "headers", "type", "transport", "enabled", "disabled",
	"tool_call_timeout", "tool_call_max_timeout", "session_init_timeout", "session_scope", "era", "tool_name_prefix",
	"allowedTools", "disabledTools", "description", "routing", "tools", "oauth", "auth", "user_auth", "headers_from_context",
	"login_scope", "allowed_users", "allowed_roles", "task_toolsets",
}

// Decode reads the entry of the server name as people write it, and returns its normal form with all its problems, in
// the order of the fields. With a problem of SeverityError the Entry is what could be read of it, fit for showing only.
func Decode(name string, raw json.RawMessage) (Entry, []Problem) { return decode(name, raw, false) }

// DecodePublic is [Decode] for the public JSON of an entry, where literal secrets are references to the store.
func DecodePublic(name string, public json.RawMessage) (Entry, []Problem) {
	return decode(name, public, true)
}

func decode(name string, raw json.RawMessage, public bool) (Entry, []Problem) {
	d := &decoder{server: name, public: public}
	d.name(name)
	e := Entry{
		Name: name, Enabled: true, Transport: Stdio, SessionScope: ScopeThread, Era: EraAuto, ToolNamePrefix: true,
		ToolCallTimeout: DefaultToolCallTimeout, ToolCallMaxTimeout: DefaultToolCallMaxTimeout, SessionInitTimeout: DefaultSessionInitTimeout,
		Routing: Routing{Mode: "off"},
	}
	limits := entryLimits
	if public {
		limits = publicLimits
	}
	root, err := strictjson.Parse(raw, limits)
	if err != nil {
		p := Problem{Reason: ReasonSyntax, Message: err.Error()}
		if s, ok := errors.AsType[*strictjson.SyntaxError](err); ok {
			p.Message, p.Hint, p.Line, p.Column = s.Message, s.Hint, s.Line, s.Column
		}
		d.report(p)
		return e, d.all()
	}
	if root.Kind() != strictjson.Object {
		d.report(Problem{
			Reason: ReasonWrongType, Message: "an entry must be an object, not " + root.Kind().String(), Hint: `write {"command": …} or {"url": …}`,
		})
		return e, d.all()
	}
	if path, _ := root.Duplicate(); path != "" {
		d.report(Problem{Path: path, Reason: ReasonDuplicateKey, Message: "this key occurs twice", Hint: "keep one of them"})
	}

	// disabled only ever switches off: with both keys the safer one counts.
	e.Enabled = d.flag("enabled", root.Get("enabled"), true)
	if d.flag("disabled", root.Get("disabled"), false) {
		e.Enabled = false
	}
	d.connection(&e, root)
	d.credentials(&e, root)
	d.limits(&e, root)
	d.presentation(&e, root)
	e.TaskToolsets = d.taskToolsets(root.Get("task_toolsets"))
	for path, v := range references(root, e.Transport) {
		if v.Kind() == strictjson.String {
			d.reportAll(checkReferences(path, v.Text()))
		}
	}
	d.keys("", root, SeverityWarning, entryKeys)
	return e, d.all()
}

// maxName is the longest server name, in characters.
const maxName = 128

// name checks the server's name, which is part of tool names, file names and session keys.
func (d *decoder) name(name string) {
	if name != "" && len(name) <= maxName && strings.IndexFunc(name, notNameRune) < 0 {
		return
	}
	fixed := strings.Map(func(r rune) rune {
		if notNameRune(r) {
			return '_'
		}
		return r
	}, name)
	hint := "give it a name"
	switch {
	case len(fixed) > maxName:
		hint = "rename it to at most 128 characters"
	case fixed != "":
		hint = "rename `" + printable(name) + "` to `" + fixed + "`"
	}
	d.report(Problem{
		Reason: ReasonBadName, Message: "a server name is 1 to 128 letters, digits, underscores and hyphens of ASCII", Hint: hint,
	})
}

func notNameRune(r rune) bool {
	return (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9') && r != '_' && r != '-'
}

// printable returns name with escapes for what is not printable ASCII.
func printable(name string) string {
	quoted := strconv.QuoteToASCII(name)
	return quoted[1 : len(quoted)-1]
}

// transportOf returns the transport of an entry, and whether it is a supported one.
func transportOf(root strictjson.Value) (t Transport, path, text string, ok bool) {
	path, v := "type", root.Get("type")
	if !present(v) {
		path, v = "transport", root.Get("transport")
	}
	switch {
	case !present(v):
		if present(root.Get("url")) {
			return HTTP, "", "", true
		}
		return Stdio, "", "", true
	case v.Kind() != strictjson.String:
		return Stdio, path, "", false
	}
	switch v.Text() {
	case "stdio":
		return Stdio, path, v.Text(), true
	case "sse":
		return SSE, path, v.Text(), true
	case "http", "streamable_http", "streamable-http", "streamableHttp":
		return HTTP, path, v.Text(), true
	}
	return Stdio, path, v.Text(), false
}

// present reports whether v is there and not an empty string.
func present(v strictjson.Value) bool {
	return given(v) && (v.Kind() != strictjson.String || v.Text() != "")
}

func (d *decoder) connection(e *Entry, root strictjson.Value) {
	t, path, text, ok := transportOf(root)
	e.Transport = t
	if !ok {
		if v := root.Get(path); v.Kind() != strictjson.String {
			d.wrongType(path, "a string", v)
		} else {
			d.report(unsupported(path, []string{"stdio", "http", "sse"}, text))
		}
		return
	}
	if t.IsRemote() {
		d.remote(e, root)
		return
	}
	d.stdio(e, root)
}

func (d *decoder) stdio(e *Entry, root strictjson.Value) {
	command := root.Get("command")
	if present(command) {
		e.Command = d.optionalText("command", command)
		d.noNUL("command", e.Command)
	} else {
		d.report(Problem{Path: "command", Reason: ReasonMissing, Message: "a stdio server needs a command", Hint: "add `command`, or `url` if the server is reached over HTTP"})
	}
	if present(root.Get("url")) {
		d.report(Problem{Path: "url", Reason: ReasonConflict, Message: "a stdio server has no url", Hint: "remove `url`, or declare `\"type\": \"http\"` or `\"sse\"`"})
	}
	e.Args = d.list("args", root.Get("args"))
	for i, arg := range e.Args {
		d.noNUL(strictjson.Item("args", i), arg)
	}
	e.Env = d.textMap("env", root.Get("env"))
	for name, v := range root.Get("env").Members() {
		path := strictjson.Field("env", name)
		if name == "" || strings.ContainsAny(name, "=\x00") {
			d.report(Problem{Path: path, Reason: ReasonBadName, Message: "an environment variable needs a name without = and NUL", Hint: "rename it"})
		}
		d.noNUL(path, v.Text())
	}
	e.Cwd = d.optionalText("cwd", root.Get("cwd"))
	d.noNUL("cwd", e.Cwd)
	d.ignored(root, e.Transport, "headers")
}

func (d *decoder) noNUL(path, text string) {
	if strings.Contains(text, "\x00") {
		d.report(Problem{Path: path, Reason: ReasonBadValue, Message: "holds a NUL character, which no program can be given", Hint: "remove it"})
	}
}

func (d *decoder) remote(e *Entry, root strictjson.Value) {
	address := root.Get("url")
	if present(address) {
		e.URL = d.optionalText("url", address)
		if address.Kind() == strictjson.String && d.isConstant(e.URL) {
			d.reportAll(checkURL("url", e.URL))
		}
	} else {
		d.report(Problem{Path: "url", Reason: ReasonMissing, Message: "a server reached over HTTP needs a url", Hint: "add `url`, or declare `\"type\": \"stdio\"`"})
	}
	if present(root.Get("command")) {
		d.report(Problem{Path: "command", Reason: ReasonConflict, Message: "a server reached over HTTP has no command", Hint: "remove `command`, or declare `\"type\": \"stdio\"` and remove `url`"})
	}
	headers := root.Get("headers")
	e.Headers = d.textMap("headers", headers)
	for name, v := range headers.Members() {
		path := strictjson.Field("headers", name)
		if reason := CheckHeaderName(name); reason != "" {
			d.report(Problem{Path: path, Reason: ReasonBadName, Message: reason, Hint: "rename or remove it"})
		}
		if v.Kind() == strictjson.String && d.isConstant(v.Text()) {
			d.reportAll(checkHeader(path, v.Text()))
		}
	}
	d.sameHeader("headers", headers)
	d.ignored(root, e.Transport, "args", "env", "cwd")
}

// isConstant reports whether text has no reference, so that what it says is what will be used.
func (d *decoder) isConstant(text string) bool {
	if d.resolved {
		return true
	}
	segments, err := envref.Parse(text)
	return err == nil && !slices.ContainsFunc(segments, func(s envref.Segment) bool { return s.Name != "" })
}

// checkHeader returns the problem of a header value that must not be sent.
func checkHeader(path, value string) []Problem {
	reason := CheckHeaderValue(value)
	if reason == "" {
		return nil
	}
	return []Problem{{Path: path, Reason: ReasonIllegalHeader, Message: "this value cannot be sent as a header: " + reason, Hint: "correct it where it is set"}}
}

// checkURL returns the problem of a URL that cannot be called. It says nothing of the URL, which may hold a credential.
func checkURL(path, text string) []Problem {
	u, err := url.Parse(text)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" {
		return nil
	}
	return []Problem{{Path: path, Reason: ReasonBadValue, Message: "is not an http or https URL with a host", Hint: "write it like https://example.com/mcp"}}
}

// ignored warns about fields without effect on the transport.
func (d *decoder) ignored(root strictjson.Value, t Transport, fields ...string) {
	for _, field := range fields {
		v := root.Get(field)
		if present(v) && !isEmpty(v) {
			d.report(Problem{
				Severity: SeverityWarning, Path: field, Reason: ReasonIgnored,
				Message: "has no effect on a server of type " + string(t), Hint: "remove it",
			})
		}
	}
}

// isEmpty reports whether v is an object or a list with nothing in it.
func isEmpty(v strictjson.Value) bool {
	for range v.Members() {
		return false
	}
	for range v.Elements() {
		return false
	}
	return v.Kind() == strictjson.Object || v.Kind() == strictjson.Array
}
