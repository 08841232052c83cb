package registry

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// registryServer serves RegistryService.
type registryServer struct {
	registryv1.UnsafeRegistryServiceServer
	s *Service
}

const (
	maxPageSize  = 1000
	maxPageBytes = 5 << 19 // pages end before 3 MiB, whatever the last entry brings
)

func pageSize(asked int32, byDefault int) (int, error) {
	switch {
	case asked < 0:
		return 0, invalidField("page_size", fmt.Sprintf("is %d, must not be negative", asked))
	case asked == 0:
		return byDefault, nil
	}
	return min(int(asked), maxPageSize), nil
}

func invalidField(field, description string) error {
	return fault.New(fault.InvalidArguments, "%s %s", field, description).
		WithViolations(fault.Violation{Field: field, Description: description})
}

var errPageToken = invalidField("page_token", "is not one that this list returned: begin again without it")

// ListServers lists the effective entries. Where the effective snapshot is what this replica's files say, the sources
// are those of today; else those of the time when the snapshot was first seen.
func (r *registryServer) ListServers(_ context.Context, req *registryv1.ListServersRequest) (*registryv1.ListServersResponse, error) {
	size, err := pageSize(req.GetPageSize(), 100)
	if err != nil {
		return nil, err
	}
	now, err := r.s.feed.current()
	if err != nil {
		return nil, err
	}
	content := now.content
	if own := r.s.own.Load(); own != nil && own.id == now.ID {
		content = own.content
	}
	after, err := decodeCursor(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	rest := content.Servers
	if after != nil {
		rest = rest[len(rest)-countAfter(rest, *after):]
	}
	out := &registryv1.ListServersResponse{SnapshotId: string(now.ID)}
	bytes := 0
	for i := range rest {
		m := configuredMessage(&rest[i])
		m.Writable = r.s.isWritable(&rest[i])
		bytes += proto.Size(m)
		if len(out.Servers) == size || bytes > maxPageBytes && len(out.Servers) > 0 {
			out.NextPageToken = encodeCursor(rest[i-1])
			break
		}
		out.Servers = append(out.Servers, m)
	}
	return out, nil
}

// countAfter returns how many of entries, which are in order, come after cursor.
func countAfter(entries []snapshot.Entry, cursor snapshot.Entry) int {
	n := 0
	for _, e := range slices.Backward(entries) {
		if snapshot.Compare(e, cursor) <= 0 {
			break
		}
		n++
	}
	return n
}

// A cursor is the entry that a page ended with. Entries may come and go between pages.
func encodeCursor(e snapshot.Entry) string {
	kind := "s"
	if e.Synthetic {
		kind = "f"
	}
	return base64.RawURLEncoding.EncodeToString([]byte(kind + e.Name))
}

func decodeCursor(token string) (*snapshot.Entry, error) {
	if token == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) < 2 || b[0] != 's' && b[0] != 'f' {
		return nil, errPageToken
	}
	return &snapshot.Entry{Name: string(b[1:]), Synthetic: b[0] == 'f'}, nil
}

// GetSnapshot returns one snapshot.
func (r *registryServer) GetSnapshot(ctx context.Context, req *registryv1.GetSnapshotRequest) (*registryv1.GetSnapshotResponse, error) {
	now, err := r.s.feed.current()
	if err != nil {
		return nil, err
	}
	id := snapshot.ID(req.GetSnapshotId())
	if id == "" || id == now.ID {
		return &registryv1.GetSnapshotResponse{Snapshot: now.message, Hold: now.hold}, nil
	}
	stored, content, err := r.s.stored(ctx, id)
	if err != nil {
		return nil, err
	}
	return &registryv1.GetSnapshotResponse{Snapshot: snapshotMessage(stored, content), Hold: now.hold}, nil
}

func (s *Service) stored(ctx context.Context, id snapshot.ID) (snapshot.Stored, *snapshot.Content, error) {
	if !id.Valid() {
		return snapshot.Stored{}, nil, snapshot.ErrNotFound
	}
	stored, err := s.store.Get(ctx, id)
	if err != nil {
		return snapshot.Stored{}, nil, storeFault(err)
	}
	content, err := snapshot.Decode(id, stored.Content)
	if err != nil {
		return snapshot.Stored{}, nil, err
	}
	return stored, content, nil
}

func (s *Service) contentOf(ctx context.Context, id snapshot.ID) (*snapshot.Content, error) {
	_, content, err := s.stored(ctx, id)
	return content, err
}

// ListSnapshots lists activations, newest first.
func (r *registryServer) ListSnapshots(ctx context.Context, req *registryv1.ListSnapshotsRequest) (*registryv1.ListSnapshotsResponse, error) {
	size, err := pageSize(req.GetPageSize(), 50)
	if err != nil {
		return nil, err
	}
	var before int64
	if token := req.GetPageToken(); token != "" {
		before, err = strconv.ParseInt(token, 10, 64)
		if err != nil || before <= 0 {
			return nil, errPageToken
		}
	}
	now, err := r.s.feed.current()
	if err != nil {
		return nil, err
	}
	listed, err := r.s.store.List(ctx, snapshot.Revision(before), size+1)
	if err != nil {
		return nil, storeFault(err)
	}
	out := &registryv1.ListSnapshotsResponse{Hold: now.hold}
	bytes := 0
	for _, l := range listed {
		m := activationMessage(l.Activation)
		m.CreateTime = timestamppb.New(l.CreateTime)
		m.ServerCount = int32(l.ServerCount)
		bytes += proto.Size(m)
		if len(out.Snapshots) == size || bytes > maxPageBytes && len(out.Snapshots) > 0 {
			out.NextPageToken = strconv.FormatInt(out.Snapshots[len(out.Snapshots)-1].Revision, 10)
			break
		}
		out.Snapshots = append(out.Snapshots, m)
	}
	return out, nil
}

// WatchSnapshots sends what is effective and then whatever becomes so. A watcher that is slow misses what was
// effective meanwhile. The stream ends when the server shuts down.
func (r *registryServer) WatchSnapshots(req *registryv1.WatchSnapshotsRequest, stream grpc.ServerStreamingServer[registryv1.WatchSnapshotsResponse]) error {
	ctx := stream.Context()
	if req.GetAfterRevision() < 0 {
		return invalidField("after_revision", "must not be negative")
	}
	sent, resumed := snapshot.Revision(req.GetAfterRevision()), false
	for {
		now, next := r.s.feed.watch()
		if now != nil && !resumed {
			var err error
			if sent, err = r.s.resumeAt(ctx, sent); err != nil {
				return err
			}
			resumed = true
			continue
		}
		if now != nil && now.Revision > sent {
			if err := stream.Send(&registryv1.WatchSnapshotsResponse{Snapshot: now.message}); err != nil {
				return err
			}
			sent = now.Revision
			continue
		}
		select {
		case <-next:
		case <-rpc.Draining(ctx):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// resumeAt returns the revision after which a watcher goes on that has seen after. That is after itself, unless the
// database never had it: then its revisions began anew, and the watcher, who would wait for ever, gets them all.
func (s *Service) resumeAt(ctx context.Context, after snapshot.Revision) (snapshot.Revision, error) {
	now, err := s.feed.current()
	if err != nil {
		return 0, err
	}
	if after <= now.Revision {
		return after, nil
	}
	now, err = s.feed.refresh(ctx) // the watcher may have seen it at another replica, ahead of this one
	if err != nil {
		return 0, storeFault(err)
	}
	if after <= now.Revision {
		return after, nil
	}
	s.log.WarnContext(ctx, "a watcher asks for revisions after one that the database does not have: was it replaced?",
		"after_revision", after, "revision", now.Revision)
	return 0, nil
}

// storeFault returns err for a caller: what the store did not say itself means that its database is away, and a read that
// did not happen may be tried again.
func storeFault(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fault.New(fault.NotReady, "the registry's database does not answer: try again, and see the registry's log").Because(err)
}

// isWritable reports whether the API may change e.
func (s *Service) isWritable(e *snapshot.Entry) bool {
	return s.writable.Name != "" && e.Source == s.writable.Name && !e.Synthetic
}
