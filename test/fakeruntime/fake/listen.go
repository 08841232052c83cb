package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/rpc"
)

// Server is a runtime or a receiver that listens.
type Server struct {
	// Addr is its host:port.
	Addr string

	stop context.CancelFunc
	done chan error
}

// Close stops it, cutting the calls that still run, and returns when nothing of it is left.
func (s *Server) Close() error {
	s.stop()
	return <-s.done
}

// ListenRuntime serves a runtime over gRPC on address, such as 127.0.0.1:0, until ctx ends or Close is called.
func ListenRuntime(ctx context.Context, address string, r *Runtime) (*Server, error) {
	tokens, err := tokensOf(r.options.Token)
	if err != nil {
		return nil, err
	}
	server, err := rpc.NewServer(rpc.ServerOptions{
		Name: "fakeruntime", Log: slog.New(slog.DiscardHandler), Tokens: tokens, TLS: r.options.TLS, DrainTimeout: 100 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	r.Register(server)
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return serve(ctx, l, server.Serve), nil
}

func serve(ctx context.Context, l net.Listener, run func(context.Context, net.Listener) error) *Server {
	ctx, cancel := context.WithCancel(ctx)
	s := &Server{Addr: l.Addr().String(), stop: cancel, done: make(chan error, 1)}
	go func() { s.done <- run(ctx, l) }()
	return s
}

// tokensOf returns a table in which token is a notifier's.
func tokensOf(token string) (_ *authn.Tokens, err error) {
	dir, err := os.MkdirTemp("", "fakeruntime")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	sum := sha256.Sum256([]byte(token))
	path := filepath.Join(dir, "tokens.yaml")
	content := fmt.Sprintf("- { name: notifier, sha256: %s, roles: [notifier] }\n", hex.EncodeToString(sum[:]))
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return nil, err
	}
	// It goes on with what it read when the file is gone.
	return authn.OpenTokens(path, slog.New(slog.DiscardHandler))
}

// ListenReceiver serves a receiver over HTTP on address, such as 127.0.0.1:0, until ctx ends or Close is called.
func ListenReceiver(ctx context.Context, address string, r *Receiver) (*Server, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return serve(ctx, l, func(ctx context.Context, l net.Listener) error {
		h := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
		stopped := make(chan error, 1)
		stop := context.AfterFunc(ctx, func() { stopped <- h.Close() })
		err := h.Serve(l)
		if !stop() {
			err = errors.Join(err, <-stopped)
		}
		r.wait()
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	}), nil
}
