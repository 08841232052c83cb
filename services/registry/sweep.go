package registry

import (
	"context"
	"errors"
	"time"

	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

const (
	// secretMargin is how much longer than the longest task a secret is kept that nobody used: the use is known to an hour,
	// and a proxy may take a task in under a snapshot that was replaced a moment before.
	secretMargin = 24 * time.Hour
	// defaultMaxTaskAge is tasks.max_age where nothing else is configured.
	defaultMaxTaskAge = 720 * time.Hour
	// sweepInterval is how often use is noted and what is left over is looked for.
	sweepInterval = time.Hour
	// sweepBatch bounds how many secrets one round looks at. It is far above what stored snapshots, whose secrets count as
	// long as they are stored, can refer to.
	sweepBatch = 100_000
)

// sweepLoop keeps the secrets of what is in force marked as used and deletes those that nothing refers to any more.
//
// A task refers to the secrets of the entry it was submitted under, and only taskworker knows which tasks live. It need not
// be asked: that entry was in force when the task was submitted, the task ends within Config.MaxTaskAge, and whatever
// resolves its secrets on its way marks them as used again.
func (s *Service) sweepLoop(ctx context.Context, published <-chan struct{}) error {
	select {
	case <-published:
	case <-ctx.Done():
		return ctx.Err()
	}
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		n, err := s.sweep(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			s.log.WarnContext(ctx, "cannot look for secrets that are not used any more, trying again in an hour", "err", err)
		case n > 0:
			s.log.InfoContext(ctx, "secrets deleted that no snapshot and no task can refer to", "count", n)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// sweep does one round and returns how many secrets it deleted.
func (s *Service) sweep(ctx context.Context) (int, error) {
	now, err := s.feed.refresh(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.store.UseSecrets(ctx, refsOf(now.content)); err != nil {
		return 0, err
	}
	unused := s.maxTaskAge + secretMargin
	stale, err := s.store.StaleSecrets(ctx, unused, sweepBatch)
	if err != nil || len(stale) == 0 {
		return 0, err
	}
	kept, err := s.referred(ctx)
	if err != nil {
		return 0, err
	}
	var left []snapshot.Ref
	for _, r := range stale {
		if !kept[r] {
			left = append(left, r)
		}
	}
	if len(left) == 0 {
		return 0, nil
	}
	// One that a publication refers to meanwhile is in use by then, and stays.
	return s.store.DropSecrets(ctx, left, unused)
}

// referred returns the secrets that stored snapshots refer to: any of them may be activated again.
func (s *Service) referred(ctx context.Context) (map[snapshot.Ref]bool, error) {
	ids := map[snapshot.ID]bool{}
	for before := snapshot.Revision(0); ; {
		page, err := s.store.List(ctx, before, maxPageSize)
		if err != nil {
			return nil, err
		}
		for _, l := range page {
			ids[l.ID] = true
		}
		if len(page) < maxPageSize {
			break
		}
		before = page[len(page)-1].Revision
	}
	candidates, err := s.store.Candidates(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range candidates {
		ids[c.ID] = true
	}
	out := map[snapshot.Ref]bool{}
	for id := range ids {
		content, err := s.contentOf(ctx, id)
		if errors.Is(err, snapshot.ErrNotFound) { // pruned meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, r := range refsOf(content) {
			out[r] = true
		}
	}
	return out, nil
}

func refsOf(c *snapshot.Content) []snapshot.Ref {
	var out []snapshot.Ref
	for i := range c.Servers {
		out = append(out, c.Servers[i].Refs()...)
	}
	return out
}
