package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	grpchealth "google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/run"
)

// How often readiness is asked for, and how long an answer may take.
const (
	readyInterval    = time.Second
	notReadyInterval = 100 * time.Millisecond
	readyTimeout     = 2 * time.Second
)

// Why a server as a whole is not ready.
var (
	errNotServing = errors.New("not serving yet")
	errNotPolled  = errors.New("not asked yet")
)

// health keeps grpc.health.v1 equal to the answers of the Ready functions.
//
//	NOT_SERVING ──first answer nil──▶ SERVING ⇄ NOT_SERVING ──close──▶ NOT_SERVING for ever
//
// The service "" stands for the whole server and serves while all do.
type health struct {
	log   *slog.Logger
	ready map[string]func(context.Context) error
	grpc  *grpchealth.Server

	mu       sync.Mutex
	polling  bool
	closed   bool
	problems map[string]error // by service; nil is ready
	lost     map[string]bool  // services that were ready and are not
	changed  chan struct{}    // closed and replaced at each change
}

func newHealth(log *slog.Logger, ready map[string]func(context.Context) error) *health {
	h := &health{
		log:      log,
		ready:    ready,
		grpc:     grpchealth.NewServer(),
		problems: map[string]error{},
		lost:     map[string]bool{},
		changed:  make(chan struct{}),
	}
	h.grpc.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	for service := range ready {
		h.add(service)
	}
	return h
}

// add makes a service known, before polling begins.
func (h *health) add(service string) {
	if h.ready[service] != nil {
		h.problems[service] = errNotPolled
	} else {
		h.problems[service] = nil
	}
	h.grpc.SetServingStatus(service, healthv1.HealthCheckResponse_NOT_SERVING)
}

// poll asks each Ready function until ctx ends.
func (h *health) poll(ctx context.Context) error {
	h.mu.Lock()
	h.polling = true
	for service, problem := range h.problems {
		h.publish(service, problem)
	}
	h.mu.Unlock()

	var tasks []run.Task
	for service, ready := range h.ready {
		tasks = append(tasks, run.Task{Name: service, Run: func(ctx context.Context) error {
			for {
				problem := ask(ctx, ready)
				if ctx.Err() != nil {
					return nil //nolint:nilerr // the shutdown says nothing about the service
				}
				h.set(service, problem)
				interval := readyInterval
				if problem != nil {
					interval = notReadyInterval
				}
				if backoff.Sleep(ctx, interval) != nil {
					return nil //nolint:nilerr // the end of ctx is the ordinary end
				}
			}
		}})
	}
	return run.All(ctx, tasks...)
}

func ask(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return ready(ctx)
}

func (h *health) set(service string, problem error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.problems[service]
	h.problems[service] = problem
	switch {
	case h.closed || problem == nil && before == nil:
		return
	case problem == nil && h.lost[service]:
		h.log.Info("service is ready again", "service", service)
		delete(h.lost, service)
	case problem == nil:
		h.log.Debug("service is ready", "service", service)
	case before == nil:
		h.lost[service] = true
		h.log.Warn("service is no longer ready", "service", service, "err", problem)
	case before == errNotPolled: //nolint:errorlint // this very value is the first state
		h.log.Debug("service is not ready yet", "service", service, "err", problem)
	case before.Error() == problem.Error():
		return
	default:
		h.log.Debug("service is still not ready", "service", service, "err", problem)
	}
	h.publish(service, problem)
}

// publish is called with mu held.
func (h *health) publish(service string, problem error) {
	h.grpc.SetServingStatus(service, servingStatus(problem))
	h.grpc.SetServingStatus("", servingStatus(h.whole()))
	close(h.changed)
	h.changed = make(chan struct{})
}

func servingStatus(problem error) healthv1.HealthCheckResponse_ServingStatus {
	if problem != nil {
		return healthv1.HealthCheckResponse_NOT_SERVING
	}
	return healthv1.HealthCheckResponse_SERVING
}

// whole returns why the server as a whole is not ready; mu is held.
func (h *health) whole() error {
	switch {
	case h.closed:
		return errClosing
	case !h.polling:
		return errNotServing
	}
	var errs []error
	for _, service := range slices.Sorted(maps.Keys(h.problems)) {
		if problem := h.problems[service]; problem != nil {
			errs = append(errs, fmt.Errorf("%s: %w", service, problem))
		}
	}
	return errors.Join(errs...)
}

// close reports NOT_SERVING from here on.
func (h *health) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.grpc.Shutdown()
	close(h.changed)
	h.changed = make(chan struct{})
}

// Ready returns nil while every service of the server is ready, and otherwise says which are not and why. It answers
// from the last poll.
func (s *Server) Ready(context.Context) error {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	return s.health.whole()
}

// AwaitReady waits until every service of the server is ready. When ctx ends first, or the server shuts down, it
// returns why it was not.
func (s *Server) AwaitReady(ctx context.Context) error {
	h := s.health
	for {
		h.mu.Lock()
		problem, closed, changed := h.whole(), h.closed, h.changed
		h.mu.Unlock()
		if problem == nil || closed {
			return problem
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), problem)
		}
	}
}
