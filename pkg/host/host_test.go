package host

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/run"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

func TestMain(m *testing.M) {
	if os.Getenv("HOST_TEST_STUCK") != "" {
		os.Exit(Main(Split{Name: "stuck", Listen: "127.0.0.1:0", Build: func(context.Context, *Env) (Serving, error) {
			return Serving{Services: []Named{{Name: "stuck", Service: stuck{}}}}, nil
		}}))
	}
	goleak.VerifyTestMain(m)
}

// stuck is a service that does not end in order.
type stuck struct{}

func (stuck) Register(grpc.ServiceRegistrar) {}

func (stuck) Ready(context.Context) error { return nil }

func (stuck) Run(ctx context.Context) error {
	<-ctx.Done()
	fmt.Fprintln(os.Stderr, "told to end")
	select {}
}

func TestASecondInterruptEndsASplitServiceAtOnce(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "HOST_TEST_STUCK=1")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "ready ") || lines.Text() == "told to end" {
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
		t.Fatalf("got %v, want an end by the second signal", exit)
	}
}

// journal collects what happened, in order.
type journal struct {
	mu      sync.Mutex
	entries []string
}

func (j *journal) add(s string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, s)
}

func (j *journal) list() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.entries)
}

func TestStagesEndOneAfterTheOtherAndTheFirstFirst(t *testing.T) {
	var j journal
	var started sync.WaitGroup
	started.Add(3)
	stage := func(name string) []run.Task {
		return []run.Task{{Name: name, Run: func(ctx context.Context) error {
			started.Done()
			<-ctx.Done()
			j.add(name + " told")
			j.add(name + " ended")
			return nil
		}}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- staged(ctx, [][]run.Task{stage("public"), stage("services"), stage("internal")}) }()
	started.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want := []string{"public told", "public ended", "services told", "services ended", "internal told", "internal ended"}
	if got := j.list(); !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestAFailureInAnyStageEndsAllAndIsReturned(t *testing.T) {
	boom := errors.New("boom")
	err := staged(t.Context(), [][]run.Task{
		{{Name: "public", Run: func(ctx context.Context) error { <-ctx.Done(); return nil }}},
		{{Name: "services", Run: func(context.Context) error { return boom }}},
	})
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), "services") {
		t.Fatalf("got %v, want boom of services", err)
	}
}

// late is a service that becomes ready when told.
type late struct {
	toolproxyv1.UnimplementedToolProxyServiceServer
	ready chan struct{}
	ended *journal
}

func (l *late) Register(r grpc.ServiceRegistrar) { toolproxyv1.RegisterToolProxyServiceServer(r, l) }

func (l *late) Run(ctx context.Context) error {
	<-ctx.Done()
	l.ended.add("service ended")
	return nil
}

func (l *late) Ready(context.Context) error {
	select {
	case <-l.ready:
		return nil
	default:
		return fault.New(fault.NotReady, "no snapshot yet")
	}
}

func (l *late) ListServers(context.Context, *toolproxyv1.ListServersRequest) (*toolproxyv1.ListServersResponse, error) {
	return &toolproxyv1.ListServersResponse{SnapshotId: "snap_1"}, nil
}

// syncBuffer is a buffer that several goroutines write.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// CLI-002, OPS-006
func TestReadyLineComesOnceServicesAreReadyAndNamesTheAddresses(t *testing.T) {
	cfg := config.Defaults()
	cfg.Listen, cfg.HTTPListen = "127.0.0.1:0", "127.0.0.1:0"
	stderr := &syncBuffer{}
	env, err := Open(t.Context(), "test", cfg, stderr)
	if err != nil {
		t.Fatal(err)
	}
	var j journal
	service := &late{ready: make(chan struct{}), ended: &j}
	ctx, cancel := context.WithCancel(t.Context())
	addresses := make(chan [2]string, 1)
	var announced [2]string
	done := make(chan error)
	go func() {
		done <- env.Serve(ctx, Serving{
			Services: []Named{{Name: "proxy", Service: service}},
			Announce: func(grpcAddr, httpAddr string) error {
				if strings.Contains(stderr.String(), "ready grpc=") {
					t.Error("the ready line comes before the announcement")
				}
				announced = [2]string{grpcAddr, httpAddr}
				return nil
			},
			Ready: func(context.Context) error {
				addresses <- announced
				return nil
			},
		})
	}()
	select {
	case a := <-addresses:
		t.Fatalf("ready at %v before its service", a)
	case <-time.After(50 * time.Millisecond):
	}
	close(service.ready)
	a := <-addresses
	line := regexp.MustCompile(`(?m)^ready grpc=(127\.0\.0\.1:[1-9]\d*) http=(127\.0\.0\.1:[1-9]\d*)$`).FindStringSubmatch(stderr.String())
	if line == nil || line[1] != a[0] || line[2] != a[1] {
		t.Fatalf("stderr %q does not name %v", stderr.String(), a)
	}

	conn, err := rpc.Dial(a[0], rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := toolproxyv1.NewToolProxyServiceClient(conn).ListServers(t.Context(), &toolproxyv1.ListServersRequest{})
	if err != nil || got.GetSnapshotId() != "snap_1" {
		t.Fatalf("got %v, %v", got, err)
	}
	for path, want := range map[string]string{"/healthz": "", "/readyz": "", "/metrics": "toolherd_rpc_server_duration_seconds_count"} {
		if body := get(t, "http://"+a[1]+path); !strings.Contains(body, want) {
			t.Errorf("%s: got %q, want %q in it", path, body, want)
		}
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := env.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := j.list(); !slices.Equal(got, []string{"service ended"}) {
		t.Fatalf("got %v", got)
	}
}

func TestAUnixSocketIsAnnouncedAsClientsDialIt(t *testing.T) {
	cfg := config.Defaults()
	cfg.Listen, cfg.HTTPListen = "unix:"+t.TempDir()+"/toolherd.sock", ""
	env, err := Open(t.Context(), "test", cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	service := &late{ready: make(chan struct{}), ended: &journal{}}
	close(service.ready)
	ctx, cancel := context.WithCancel(t.Context())
	announced, done := make(chan string, 1), make(chan error)
	go func() {
		done <- env.Serve(ctx, Serving{
			Services: []Named{{Name: "proxy", Service: service}},
			Announce: func(grpcAddr, _ string) error { announced <- grpcAddr; return nil },
		})
	}()
	conn, err := rpc.Dial(<-announced, rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := toolproxyv1.NewToolProxyServiceClient(conn).ListServers(t.Context(), &toolproxyv1.ListServersRequest{}); err != nil {
		t.Error(err)
	}
	cancel()
	if err := errors.Join(conn.Close(), <-done, env.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, resp.Status, err)
	}
	return string(body)
}

// OPS-001
func TestAListenerOpenToOthersNeedsTokensAndTLS(t *testing.T) {
	cfg := config.Defaults()
	cfg.Listen, cfg.HTTPListen = "0.0.0.0:0", ""
	env, err := Open(t.Context(), "test", cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(env.Serve(t.Context(), Serving{}), env.Close(t.Context()))
	if err == nil || !strings.Contains(err.Error(), "auth.tokens_file") || !strings.Contains(err.Error(), "tls.cert_file") {
		t.Fatalf("got %v, want what is missing", err)
	}
}

func TestASplitServiceSaysWhatIsWrongWithItsFlags(t *testing.T) {
	split := Split{Name: "registry", Listen: "127.0.0.1:0", Build: func(ctx context.Context, env *Env) (Serving, error) {
		_, err := env.Postgres(ctx)
		return Serving{}, err
	}}
	for _, arg := range []string{"--no-such-flag", "argument"} {
		err := split.run(t.Context(), []string{arg}, nil)
		if _, ok := errors.AsType[usageError](err); !ok || !strings.Contains(err.Error(), strings.TrimLeft(arg, "-")) {
			t.Fatalf("%s: got %v, want an error of usage", arg, err)
		}
	}
	err := split.run(t.Context(), nil, nil)
	if !fault.Is(err, fault.ConfigInvalid) || !strings.Contains(err.Error(), "--postgres") {
		t.Fatalf("got %v, want a hint at --postgres", err)
	}
}
