package toolproxy

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/rpc"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/call"
	"github.com/toolherd/toolherd/services/toolproxy/internal/catalog"
)

// resolve returns the scope in which the caller of ctx asks.
func resolve(ctx context.Context, s *corev1.Scope) (authn.Scope, error) {
	p, _ := authn.FromContext(ctx)
	return p.Resolve(authn.Scope{UserID: s.GetUserId(), ThreadID: s.GetThreadId()})
}

func (t *tools) ListTools(ctx context.Context, r *toolproxyv1.ListToolsRequest) (*toolproxyv1.ListToolsResponse, error) {
	if _, err := resolve(ctx, r.GetScope()); err != nil {
		return nil, err
	}
	size, err := pageSize(r.GetPageSize(), maxPageSize)
	if err != nil {
		return nil, err
	}
	filter := slices.Compact(slices.Sorted(slices.Values(r.GetServers())))
	list := token{List: "tools", Filter: filter, After: []string{""}}
	from, err := after(r.GetPageToken(), list)
	if err != nil {
		return nil, err
	}
	c, err := t.catalog()
	if err != nil {
		return nil, err
	}
	if _, err := selected(c, filter); err != nil {
		return nil, err
	}
	out := &toolproxyv1.ListToolsResponse{
		// Every server whatever the filter: nobody should take "broken" for "empty".
		Servers:    viewerOf(ctx).seeAll(c.Servers()),
		SnapshotId: c.SnapshotID,
		// Known from what intake answers anyway: no call waits for it here.
		TasksAvailable: t.s.intake.Running(),
	}
	rest := c.Tools()
	if from != nil {
		rest = c.After(from[0])
	}
	fill(out, rest, size, list)
	return out, nil
}

// fill puts tools into a page until it is full, and says where the next one begins.
func fill(out *toolproxyv1.ListToolsResponse, rest []*catalog.Tool, size int, list token) {
	bytes := proto.Size(out)
	for _, tool := range rest {
		if len(list.Filter) > 0 && !slices.Contains(list.Filter, tool.Server.Name) {
			continue
		}
		bytes += tool.Size + itemOverhead
		if n := len(out.Tools); n == size || n > 0 && bytes > maxPageBytes {
			list.After[0] = out.Tools[n-1].GetName()
			out.NextPageToken = list.String()
			return
		}
		out.Tools = append(out.Tools, tool.View)
	}
}

func (t *tools) CallTool(ctx context.Context, r *toolproxyv1.CallToolRequest) (*toolproxyv1.CallToolResponse, error) {
	return t.s.caller.Call(ctx, r, call.Listener{})
}

func (t *tools) StreamCallTool(r *toolproxyv1.StreamCallToolRequest, stream grpc.ServerStreamingServer[toolproxyv1.StreamCallToolResponse]) error {
	if r.GetCall() == nil {
		return invalid("call", "is missing")
	}
	return t.s.caller.Stream(stream.Context(), r.GetCall(), stream.Send)
}

func (t *tools) SearchTools(context.Context, *toolproxyv1.SearchToolsRequest) (*toolproxyv1.SearchToolsResponse, error) {
	return nil, rpc.Unimplemented("SearchTools: search is not built yet; ListTools lists all tools")
}

func (t *tools) GetPromptSection(context.Context, *toolproxyv1.GetPromptSectionRequest) (*toolproxyv1.GetPromptSectionResponse, error) {
	return nil, rpc.Unimplemented("GetPromptSection: prompt text is not built yet; ListTools and ListServers have what it would say")
}
