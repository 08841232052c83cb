package registry

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/verdict"
)

// ActivateSnapshot makes a stored snapshot effective and holds it. No server is asked whether it works.
func (r *registryServer) ActivateSnapshot(ctx context.Context, req *registryv1.ActivateSnapshotRequest) (*registryv1.ActivateSnapshotResponse, error) {
	if err := checkReason(req.GetReason()); err != nil {
		return nil, err
	}
	now, err := r.s.feed.current()
	if err != nil {
		return nil, err
	}
	id, etag := snapshot.ID(req.GetSnapshotId()), snapshot.ID(req.GetEtag())
	stored, content, err := r.s.stored(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := r.s.allow(ctx, id, content); err != nil {
		return nil, err
	}
	out, err := r.s.store.Activate(ctx, snapshot.Choice{
		ID: id, Expect: etag, Hold: true, Actor: caller(ctx), Reason: req.GetReason(),
	})
	if fault.Is(err, fault.ConfigConflict) {
		if fresh, err := r.s.feed.refresh(ctx); err == nil {
			now = fresh
		}
		return nil, fault.New(fault.ConfigConflict, "the current snapshot is %s (revision %d, by %s), not %s: look at what changed with DiffSnapshots, and give its id as the etag",
			now.ID, now.Revision, now.Actor, etag).Because(err)
	}
	if err != nil {
		return nil, err
	}
	r.s.log.WarnContext(ctx, "a snapshot was activated and holds",
		"snapshot_id", id, "revision", out.Revision, "actor", out.Actor, "reason", out.Reason)
	resp := &registryv1.ActivateSnapshotResponse{Snapshot: activationMessage(out.Activation)}
	resp.Snapshot.CreateTime = timestamppb.New(stored.CreateTime)
	resp.Snapshot.ServerCount = int32(len(content.Servers))
	if now := r.s.activated(ctx); now != nil && now.Revision == out.Revision {
		resp.Hold = now.hold
	}
	return resp, nil
}

// ReleaseActivation ends a hold.
func (r *registryServer) ReleaseActivation(ctx context.Context, req *registryv1.ReleaseActivationRequest) (*registryv1.ReleaseActivationResponse, error) {
	if err := checkReason(req.GetReason()); err != nil {
		return nil, err
	}
	if _, err := r.s.feed.current(); err != nil {
		return nil, err
	}
	out, err := r.s.store.Release(ctx, snapshot.End{Actor: caller(ctx), Reason: req.GetReason()})
	if err != nil {
		return nil, err
	}
	resp := &registryv1.ReleaseActivationResponse{Snapshot: activationMessage(out.Activation), Released: out.New}
	if out.New {
		r.s.log.InfoContext(ctx, "a hold was released",
			"snapshot_id", out.ID, "revision", out.Revision, "actor", out.Actor, "reason", out.Reason)
		r.s.activated(ctx)
	}
	stored, content, err := r.s.stored(ctx, out.ID)
	if err == nil { // what was done stays done, whether it can be described or not
		resp.Snapshot.CreateTime = timestamppb.New(stored.CreateTime)
		resp.Snapshot.ServerCount = int32(len(content.Servers))
	}
	return resp, nil
}

// activated makes a revision known that was just made, here and to the other replicas. Nil means that it could not be read
// yet; the feed will.
func (s *Service) activated(ctx context.Context) *effective {
	s.notify(ctx)
	now, err := s.feed.refresh(ctx)
	if err != nil {
		s.log.DebugContext(ctx, "cannot read what is effective after a change", "err", err)
		return nil
	}
	return now
}

// maxReason is how long a reason may be, in characters.
const maxReason = 1000

func checkReason(reason string) error {
	switch {
	case utf8.RuneCountInString(reason) > maxReason:
		return invalidField("reason", fmt.Sprintf("has %d characters, %d are allowed", utf8.RuneCountInString(reason), maxReason))
	case strings.ContainsRune(reason, 0):
		return invalidField("reason", "contains a NUL character")
	}
	return nil
}

// caller returns the name of who makes a call, for the record.
func caller(ctx context.Context) string {
	if p, ok := authn.Acting(ctx); ok && p.Name != "" {
		return p.Name
	}
	return "unknown"
}

// allow refuses a content that may not be in force today: what is active in it has to be trusted, valid, and complete with
// its secrets. All that is wrong is named at once; trust comes first.
func (s *Service) allow(ctx context.Context, id snapshot.ID, content *snapshot.Content) error {
	found := s.judge.Review(content)
	for i := range content.Servers {
		if e := &content.Servers[i]; e.State == snapshot.Active && len(e.Secrets) > 0 && s.key != nil {
			if _, err := s.open(ctx, e.Refs()); fault.Is(err, fault.ServerError) {
				found = append(found, verdict.Finding{Server: e.Name, Reason: fault.ConfigInvalid, Message: err.Error()})
			} else if err != nil {
				return err
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	reason, next := fault.ConfigInvalid, "mend the files instead"
	var violations []fault.Violation
	var texts []string
	for _, f := range found {
		if f.Reason == fault.ServerUntrusted {
			reason, next = fault.ServerUntrusted, "trust the project, or mend the files instead"
		}
		violations = append(violations, fault.Violation{Field: f.Server, Description: f.Message})
		texts = append(texts, fmt.Sprintf("server %q: %s", f.Server, f.Message))
	}
	const shown = 5
	if n := len(texts); n > shown {
		texts = append(texts[:shown], fmt.Sprintf("%d more", n-shown))
	}
	return fault.New(reason, "snapshot %s cannot be activated as it stands: %s: %s", id, strings.Join(texts, "; "), next).
		WithViolations(violations...)
}
