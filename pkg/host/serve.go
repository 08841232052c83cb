package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/run"
)

// Named is a service and what it is called in logs and errors.
type Named struct {
	Name    string
	Service Service
	// Stop says when the service is told to end: all of a lower number have ended by then, those of the same number end
	// together. Who calls a service of the same process has a lower number than that service.
	Stop int
}

// Serving is what a process serves.
type Serving struct {
	// Services run until the process ends and are registered on its listeners.
	Services []Named
	// Tasks run beside the services and end with the last of them.
	Tasks []run.Task
	// Loopback, if set, is the listener for peers in this process: internal RPCs are served there and nowhere else.
	// Without it they are on the one listener, guarded by their roles.
	Loopback *rpc.Loopback
	// NoListen serves no network listener at all: the process itself is the only client.
	NoListen bool
	// Announce is called once every service is ready, before the ready line, with the addresses of the listeners: whoever
	// reads the line may rely on what it did. The gRPC address is one that clients can dial; the HTTP address is empty
	// where there is none.
	Announce func(grpcAddr, httpAddr string) error
	// Ready is called after that. It may run as long as its ctx.
	Ready func(ctx context.Context) error
}

// drainTimeout bounds how long calls may go on after the process was told to stop.
const drainTimeout = 10 * time.Second

// readyPoll is how often readiness is asked for while the process starts.
const readyPoll = 5 * time.Millisecond

// Serve runs the process until ctx ends or a part of it fails, and stops it in order.
func (e *Env) Serve(ctx context.Context, s Serving) error {
	var stages [][]run.Task
	grpcAddr, httpAddr := "", ""
	if !s.NoListen {
		public, err := e.publicServer(s)
		if err != nil {
			return err
		}
		listener, err := e.listen(ctx)
		if err != nil {
			return err
		}
		grpcAddr = target(listener.Addr())
		front := []run.Task{{Name: "public listener", Run: func(ctx context.Context) error { return public.Serve(ctx, listener) }}}
		if e.Config.HTTPListen != "" {
			task, addr, err := e.httpTask(ctx, s)
			if err != nil {
				return errors.Join(err, listener.Close())
			}
			httpAddr = addr
			front = append(front, task)
		}
		stages = append(stages, front)
	}
	stages = append(stages, s.stages()...)
	if s.Loopback != nil {
		internal, err := e.internalServer(s)
		if err != nil {
			return err
		}
		stages = append(stages, []run.Task{{Name: "internal listener", Run: func(ctx context.Context) error {
			return internal.Serve(ctx, s.Loopback.Listener())
		}}})
	}
	ready := run.Task{Name: "start-up", Run: func(ctx context.Context) error {
		if err := waitReady(ctx, s.Services); err != nil {
			return nil //nolint:nilerr // only an ending ctx stops the wait, and it has its own cause
		}
		if s.Announce != nil {
			if err := s.Announce(grpcAddr, httpAddr); err != nil {
				return err
			}
		}
		if !s.NoListen {
			fmt.Fprintf(e.stderr, "ready grpc=%s http=%s\n", grpcAddr, cmp.Or(httpAddr, "off"))
		}
		if s.Ready == nil {
			return nil
		}
		return s.Ready(ctx)
	}}
	return staged(ctx, append([][]run.Task{{ready}}, stages...))
}

// stages groups the services by when they stop; the tasks are in the last group.
func (s Serving) stages() [][]run.Task {
	groups := map[int][]run.Task{}
	for _, n := range s.Services {
		groups[n.Stop] = append(groups[n.Stop], run.Task{Name: n.Name, Run: n.Service.Run})
	}
	var out [][]run.Task
	for _, stop := range slices.Sorted(maps.Keys(groups)) {
		out = append(out, groups[stop])
	}
	if len(out) == 0 {
		return [][]run.Task{slices.Clone(s.Tasks)}
	}
	out[len(out)-1] = append(out[len(out)-1], s.Tasks...)
	return out
}

// target returns the address in the form that clients dial and --listen takes.
func target(a net.Addr) string {
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return a.String()
}

// staged starts all stages at once and stops them one after the other, the first first: each ends before the next is
// told to. A failure in any stage stops all of them.
func staged(ctx context.Context, stages [][]run.Task) error {
	failed, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	type stage struct {
		cancel context.CancelFunc
		done   chan struct{}
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	started := make([]stage, len(stages))
	for i, tasks := range stages {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		started[i] = stage{cancel, make(chan struct{})}
		wg.Go(func() {
			defer close(started[i].done)
			if err := run.All(own, tasks...); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
				fail(err)
			}
		})
	}
	<-failed.Done()
	for _, st := range started {
		st.cancel()
		<-st.done
	}
	wg.Wait()
	return errors.Join(errs...)
}

func waitReady(ctx context.Context, services []Named) error {
	for {
		if ready(ctx, services) == nil {
			return nil
		}
		if err := backoff.Sleep(ctx, readyPoll); err != nil {
			return err
		}
	}
}

func ready(ctx context.Context, services []Named) error {
	for _, n := range services {
		if err := n.Service.Ready(ctx); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return nil
}

func (e *Env) listen(ctx context.Context) (net.Listener, error) {
	return rpc.Listen(ctx, rpc.ListenOptions{
		Address: e.Config.Listen, Authenticated: e.Config.Auth.TokensFile != "",
		TLS: e.Config.TLS.CertFile != "", InsecurePlaintext: e.Config.InsecurePlaintext,
	})
}

func (e *Env) publicServer(s Serving) (*rpc.Server, error) {
	tokens, err := e.tokens()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := e.serverTLS()
	if err != nil {
		return nil, err
	}
	server, err := rpc.NewServer(rpc.ServerOptions{
		Name: "public", Log: e.Log, Tokens: tokens, TLS: tlsConfig, MaxMessageBytes: e.messageLimit(), DrainTimeout: drainTimeout,
		Public: s.Loopback != nil, Ready: health(s, s.Loopback == nil),
		Metrics: e.Telemetry.Metrics, Tracing: e.Telemetry.Tracing(), Redact: e.Redactor.Redact,
	})
	if err != nil {
		return nil, err
	}
	register(server, s, s.Loopback == nil)
	return server, nil
}

func (e *Env) internalServer(s Serving) (*rpc.Server, error) {
	server, err := rpc.NewServer(rpc.ServerOptions{
		Name: "internal", Log: e.Log, Peer: true, MaxMessageBytes: e.messageLimit(), DrainTimeout: drainTimeout, Ready: health(s, true),
		Metrics: e.Telemetry.Metrics, Tracing: e.Telemetry.Tracing(), Redact: e.Redactor.Redact,
	})
	if err != nil {
		return nil, err
	}
	register(server, s, true)
	return server, nil
}

func register(r grpc.ServiceRegistrar, s Serving, internal bool) {
	for _, n := range s.Services {
		if i, ok := n.Service.(Internal); ok && internal {
			i.RegisterInternal(r)
		} else {
			n.Service.Register(r)
		}
	}
}

// health maps every registered gRPC service to the readiness of the service behind it.
func health(s Serving, internal bool) map[string]func(context.Context) error {
	out := map[string]func(context.Context) error{}
	for _, n := range s.Services {
		var names nameRecorder
		register(&names, Serving{Services: []Named{n}}, internal)
		for _, name := range names {
			out[name] = n.Service.Ready
		}
	}
	return out
}

// nameRecorder is a registrar that keeps the names of what is registered.
type nameRecorder []string

// RegisterService implements grpc.ServiceRegistrar.
func (r *nameRecorder) RegisterService(desc *grpc.ServiceDesc, _ any) {
	*r = append(*r, desc.ServiceName)
}

// httpTask serves health and metrics over plain HTTP.
func (e *Env) httpTask(ctx context.Context, s Serving) (run.Task, string, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", e.Config.HTTPListen)
	if err != nil {
		return run.Task{}, "", fmt.Errorf("listen on %s for HTTP (--http-listen gives another address): %w", e.Config.HTTPListen, err)
	}
	server := &http.Server{
		Handler:           e.Telemetry.Handler(func(ctx context.Context) error { return ready(ctx, s.Services) }),
		ReadHeaderTimeout: 10 * time.Second,
	}
	serve := func(ctx context.Context) error {
		stopped := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(stopped)
			shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if server.Shutdown(shutdown) != nil {
				_ = server.Close() // cuts the scrapes that would not end
			}
		})
		err := server.Serve(listener)
		if !stop() {
			<-stopped
		}
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	}
	return run.Task{Name: "HTTP listener", Run: serve}, listener.Addr().String(), nil
}
