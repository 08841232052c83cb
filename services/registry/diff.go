package registry

import (
	"context"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// DiffSnapshots compares two stored snapshots, or one with what was effective before it.
func (r *registryServer) DiffSnapshots(ctx context.Context, req *registryv1.DiffSnapshotsRequest) (*registryv1.DiffSnapshotsResponse, error) {
	now, err := r.s.feed.current()
	if err != nil {
		return nil, err
	}
	to, after := now.Activation, now.content
	if id := snapshot.ID(req.GetToSnapshotId()); id != "" && id != now.ID {
		stored, content, err := r.s.stored(ctx, id)
		if err != nil {
			return nil, err
		}
		to, after = stored.Activation, content
	}
	from := snapshot.ID(req.GetFromSnapshotId())
	if from == "" {
		if from, err = r.s.before(ctx, to, now); err != nil {
			return nil, err
		}
	}
	before := &snapshot.Content{}
	switch from {
	case "": // nothing was effective before
	case now.ID:
		before = now.content
	default:
		if before, err = r.s.contentOf(ctx, from); err != nil {
			return nil, err
		}
	}
	diff, err := snapshot.Diff(before, after)
	if err != nil {
		return nil, err
	}
	return diffMessage(from, to.ID, diff), nil
}

// before returns the snapshot that another one replaced when it was activated last: for a candidate, which never was, the
// one that it would replace. It is empty for the first that is kept.
func (s *Service) before(ctx context.Context, a snapshot.Activation, now *effective) (snapshot.ID, error) {
	if a.Revision == 0 {
		return now.ID, nil
	}
	for revision := a.Revision; ; {
		page, err := s.store.List(ctx, revision, 100)
		if err != nil {
			return "", storeFault(err)
		}
		if len(page) == 0 {
			return "", nil
		}
		for _, l := range page {
			if l.ID != a.ID {
				return l.ID, nil
			}
		}
		revision = page[len(page)-1].Revision
	}
}

func diffMessage(from, to snapshot.ID, d snapshot.Difference) *registryv1.DiffSnapshotsResponse {
	out := &registryv1.DiffSnapshotsResponse{
		FromSnapshotId: string(from), ToSnapshotId: string(to), Added: d.Added, Removed: d.Removed,
	}
	for _, c := range d.Changed {
		out.Changed = append(out.Changed, &registryv1.ServerDiff{
			Name: c.Name, Fields: fieldMessages(c.Fields), Verdict: fieldMessages(c.Verdict), Reconnects: c.Reconnects,
		})
	}
	if d.Interceptors != nil {
		out.Interceptors = fieldMessages([]snapshot.Field{*d.Interceptors})[0]
	}
	return out
}

func fieldMessages(fields []snapshot.Field) []*registryv1.FieldDiff {
	var out []*registryv1.FieldDiff
	for _, f := range fields {
		out = append(out, &registryv1.FieldDiff{Path: f.Path, BeforeJson: f.Before, AfterJson: f.After})
	}
	return out
}
