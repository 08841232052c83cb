package partners

import (
	"testing"
)

const (
	serverSet    = "servers"
	modernScript = "modern.mjs"
)

// Everything is @modelcontextprotocol/server-everything over stdio: 2025-11-25, tasks, progress,
// elicitation. It ignores the end of its input, so that only a signal ends it.
func Everything(t testing.TB) Command {
	t.Helper()
	return script(t, serverSet, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js").With("stdio")
}

// EverythingHTTP starts the same server on streamable HTTP and returns its URL. It listens on all
// interfaces; there is no way to tell it otherwise.
func EverythingHTTP(t testing.TB) string {
	t.Helper()
	return everythingHTTP(t, "streamableHttp", "/mcp")
}

// EverythingSSE starts the same server on the older SSE transport and returns its URL.
func EverythingSSE(t testing.TB) string {
	t.Helper()
	return everythingHTTP(t, "sse", "/sse")
}

func everythingHTTP(t testing.TB, mode, path string) string {
	t.Helper()
	c := script(t, serverSet, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js").With(mode)
	port := freePort(t)
	c.Env = []string{"PORT=" + port}
	p := start(t, c)
	p.URL = "http://127.0.0.1:" + port + path
	p.answering(t, "http://127.0.0.1:"+port+"/nothing")
	return p.URL
}

// Filesystem is @modelcontextprotocol/server-filesystem over stdio, allowed to use dir.
func Filesystem(t testing.TB, dir string) Command {
	t.Helper()
	return script(t, serverSet, "node_modules", "@modelcontextprotocol", "server-filesystem", "dist", "index.js").With(dir)
}

// Memory is @modelcontextprotocol/server-memory over stdio, with its graph in file.
func Memory(t testing.TB, file string) Command {
	t.Helper()
	c := script(t, serverSet, "node_modules", "@modelcontextprotocol", "server-memory", "dist", "index.js")
	c.Env = []string{"MEMORY_FILE_PATH=" + file}
	return c
}

// SequentialThinking is @modelcontextprotocol/server-sequential-thinking over stdio.
func SequentialThinking(t testing.TB) Command {
	t.Helper()
	return script(t, serverSet, "node_modules", "@modelcontextprotocol", "server-sequential-thinking", "dist", "index.js")
}

// ModernTS is a stdio server of protocol 2026-07-28 on the TypeScript SDK v2, with the tools echo {text}
// and add {a, b}. It answers an older client in 2025-11-25.
func ModernTS(t testing.TB) Command {
	t.Helper()
	return script(t, serverSet, modernScript)
}
