package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func (p *place) file(name, content string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// API-014, API-018, API-024
func TestServersAreChangedWhileTheyRun(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	_, url := p.start(`^ready (http://\S+)`, "demo-server", "--listen", "127.0.0.1:0")
	p.file("mcp.json", `{"mcpServers":{},"skills":{"kept":1.10}}`)
	p.start(`ready grpc=(\S+) `, "up", "--listen", "127.0.0.1:0", "--http-listen", "", "--mcp-config", "mcp.json", "--log-level", "warn")

	p.file("entry.json", `{"url":"`+url+`","headers":{"X-Key":"s3cret-s3cret"},"timeuot":1}`)
	p.run("servers", "put", "demo", "entry.json").want(0, `^in force: snapshot snap_[0-9a-f]{32}, revision 2\n$`, `^warning: demo timeuot: .*tool_call_timeout`)
	eventually(t, "the new server is well", func() bool { return strings.Contains(p.run("tools").stdout, "demo_start_report") })

	shown := p.run("config", "get").want(0, `"X-Key": "\*\*\*"`, `mcp.json  etag \S+\n`)
	p.file("back.json", shown.stdout)
	p.run("config", "validate", "back.json").want(0, `(?m)^warning +demo +timeuot `, `^$`)
	p.run("config", "replace", "back.json").want(0, `revision 2\n$`, `^$`)

	p.run("servers", "disable", "demo").want(0, `revision 3\n$`, `^$`)
	eventually(t, "the server is off", func() bool { return strings.Contains(p.run("servers").stdout, "disabled") })
	p.run("servers", "enable", "demo", "--etag", "stale").want(1, `^$`, `^toolherd: .*etag`)
	p.run("servers", "enable", "demo", "-o", "json").want(0, `"revision": "4"`, `^$`)
	eventually(t, "the server is on", func() bool { return strings.Contains(p.run("tools").stdout, "demo_start_report") })

	p.file("bad.json", `{"mcpServers":{"a":{"command":"bash","args":["-c","s3cret-s3cret"]},"b":{"command":7}}}`)
	p.run("config", "validate", "bad.json").want(1, `(?s)^SEVERITY.*error +a +command +.*error +b +command +`, `^$`)
	refused := p.run("config", "replace", "bad.json").want(1, `^$`, `(?s)^toolherd: server "a".*server "b"`)
	if strings.Contains(refused.err, "s3cret") {
		t.Errorf("a secret is shown: %s", refused.err)
	}
	p.run("servers", "delete", "demo").want(0, `revision 5\n$`, `^$`)
	p.run("servers", "delete", "demo").want(1, `^$`, `no server "demo"`)
	content, err := os.ReadFile(filepath.Join(p.dir, "mcp.json"))
	if err != nil || string(content) != "{\n  \"mcpServers\": {},\n  \"skills\": {\"kept\":1.10}\n}\n" {
		t.Errorf("the file is %q, %v", content, err)
	}
	p.run("servers", "put", "x").want(2, `^$`, `want the name of a server and a file`)
	p.run("config", "replace", "absent.json").want(1, `^$`, `absent.json`)
}
