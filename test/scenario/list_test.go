package scenario

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/partners"
)

// lister gets a page of names and the token of the next page.
type lister func(size int32, token string) (names []string, next string, err error)

// pages gets a list with pages of one size.
func (l lister) pages(t *testing.T, size int32) []string {
	t.Helper()
	var all []string
	for token, n := "", 0; ; n++ {
		names, next, err := l(size, token)
		if err != nil || n > 1000 {
			t.Fatalf("page %d of size %d: %v", n, size, err)
		}
		if size > 0 && len(names) > int(size) || len(names) == 0 && next != "" {
			t.Fatalf("page %d of size %d has %d items, next %q", n, size, len(names), next)
		}
		all = append(all, names...)
		if token = next; token == "" {
			return all
		}
	}
}

// OPS-010, NAME-013: lists are complete over their pages, whatever the size of these, and in the same order each time.
func TestListsArePagedCompleteAndInOrder(t *testing.T) {
	servers := map[string]any{}
	for i := range 7 {
		servers[fmt.Sprintf("s%d", i)] = partners.Fake(t, "-only", "echo,counter", "-filler", "5").Entry()
	}
	Each(t, Options{Servers: servers}, func(t *testing.T, h *Herd) {
		h.SettledOK(t, "s0", "s1", "s2", "s3", "s4", "s5", "s6")
		for i := range 3 { // more snapshots, and more sessions
			h.JSON(t, Call{Tool: "s0_counter", Thread: fmt.Sprint("t", i)})
			servers := map[string]any{"s9": partners.Fake(t, "-filler", fmt.Sprint(i)).Entry()}
			maps.Copy(servers, h.o.Servers)
			h.Apply(t, servers)
			h.SettledOK(t, "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s9")
		}
		ctx := t.Context()
		for name, list := range map[string]lister{
			"tools": func(size int32, token string) ([]string, string, error) {
				page, err := h.Tools(t).ListTools(ctx, &toolproxyv1.ListToolsRequest{PageSize: size, PageToken: token, Servers: []string{"s0", "s1", "s2", "s3", "s4"}})
				return names(page.GetTools(), (*toolproxyv1.Tool).GetName), page.GetNextPageToken(), err
			},
			"servers": func(size int32, token string) ([]string, string, error) {
				page, err := h.Tools(t).ListServers(ctx, &toolproxyv1.ListServersRequest{PageSize: size, PageToken: token})
				return names(page.GetServers(), (*toolproxyv1.Server).GetName), page.GetNextPageToken(), err
			},
			"configured servers": func(size int32, token string) ([]string, string, error) {
				page, err := h.Configuration(t).ListServers(ctx, &registryv1.ListServersRequest{PageSize: size, PageToken: token})
				return names(page.GetServers(), (*registryv1.ConfiguredServer).GetName), page.GetNextPageToken(), err
			},
			"sessions": func(size int32, token string) ([]string, string, error) {
				page, err := h.Operator(t).ListSessions(ctx, &toolproxyv1.ListSessionsRequest{PageSize: size, PageToken: token})
				return names(page.GetSessions(), func(s *toolproxyv1.Session) string { return s.GetServer() + " " + s.GetScope().GetThreadId() }), page.GetNextPageToken(), err
			},
			"snapshots": func(size int32, token string) ([]string, string, error) {
				page, err := h.Configuration(t).ListSnapshots(ctx, &registryv1.ListSnapshotsRequest{PageSize: size, PageToken: token})
				return names(page.GetSnapshots(), (*registryv1.Snapshot).GetSnapshotId), page.GetNextPageToken(), err
			},
		} {
			whole := list.pages(t, 1000)
			if least := map[string]int{"tools": 35, "servers": 8, "configured servers": 8, "sessions": 11, "snapshots": 4}[name]; len(whole) != least {
				t.Errorf("%s: %d items, want %d: %v", name, len(whole), least, whole)
			}
			if name != "snapshots" && !slices.IsSorted(whole) {
				t.Errorf("%s are not in order: %v", name, whole)
			}
			for _, size := range []int32{1, 3, 0} {
				if diff := cmp.Diff(whole, list.pages(t, size)); diff != "" {
					t.Errorf("%s in pages of %d (- whole, + pages):\n%s", name, size, diff)
				}
			}
			if _, _, err := list(-1, ""); reasonOf(err).Code != codes.InvalidArgument {
				t.Errorf("%s with a negative size: %v", name, err)
			}
			if _, _, err := list(0, "no token of ours"); reasonOf(err).Code != codes.InvalidArgument {
				t.Errorf("%s with a foreign token: %v", name, err)
			}
		}
		before := h.ListTools(t, &toolproxyv1.ListToolsRequest{PageSize: 10})
		h.StopAll(t)
		h.LaunchAll(t)
		h.SettledOK(t, "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s9")
		after := h.ListTools(t, &toolproxyv1.ListToolsRequest{PageSize: 10})
		if diff := cmp.Diff(names(before, (*toolproxyv1.Tool).GetName), names(after, (*toolproxyv1.Tool).GetName)); diff != "" {
			t.Errorf("after a restart the tools are others (- before, + after):\n%s", diff)
		}
	})
}

func names[T any](items []T, name func(T) string) []string {
	out := make([]string, 0, len(items))
	for _, item := range items {
		out = append(out, name(item))
	}
	return out
}
