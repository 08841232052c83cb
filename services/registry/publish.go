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
}

// publishLoop publishes at once and whenever the files say something else. It closes published after the first time.
func (s *Service) publishLoop(ctx context.Context, published chan<- struct{}) error {
	p := &publisher{s: s, files: source.New(s.layers, s.log), pending: true}
	p.files.Watch()
	defer p.files.Close()
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
			if err := backoff.Sleep(ctx, wait.Next()); err != nil {
				return err
			}
			continue
		}
		failing = false
		wait.Reset()
		if published != nil {
			close(published)
			published = nil
		}
		if err := p.files.Wait(ctx); err != nil {
			return err
		}
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

func (p *publisher) publish(ctx context.Context, base snapshot.Activation) error {
	result := p.s.judge.Decide(p.files.Present())
	if p.last == "" && len(result.NoTasks) > 0 {
		return errNoTasks(result)
	}
	id, content, err := result.Content.Encode()
	if err != nil {
		return err
	}
	own := &view{id: id, content: &result.Content, raw: result.Raw}
	if id == p.last {
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
		Base: base.Revision, Actor: actor, Reason: p.whatChanged(ctx, base, own.content),
	})
	if err != nil {
		return err
	}
	p.s.own.Store(own)
	if _, err := p.s.feed.refresh(ctx); err != nil {
		return err
	}
	p.last, p.pending = id, false
	if !out.New {
		p.s.log.InfoContext(ctx, "configuration is in force already", "snapshot_id", id, "revision", out.Revision)
		return nil
	}
	p.s.log.InfoContext(ctx, "configuration published",
		"snapshot_id", id, "revision", out.Revision, "server_count", len(own.content.Servers), "change", out.Reason)
	if err := p.s.wake.Notify(ctx, topic); err != nil {
		p.s.log.DebugContext(ctx, "wake-up not sent", "err", err)
	}
	return nil
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

// whatChanged describes content against what was effective before, for the record.
func (p *publisher) whatChanged(ctx context.Context, base snapshot.Activation, content *snapshot.Content) string {
	if base.Revision == 0 {
		return "first configuration"
	}
	stored, err := p.s.store.Get(ctx, base.ID)
	if err != nil {
		return ""
	}
	before, err := snapshot.Decode(base.ID, stored.Content)
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
