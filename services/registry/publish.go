package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/source"
	"github.com/toolherd/toolherd/services/registry/internal/verdict"
)

// actor is who activates what the files say.
const actor = "files"

// view is what this replica's files say. It is immutable.
type view struct {
	id      snapshot.ID
	content *snapshot.Content
	raw     map[string]verdict.Raw
}

// publisher publishes what the files say. Only its loop uses it.
type publisher struct {
	s       *Service
	files   *source.Files
	last    snapshot.ID // what it published last
	pending bool        // the files changed and that is not published
	anew    bool        // it is to be published even if it is what this replica published last
	actor   string      // who publishes
}

// publishLoop publishes at once and whenever the files say something else. It closes published after the first time.
func (s *Service) publishLoop(ctx context.Context, published chan<- struct{}) error {
	p := &publisher{s: s, files: source.New(s.layers, s.log), pending: true, actor: actor}
	p.files.Watch()
	defer p.files.Close()
	defer s.work.close()
	wait := backoff.New(backoff.Config{Base: 100 * time.Millisecond, Cap: 5 * time.Second, Jitter: 0.2})
	failing := false
	for {
		err := p.runOnce(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if fault.Is(err, fault.TasksUnavailable) {
			return err
		}
		if err != nil {
			if !failing {
				s.log.WarnContext(ctx, "cannot publish the configuration, trying again", "err", err)
			}
			failing = true
			if err := s.work.sleep(ctx, wait.Next()); err != nil {
				return err
			}
			s.work.run(ctx, p)
			continue
		}
		failing = false
		wait.Reset()
		if published != nil {
			close(published)
			published = nil
		}
		if err := p.files.Wait(ctx, s.work.wanted); err != nil {
			return err
		}
		s.work.run(ctx, p)
	}
}

// attempts bounds how often one round yields to other publishers.
const attempts = 10

// runOnce checks the files and, if they say something else than what was published last, publishes that.
func (p *publisher) runOnce(ctx context.Context) error {
	p.pending = p.files.Check(time.Now()) || p.pending
	if !p.pending {
		return nil
	}
	for range attempts {
		base, err := p.s.store.Head(ctx)
		if err != nil && !errors.Is(err, snapshot.ErrNone) {
			return err
		}
		// Read after the head was: whatever another replica published up to then is not newer than this.
		p.files.Check(time.Now())
		err = p.publish(ctx, base)
		if errors.Is(err, snapshot.ErrMoved) {
			continue
		}
		return err
	}
	return fmt.Errorf("other registries published %d times meanwhile", attempts)
}

// publish makes what the files say effective, or a candidate where an activation holds.
func (p *publisher) publish(ctx context.Context, base snapshot.Head) error {
	marks, err := p.s.marks.All(ctx)
	if err != nil {
		return err
	}
	result := p.s.judge.DecideMarked(p.files.Present(), marks)
	if p.last == "" && len(result.NoTasks) > 0 {
		return errNoTasks(result)
	}
	id, content, err := result.Content.Encode()
	if err != nil {
		return err
	}
	own := &view{id: id, content: &result.Content, raw: result.Raw}
	if err := p.withdraw(ctx, base); err != nil {
		return err
	}
	if id == p.last && !p.anew {
		p.s.own.Store(own)
		p.pending = false
		return nil
	}
	sealed, err := p.s.seal(result.Literals)
	if err != nil {
		return err
	}
	out, err := p.s.store.Publish(ctx, snapshot.Publication{
		ID: id, Content: content, ServerCount: len(result.Content.Servers), Secrets: sealed,
		Base: base.Revision, BaseCandidate: base.Candidate, Actor: p.actor, Reason: p.whatChanged(ctx, base, own.content),
	})
	if err != nil {
		return err
	}
	p.s.own.Store(own)
	if _, err := p.s.feed.refresh(ctx); err != nil {
		return err
	}
	p.last, p.pending, p.anew = id, false, false
	switch {
	case out.New:
		p.s.log.InfoContext(ctx, "configuration published",
			"snapshot_id", id, "revision", out.Revision, "server_count", len(own.content.Servers), "change", out.Reason)
	case out.Recorded:
		p.s.log.WarnContext(ctx, "configuration recorded as a candidate, an activation holds until `toolherd snapshots release`",
			"candidate", id, "snapshot_id", out.ID, "revision", out.Revision, "hold_actor", out.Actor, "hold_time", out.HoldTime)
	case out.Holds():
		p.s.log.InfoContext(ctx, "configuration waits as a candidate already", "candidate", id, "snapshot_id", out.ID)
		return nil
	default:
		p.s.log.InfoContext(ctx, "configuration is in force already", "snapshot_id", id, "revision", out.Revision)
		return nil
	}
	p.s.notify(ctx)
	return nil
}

// notify wakes the other replicas.
func (s *Service) notify(ctx context.Context) {
	if err := s.wake.Notify(ctx, topic); err != nil {
		s.log.DebugContext(ctx, "wake-up not sent", "err", err)
	}
}

// withdraw takes what is not trusted any more out of a snapshot that is held: trust that is gone beats a hold. The error
// is snapshot.ErrMoved where it did, since another snapshot is effective then.
func (p *publisher) withdraw(ctx context.Context, base snapshot.Head) error {
	if !base.Holds() {
		return nil
	}
	held, err := p.s.contentOf(ctx, base.ID)
	if err != nil {
		return err
	}
	content, names := p.s.judge.Withdraw(held)
	if len(names) == 0 {
		return nil
	}
	id, encoded, err := content.Encode()
	if err != nil {
		return err
	}
	out, err := p.s.store.Publish(ctx, snapshot.Publication{
		ID: id, Content: encoded, ServerCount: len(content.Servers), Base: base.Revision, BaseCandidate: base.Candidate, Amends: true,
		Actor: base.Actor, Reason: base.Reason + " (without what is not trusted any more: " + snapshot.Names(names) + ")",
	})
	if err != nil {
		return err
	}
	p.s.log.WarnContext(ctx, "the snapshot that is held has servers that are not trusted any more: taken out of it",
		"servers", names, "held", base.ID, "snapshot_id", out.ID, "revision", out.Revision)
	p.s.notify(ctx)
	return snapshot.ErrMoved
}

// errNoTasks keeps the registry from starting: what the operator wrote down cannot work as it stands.
func errNoTasks(r verdict.Result) error {
	e := r.Content.Find(r.NoTasks[0])
	others := ""
	if n := len(r.NoTasks) - 1; n > 0 {
		others = fmt.Sprintf(" (and %d more)", n)
	}
	return fault.New(fault.TasksUnavailable, "server %q%s cannot be used: %s; to mend it: %s", e.Name, others,
		strings.TrimPrefix(e.Reason, string(fault.TasksUnavailable)+": "), e.FixCommand).With("server", e.Name)
}

// whatChanged describes content against what was effective before, or was to be, for the record.
func (p *publisher) whatChanged(ctx context.Context, base snapshot.Head, content *snapshot.Content) string {
	if base.Revision == 0 {
		return "first configuration"
	}
	id := base.ID
	if base.Holds() {
		candidates, err := p.s.store.Candidates(ctx)
		if err != nil || len(candidates) == 0 {
			return ""
		}
		id = candidates[0].ID
	}
	before, err := p.s.contentOf(ctx, id)
	if err != nil {
		return ""
	}
	return snapshot.Describe(before, content)
}

// seal encrypts literals, each bound to its place.
func (s *Service) seal(literals []verdict.Literal) ([]snapshot.Secret, error) {
	var out []snapshot.Secret
	for _, l := range literals {
		ciphertext, err := s.key.Seal([]byte(l.Value), l.Ref.Bind())
		if err != nil {
			return nil, fmt.Errorf("seal a literal of %s: %w", l.Server, err)
		}
		out = append(out, snapshot.Secret{Ref: l.Ref, Ciphertext: ciphertext, KeyID: s.key.ID()})
	}
	return out, nil
}
