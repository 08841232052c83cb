package serverconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
)

// Fingerprint returns the hex SHA-256 over what of an entry matters to its sessions and tasks: how the server is reached
// and with which credentials, who shares a session, how long things may take, and its task toolsets. Two entries that
// say the same in different words (aliases, defaults written out, empty lists, key order) have one fingerprint. Name,
// enabled, description, routing, tools, tool_name_prefix, filters and unknown keys do not count.
//
// It is meant for public JSON. Of raw JSON it is a hash over literal secrets too. What is no valid entry gets a
// fingerprint of its text.
func Fingerprint(entryJSON json.RawMessage) string {
	const anyName = "x"
	e, problems := DecodePublic(anyName, entryJSON)
	root, err := strictjson.Parse(entryJSON, publicLimits)
	switch {
	case err != nil:
		return sum("text", entryJSON)
	case HasErrors(problems):
		return sum("invalid", root.Canonical())
	}
	f := fields{}
	f.text("type", string(e.Transport))
	f.text("session_scope", string(e.SessionScope))
	f.text("era", string(e.Era))
	f.text("tool_call_timeout", e.ToolCallTimeout.String())
	f.text("tool_call_max_timeout", e.ToolCallMaxTimeout.String())
	f.text("session_init_timeout", e.SessionInitTimeout.String())
	lists, blocks := []string{"args", "env", "task_toolsets"}, []string{"command", "cwd"}
	if e.Transport.IsRemote() {
		lists, blocks = []string{"headers", "task_toolsets"}, []string{"url", "oauth", "auth", "user_auth", "headers_from_context", "login_scope"}
	}
	for _, key := range lists { // where empty is as good as absent
		if v := root.Get(key); given(v) && !isEmpty(v) {
			f.add(key, v.Canonical())
		}
	}
	for _, key := range blocks { // where empty means something
		if v := root.Get(key); present(v) {
			f.add(key, v.Canonical())
		}
	}
	return sum("entry", f.b)
}

// DefinitionFingerprint returns "sha256:" and the hex SHA-256 of the canonical JSON of an entry as it is written: what an
// approval is bound to. Unlike [Fingerprint] it changes with every key and every word. Raw must be what is loaded.
func DefinitionFingerprint(raw json.RawMessage) (string, error) {
	canonical, err := Canonical(raw)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(canonical)), nil
}

// fields collects named values, each with its length before it, so that no two collections look alike.
type fields struct{ b []byte }

func (f *fields) add(name string, value []byte) {
	f.b = fmt.Appendf(f.b, "%s %d\n%s\n", name, len(value), value)
}

func (f *fields) text(name, value string) { f.add(name, []byte(strconv.Quote(value))) }

func sum(kind string, content []byte) string {
	h := sha256.New()
	h.Write([]byte("toolherd server " + kind + "\n"))
	h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}
