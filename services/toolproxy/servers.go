package toolproxy

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
)

// tools serves ToolProxyService.
type tools struct {
	toolproxyv1.UnimplementedToolProxyServiceServer

	s *Service
}

// catalog returns what is known, or NOT_READY.
func (t *tools) catalog() (*catalog.Catalog, error) {
	c := t.s.store.Load()
	if c == nil {
		return nil, errNoSnapshot()
	}
	return c, nil
}

// viewer decides what a caller sees of servers.
type viewer struct{ tails, ownTails bool }

// viewerOf: a server's last output may hold what its user sent. It is shown to operators, and that of a session which is
// not shared to the one whose session it is.
func viewerOf(ctx context.Context) viewer {
	p, _ := authn.FromContext(ctx)
	own, err := p.Resolve(authn.Scope{})
	return viewer{
		tails:    p.Has(authn.Operator),
		ownTails: err == nil && own == defaultScope(), // discovery runs under that scope
	}
}

func (v viewer) see(s *catalog.Server) *toolproxyv1.Server {
	shared := s.Upstream != nil && s.Upstream.Shared()
	if s.Tail == "" || !v.tails && (!v.ownTails || shared) {
		return s.View
	}
	c := proto.CloneOf(s.View)
	c.Reason += "; its last output on stderr:\n" + s.Tail
	return c
}

func (v viewer) seeAll(servers []*catalog.Server) []*toolproxyv1.Server {
	out := make([]*toolproxyv1.Server, 0, len(servers))
	for _, s := range servers {
		out = append(out, v.see(s))
	}
	return out
}

func (t *tools) ListServers(ctx context.Context, r *toolproxyv1.ListServersRequest) (*toolproxyv1.ListServersResponse, error) {
	size, err := pageSize(r.GetPageSize(), 100)
	if err != nil {
		return nil, err
	}
	list := token{List: "servers", After: []string{""}}
	from, err := after(r.GetPageToken(), list)
	if err != nil {
		return nil, err
	}
	c, err := t.catalog()
	if err != nil {
		return nil, err
	}
	out := &toolproxyv1.ListServersResponse{SnapshotId: c.SnapshotID, Revision: c.Revision}
	v := viewerOf(ctx)
	bytes := 0
	for _, s := range c.Servers() {
		if from != nil && s.Name <= from[0] {
			continue
		}
		view := v.see(s)
		bytes += proto.Size(view) + itemOverhead
		if n := len(out.Servers); n == size || n > 0 && bytes > maxPageBytes {
			list.After[0] = out.Servers[n-1].GetName()
			out.NextPageToken = list.String()
			break
		}
		out.Servers = append(out.Servers, view)
	}
	return out, nil
}

// itemOverhead is what an item of a list costs beside its own size, at most.
const itemOverhead = 8

func (t *tools) WatchServers(_ *toolproxyv1.WatchServersRequest, stream grpc.ServerStreamingServer[toolproxyv1.WatchServersResponse]) error {
	ctx := stream.Context()
	v := viewerOf(ctx)
	known := map[string]*toolproxyv1.Server{}
	first := true
	for {
		c, changed := t.s.store.Watch()
		if c != nil {
			r := v.changes(c, known)
			r.Full = first
			if first || len(r.Servers) > 0 || len(r.Removed) > 0 {
				// A slow watcher waits here and then gets the newest state: what came between is not sent.
				if err := stream.Send(r); err != nil {
					return err
				}
				first = false
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-rpc.Draining(ctx):
			return fault.New(fault.NotReady, "toolproxy is shutting down; watch again")
		}
	}
}

// changes returns what differs from known, which it updates.
func (v viewer) changes(c *catalog.Catalog, known map[string]*toolproxyv1.Server) *toolproxyv1.WatchServersResponse {
	r := &toolproxyv1.WatchServersResponse{SnapshotId: c.SnapshotID, Revision: c.Revision}
	for _, s := range c.Servers() {
		view := v.see(s)
		if old := known[s.Name]; old == nil || !proto.Equal(old, view) {
			r.Servers = append(r.Servers, view)
			known[s.Name] = view
		}
	}
	for name := range known {
		if c.Server(name) == nil {
			r.Removed = append(r.Removed, name)
			delete(known, name)
		}
	}
	return r
}

func (t *tools) RefreshServers(ctx context.Context, r *toolproxyv1.RefreshServersRequest) (*toolproxyv1.RefreshServersResponse, error) {
	if _, err := t.catalog(); err != nil {
		return nil, err
	}
	if err := t.s.discovery.Refresh(ctx, r.GetNames(), r.GetForce()); err != nil {
		return nil, err
	}
	c, err := t.catalog()
	if err != nil {
		return nil, err
	}
	servers := c.Servers()
	if names := r.GetNames(); len(names) > 0 {
		if servers, err = selected(c, names); err != nil {
			return nil, err
		}
	}
	return &toolproxyv1.RefreshServersResponse{Servers: viewerOf(ctx).seeAll(servers)}, nil
}

// selected returns the servers with these names, in the order of the catalog.
func selected(c *catalog.Catalog, names []string) ([]*catalog.Server, error) {
	want := map[string]bool{}
	for _, name := range names {
		if c.Server(name) == nil {
			return nil, fault.New(fault.ServerNotFound, "no server is called %q; ListServers names them", name).With("server", name)
		}
		want[name] = true
	}
	var out []*catalog.Server
	for _, s := range c.Servers() {
		if want[s.Name] {
			out = append(out, s)
		}
	}
	return out, nil
}
