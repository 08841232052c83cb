package rpc_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolherd/toolherd/pkg/rpc"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// OPS-001: without authentication only loopback may be bound; elsewhere authentication and TLS are needed.
func TestListenRefusesToBeOpenToStrangers(t *testing.T) {
	const (
		tokensMissing = "auth.tokens_file"
		tlsMissing    = "tls.cert_file"
	)
	for _, tt := range []struct {
		options rpc.ListenOptions
		missing []string
	}{
		{rpc.ListenOptions{Address: "127.0.0.1:0"}, nil},
		{rpc.ListenOptions{Address: "127.9.9.9:0"}, nil},
		{rpc.ListenOptions{Address: "localhost:0"}, nil},
		{rpc.ListenOptions{Address: "127.0.0.1:0", Authenticated: true}, nil},
		{rpc.ListenOptions{Address: ":0"}, []string{tokensMissing, tlsMissing}},
		{rpc.ListenOptions{Address: "0.0.0.0:0"}, []string{tokensMissing, tlsMissing}},
		{rpc.ListenOptions{Address: "[::]:0"}, []string{tokensMissing, tlsMissing}},
		{rpc.ListenOptions{Address: "192.0.2.1:0"}, []string{tokensMissing, tlsMissing}},
		{rpc.ListenOptions{Address: "0.0.0.0:0", TLS: true}, []string{tokensMissing}},
		{rpc.ListenOptions{Address: "0.0.0.0:0", InsecurePlaintext: true}, []string{tokensMissing}},
		{rpc.ListenOptions{Address: "0.0.0.0:0", TLS: true, InsecurePlaintext: true}, []string{tokensMissing}},
		{rpc.ListenOptions{Address: "0.0.0.0:0", Authenticated: true}, []string{tlsMissing}},
		{rpc.ListenOptions{Address: "0.0.0.0:0", Authenticated: true, TLS: true}, nil},
		{rpc.ListenOptions{Address: ":0", Authenticated: true, InsecurePlaintext: true}, nil},
	} {
		l, err := rpc.Listen(t.Context(), tt.options)
		if l != nil {
			l.Close()
		}
		if len(tt.missing) == 0 {
			if err != nil {
				t.Errorf("%+v: %v", tt.options, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%+v is allowed", tt.options)
			continue
		}
		for _, setting := range []string{tokensMissing, tlsMissing} {
			if want := strings.Contains(strings.Join(tt.missing, " "), setting); strings.Contains(err.Error(), setting) != want {
				t.Errorf("%+v: %v, naming %s is %v, want %v", tt.options, err, setting, !want, want)
			}
		}
	}
}

func TestListenSaysWhatIsWrongWithAnAddress(t *testing.T) {
	for _, address := range []string{"", "7400", "127.0.0.1", "127.0.0.1:99999", "unix:", "no.such.host.invalid:1"} {
		l, err := rpc.Listen(t.Context(), rpc.ListenOptions{Address: address})
		if err == nil {
			l.Close()
			t.Errorf("%q is accepted", address)
		} else if !strings.Contains(err.Error(), address) {
			t.Errorf("%q: error %v does not name it", address, err)
		}
	}
}

func TestUnixSocketsArePrivateAndReplaceDeadOnes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for _, address := range []string{"unix:" + path, "unix://" + path} {
		l, err := rpc.Listen(t.Context(), rpc.ListenOptions{Address: address})
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", address, info.Mode())
		}
		if other, err := rpc.Listen(t.Context(), rpc.ListenOptions{Address: address}); err == nil || !strings.Contains(err.Error(), "another process") {
			t.Errorf("a live socket was taken over: %v, %v", other, err)
		}
		// A process that dies leaves its socket file behind.
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
		l, err = rpc.Listen(t.Context(), rpc.ListenOptions{Address: address})
		if err != nil {
			t.Fatalf("a dead socket stays in the way: %v", err)
		}
		l.Close()
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := rpc.Listen(t.Context(), rpc.ListenOptions{Address: "unix:" + path}); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file was taken for a socket: %v", err)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "precious" {
		t.Errorf("the file is %q, %v", content, err)
	}
}

func TestCallsOverAUnixSocket(t *testing.T) {
	address := "unix:" + filepath.Join(t.TempDir(), "s")
	l, err := rpc.Listen(t.Context(), rpc.ListenOptions{Address: address})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, rpc.ServerOptions{})
	toolproxyv1.RegisterToolProxyServiceServer(s, tool{})
	stop := serve(t, s, l)
	conn := dial(t, address, rpc.ClientOptions{})
	if _, err := toolproxyv1.NewToolProxyServiceClient(conn).CallTool(t.Context(), &toolproxyv1.CallToolRequest{}); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(strings.TrimPrefix(address, "unix:")); !os.IsNotExist(err) {
		t.Errorf("the socket file is left behind: %v", err)
	}
}
