package main

import (
	"maps"
	"regexp"
	"strings"
	"testing"
)

func TestSnapshotsAreListedComparedActivatedAndReleased(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	entry := func(more map[string]any) map[string]any {
		out := map[string]any{"command": "true", "enabled": false} // what it does is of no interest here
		maps.Copy(out, more)
		return out
	}
	p.servers(map[string]any{"a": entry(map[string]any{"env": map[string]any{"K": "first-literal"}})})
	p.start(`ready grpc=(\S+) `, "up", "--listen", "127.0.0.1:0", "--http-listen", "", "--mcp-config", "mcp.json", "--log-level", "error")
	id := regexp.MustCompile(`snap_[0-9a-f]{32}`)
	first := id.FindString(p.run("snapshots", "get").want(0, `(?m)^revision +1\n(?s:.*)^a +disabled +\S+mcp.json +disabled in `, `^$`).stdout)

	p.servers(map[string]any{"a": entry(map[string]any{"env": map[string]any{"K": "second-literal"}}), "b": entry(nil)})
	eventually(t, "the edit is in force", func() bool { return strings.Contains(p.run("snapshots", "list").stdout, "added b; changed a") })
	p.run("snapshots", "list", "--limit", "1").want(0, `(?m)^REVISION +SNAPSHOT .*\n2 +snap_\w+ +2 .* files +added b; changed a\n$`, `^there are more`)
	p.run("snapshots", "diff").want(0, `^`+first+` → snap_\w+\n\+ b\n~ a  \(its sessions end\)\n    env.K: "\*\*\*" → "\*\*\*" \(another secret\)\n$`, `^$`)
	p.run("snapshots", "diff", first).want(0, ` → `+first+`\n- b\n~ a `, `^$`)
	p.run("snapshots", "diff", first, first).want(0, `\nno difference\n$`, `^$`)

	p.run("snapshots", "activate", first, "--etag", first).want(1, `^$`, `CONFIG_CONFLICT|current snapshot is snap_`)
	p.run("snapshots", "activate", first, "--reason", "b is bad").want(0, `^`+first+` is current as revision 3 and holds`, `^$`)
	p.servers(map[string]any{"c": entry(nil)})
	eventually(t, "the edit waits", func() bool { return strings.Contains(p.run("snapshots", "list").stdout, "added c; removed a, b") })
	p.run("snapshots", "list").want(0, `(?s)\n\nheld since .* by anonymous: b is bad\n.*\nCANDIDATE .*\nsnap_\w+ +1 .* files +added c; removed a, b\nsnap_\w+ +2 .* files +added b; changed a\n$`, `^$`)
	p.run("snapshots", "get").want(0, `(?s)^snapshot +`+first+`\n.*held since`, `^$`)
	p.run("snapshots", "release", "--reason", "mended").want(0, `^released: snap_\w+ is current as revision 4\n$`, `^$`)
	p.run("snapshots", "release").want(0, `^nothing was held: snap_\w+ stays current as revision 4\n$`, `^$`)
	p.run("snapshots", "get", "snap_none").want(1, `^$`, `no such snapshot`)
	p.run("snapshots", "activate").want(2, `^$`, `want one snapshot id, got 0 arguments`)
	var list struct {
		Snapshots []struct {
			Actor  string `json:"actor"`
			Reason string `json:"activate_reason"`
		} `json:"snapshots"`
	}
	p.run("snapshots", "list", "--output", "json").decode(&list)
	if len(list.Snapshots) != 4 || list.Snapshots[0].Reason != "mended" || list.Snapshots[1].Actor != "anonymous" {
		t.Errorf("the list is %+v", list)
	}
}
