package scenario

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/partners"
)

// health asks a program for the health of a service; "" is the program as a whole.
func (h *Herd) health(t testing.TB, program, service string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := healthv1.NewHealthClient(h.Conn(t, program, "agent")).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
	if err != nil {
		return reasonOf(err).Code.String()
	}
	return out.GetStatus().String()
}

const (
	serving    = "SERVING"
	notServing = "NOT_SERVING"

	registryService  = "toolherd.registry.v1.RegistryService"
	toolproxyService = "toolherd.toolproxy.v1.ToolProxyService"
)

// awaitServing waits for the gRPC listener of a program that is not ready yet, and learns its HTTP address.
func (h *Herd) awaitServing(t testing.TB, program string) {
	t.Helper()
	h.started[program].Announced(t, `msg=(serving) server=public address=`+regexp.QuoteMeta(h.addresses[program]))
}

// OPS-005, STAT-006: programs start in any order. Without a snapshot a toolproxy is not ready and says so, and answers
// NOT_READY instead of TOOL_NOT_FOUND; a registry waits for its database, and the proxy for neither once it has a snapshot.
func TestProgramsStartInAnyOrder(t *testing.T) {
	t.Parallel()
	h := New(t, Split, Options{Idle: true, Servers: map[string]any{"fake": partners.Fake(t).Entry()}})
	cluster := dbtest.NewCluster(t)
	h.dsn = cluster.DSN(t)
	cluster.Stop()

	h.reserve(t, registry)
	h.reserve(t, toolproxy)
	h.Launch(t, toolproxy)
	h.awaitServing(t, toolproxy)
	for range 2 {
		for _, service := range []string{"", toolproxyService} {
			if got := h.health(t, toolproxy, service); got != notServing {
				t.Errorf("without a snapshot %q is %s", service, got)
			}
		}
		_, err := h.Tools(t).ListTools(t.Context(), &toolproxyv1.ListToolsRequest{})
		if f := reasonOf(err); f.Reason != "NOT_READY" || f.Code != codes.Unavailable {
			t.Errorf("without a snapshot tools are %v", f)
		}
		if _, err := h.Do(t, Call{Tool: "fake_echo"}); reasonOf(err).Reason != "NOT_READY" {
			t.Errorf("without a snapshot a call ends with %v", err)
		}
		if strings.Contains(h.Proxy.Stderr(), "\nready ") {
			t.Error("the toolproxy says that it is ready")
		}
		if h.Registry == nil {
			// The second time there is a registry, but no database.
			h.Launch(t, registry)
			h.Registry.Announced(t, `(waiting for the database)`)
		}
	}
	cluster.Start()
	h.AwaitReady(t, registry)
	h.AwaitReady(t, toolproxy)
	h.SettledOK(t, "fake")
	for program, services := range map[string][]string{
		registry: {"", registryService, "toolherd.credential.v1.CredentialService"}, toolproxy: {"", toolproxyService, "toolherd.toolproxy.v1.BackgroundToolService"},
	} {
		for _, service := range services {
			Eventually(t, service+" of "+program+" is serving", func() bool { return h.health(t, program, service) == serving })
		}
	}
	if got := h.health(t, toolproxy, registryService); got != "NotFound" {
		t.Errorf("the health of a service of another program is %s", got)
	}

	// Without its database the registry is not ready, and nobody else minds.
	cluster.Stop()
	Eventually(t, "the registry misses its database", func() bool { return h.health(t, registry, registryService) == notServing })
	if status, body := h.httpGet(t, registry, "/readyz"); status != http.StatusServiceUnavailable || body == "" {
		t.Errorf("/readyz of a registry without a database: %d %s", status, body)
	}
	if status, _ := h.httpGet(t, registry, "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz of a registry without a database: %d", status)
	}
	if got := h.health(t, toolproxy, ""); got != serving {
		t.Errorf("the toolproxy is %s while the registry misses its database", got)
	}
	if got := h.JSON(t, Call{Tool: "fake_echo", Arguments: `{"n":8}`}); !strings.Contains(got, `{"n":8}`) {
		t.Errorf("a call meanwhile gets %s", got)
	}
	cluster.Start()
	Eventually(t, "the registry has its database again", func() bool { return h.health(t, registry, registryService) == serving })
	h.Write(t, map[string]any{"fake": partners.Fake(t).Entry(), "more": partners.Fake(t).Entry()})
	h.SettledOK(t, "fake", "more")
}

// SNAP-016, OPS-005, OPS-011, NAME-013, CALL-025: a registry that is killed is missed by nobody, and is followed again when
// it is back; a toolproxy that is killed and started again serves the same tools.
func TestEitherProgramMayBeKilled(t *testing.T) {
	t.Parallel()
	fake := partners.Fake(t).Entry()
	h := New(t, Split, Options{Servers: map[string]any{"zeta": fake, "alpha": fake}})
	h.SettledOK(t, "alpha", "zeta")
	before := h.ListTools(t, &toolproxyv1.ListToolsRequest{})
	pid := h.pid(t, Call{Tool: "alpha_pid"})
	watch, err := h.Tools(t).WatchServers(t.Context(), &toolproxyv1.WatchServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watch.Recv(); err != nil || !first.GetFull() || len(first.GetServers()) != 2 {
		t.Fatalf("the watch begins with %v, %v", first, err)
	}

	h.Registry.Kill(t)
	for i := range 20 {
		if got := h.JSON(t, Call{Tool: "alpha_echo", Arguments: fmt.Sprintf(`{"n":%d}`, i)}); !strings.Contains(got, fmt.Sprintf(`{"n":%d}`, i)) {
			t.Errorf("without the registry a call gets %s", got)
		}
	}
	if diff := cmp.Diff(before, h.ListTools(t, &toolproxyv1.ListToolsRequest{}), protocmp.Transform()); diff != "" {
		t.Errorf("without the registry the tools are others (- before, + now):\n%s", diff)
	}
	if got := h.health(t, toolproxy, ""); got != serving {
		t.Errorf("without the registry the toolproxy is %s", got)
	}
	// A session of another scope needs nothing from the registry either.
	if other := h.pid(t, Call{Tool: "alpha_pid", Thread: "other"}); other == pid {
		t.Error("another thread has the same process")
	}
	h.Write(t, map[string]any{"zeta": fake, "alpha": fake, "midst": fake})
	h.Launch(t, registry)
	h.AwaitReady(t, registry)
	h.SettledOK(t, "alpha", "midst", "zeta")
	if got := h.pid(t, Call{Tool: "alpha_pid"}); got != pid {
		t.Errorf("the server that stays has process %d, it was %d", got, pid)
	}
	for seen := false; !seen; {
		change, err := watch.Recv()
		if err != nil {
			t.Fatalf("the watch of the servers ends with %v", err)
		}
		seen = slices.ContainsFunc(change.GetServers(), func(s *toolproxyv1.Server) bool { return s.GetName() == "midst" && s.GetStatus() == statusOK })
	}
	// And it follows every later one, as quickly as ever.
	h.Write(t, map[string]any{"zeta": fake, "alpha": fake})
	h.SettledOK(t, "alpha", "zeta")

	h.Proxy.Kill(t)
	EventuallyWithin(t, 10*time.Second, "no process of the killed toolproxy is left", func() bool { return len(h.Processes()) == 0 })
	h.Launch(t, toolproxy)
	h.AwaitReady(t, toolproxy)
	h.SettledOK(t, "alpha", "zeta")
	if diff := cmp.Diff(before, h.ListTools(t, &toolproxyv1.ListToolsRequest{}), protocmp.Transform()); diff != "" {
		t.Errorf("after the restart the tools are others (- before, + now):\n%s", diff)
	}
	if got := h.pid(t, Call{Tool: "alpha_pid"}); got == pid {
		t.Error("a server survived the toolproxy")
	}
	// The watch is over with the process that served it.
	for err == nil {
		_, err = watch.Recv()
	}
	if reasonOf(err).Code != codes.Unavailable && err != io.EOF {
		t.Errorf("the watch ends with %v", err)
	}
}

// SNAP-016, SNAP-006: a watch of snapshots resumes after the revision that it names; equal content makes no revision, and A, B,
// A makes three of two ids.
func TestSnapshotsAreFollowedFromAnyRevision(t *testing.T) {
	Each(t, Options{}, func(t *testing.T, h *Herd) {
		fake := partners.Fake(t).Entry()
		watchFrom := func(ctx context.Context, revision int64) func() *registryv1.Snapshot {
			stream, err := h.Configuration(t).WatchSnapshots(ctx, &registryv1.WatchSnapshotsRequest{AfterRevision: revision})
			if err != nil {
				t.Fatal(err)
			}
			return func() *registryv1.Snapshot {
				t.Helper()
				m, err := stream.Recv()
				if err != nil {
					t.Fatalf("watch snapshots: %v", err)
				}
				return m.GetSnapshot()
			}
		}
		next := watchFrom(t.Context(), 0)
		first := next()
		h.Write(t, map[string]any{"a": fake})
		a := next()
		// The same again, in other words.
		content := read(h.Config)
		h.saveAndAwaitReader(t, "\n  "+strings.ReplaceAll(content, "\n", "\n\t")+"\n")
		h.saveAndAwaitReader(t, strings.Replace(content, "{", `{"skills": {"x": true},`, 1))
		h.Write(t, map[string]any{"b": fake})
		b := next()
		h.Write(t, map[string]any{"a": fake})
		again := next()
		if !regexp.MustCompile(`^snap_[0-9a-f]{32}$`).MatchString(a.GetSnapshotId()) || a.GetSnapshotId() != again.GetSnapshotId() || a.GetSnapshotId() == b.GetSnapshotId() {
			t.Errorf("the ids of A, B, A are %s, %s, %s", a.GetSnapshotId(), b.GetSnapshotId(), again.GetSnapshotId())
		}
		for i, s := range []*registryv1.Snapshot{first, a, b, again} {
			if s.GetRevision() != first.GetRevision()+int64(i) {
				t.Errorf("the revision of snapshot %d is %d, the first was %d", i, s.GetRevision(), first.GetRevision())
			}
		}
		// One who has seen the third gets the fourth, and one who has seen it too waits for the fifth.
		if got := watchFrom(t.Context(), b.GetRevision())(); got.GetRevision() != again.GetRevision() {
			t.Errorf("after revision %d comes %d", b.GetRevision(), got.GetRevision())
		}
		waiting := watchFrom(t.Context(), again.GetRevision())
		h.Write(t, map[string]any{"c": fake})
		if got := waiting(); got.GetRevision() != again.GetRevision()+1 {
			t.Errorf("after revision %d comes %d", again.GetRevision(), got.GetRevision())
		}
		stored, err := h.Configuration(t).GetSnapshot(t.Context(), &registryv1.GetSnapshotRequest{SnapshotId: b.GetSnapshotId()})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b.GetServers(), stored.GetSnapshot().GetServers(), protocmp.Transform()); diff != "" {
			t.Errorf("an older snapshot is not what it was (- then, + now):\n%s", diff)
		}
	})
}

// saveAndAwaitReader replaces the explicit file and waits until somebody has opened the new one.
func (h *Herd) saveAndAwaitReader(t *testing.T, content string) {
	t.Helper()
	if err := os.WriteFile(h.Config+".tmp", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	opened := opens(t, h.Config+".tmp") // the watch moves with the file
	if err := os.Rename(h.Config+".tmp", h.Config); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the new file is read", func() bool { return opened() > 0 })
}

// A database without the schema stops nobody silently: the registry says what to run, and with that it runs.
func TestMigrateMakesADatabaseUsable(t *testing.T) {
	t.Parallel()
	h := New(t, Split, Options{Idle: true, Servers: map[string]any{"demo": partners.Fake(t).Entry()}})
	h.dsn = dbtest.DSN(t, dbtest.Unmigrated())
	Run(t, h.Command(t, registry)).want(t, 1, `^$`, `toolherd migrate`)
	h.toolherd(t, "migrate", "--postgres", h.dsn).want(t, 0, `^$`, ``)
	h.toolherd(t, "migrate", "--postgres", h.dsn).want(t, 0, `^$`, ``)
	h.LaunchAll(t)
	h.SettledOK(t, "demo")
}
