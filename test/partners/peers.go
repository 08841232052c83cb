package partners

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const peerSet = "bench"

// The proxies that the benchmarks measure. Each puts the stdio server backend behind an HTTP endpoint
// and runs until the test ends.

// MCPProxy starts npm mcp-proxy in front of backend and returns its streamable HTTP URL.
func MCPProxy(t testing.TB, backend Command) string {
	t.Helper()
	port := freePort(t)
	c := script(t, peerSet, "node_modules", "mcp-proxy", "dist", "bin", "mcp-proxy.mjs").
		With("--host", "127.0.0.1", "--port", port, "--server", "stream", "--").With(backend.Argv()...)
	return startPeer(t, c, backend, "http://127.0.0.1:"+port+"/mcp")
}

// Supergateway starts npm supergateway, stateful, in front of backend and returns its streamable HTTP
// URL. Its command line goes through a shell: no argument of backend may need quoting.
func Supergateway(t testing.TB, backend Command) string {
	t.Helper()
	for _, arg := range backend.Argv() {
		if strings.ContainsAny(arg, " '\"\\$`") {
			t.Fatalf("supergateway cannot pass on the argument %q", arg)
		}
	}
	port := freePort(t)
	c := script(t, peerSet, "node_modules", "supergateway", "dist", "index.js").
		With("--stdio", strings.Join(backend.Argv(), " "), "--outputTransport", "streamableHttp", "--stateful", "--port", port, "--logLevel", "none")
	return startPeer(t, c, backend, "http://127.0.0.1:"+port+"/mcp")
}

// MCPHub starts npm mcp-hub with backend as the server named backend and returns the URL of its SSE
// endpoint, on which a tool `echo` is `backend__echo`.
func MCPHub(t testing.TB, backend Command) string {
	t.Helper()
	port := freePort(t)
	home := t.TempDir()
	config := filepath.Join(home, "servers.json")
	writeJSON(t, config, map[string]any{"mcpServers": map[string]any{"backend": backend.Entry()}})
	// A fresh catalogue keeps the hub from fetching one from the network.
	writeJSON(t, filepath.Join(home, "data", "mcp-hub", "cache", "registry.json"), map[string]any{
		"registry":            map[string]any{"version": "1", "servers": []any{map[string]any{"id": "none", "name": "none", "tags": []string{}}}},
		"lastFetchedAt":       time.Now().UnixMilli(),
		"serverDocumentation": map[string]any{},
	})
	c := script(t, peerSet, "node_modules", "mcp-hub", "dist", "cli.js").With("--port", port, "--config", config)
	c.Env = []string{"HOME=" + home, "XDG_DATA_HOME=" + home + "/data", "XDG_STATE_HOME=" + home + "/state", "XDG_CONFIG_HOME=" + home + "/config"}
	p := start(t, c)
	p.announced(t, `(servers started successfully)`)
	return "http://127.0.0.1:" + port + "/mcp"
}

// MCPRemote is npm mcp-remote over stdio in front of the streamable HTTP server at url.
func MCPRemote(t testing.TB, url string) Command {
	t.Helper()
	c := script(t, peerSet, "node_modules", "mcp-remote", "dist", "proxy.js").With(url, "--allow-http", "--transport", "http-only", "--silent")
	c.Env = []string{"MCP_REMOTE_CONFIG_DIR=" + t.TempDir()}
	return c
}

func startPeer(t testing.TB, c, backend Command, url string) string {
	t.Helper()
	c.Env, c.Dir = backend.Env, backend.Dir
	p := start(t, c)
	p.answering(t, strings.TrimSuffix(url, "/mcp")+"/nothing")
	return url
}

func writeJSON(t testing.TB, path string, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(fmt.Errorf("write %s: %w", path, err))
	}
}
