package registry

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/write"
)

const (
	// lockPatience is how long a write waits for the one before, at most.
	lockPatience = 30 * time.Second
	// writePatience bounds what a write does once it has the lock, whatever became of its request.
	writePatience = time.Minute
)

// written is what is in force after a write.
type written struct {
	id       snapshot.ID
	revision int64
	etag     string
	warnings []*registryv1.Problem
}

// ReplaceConfig replaces the writable layer whole.
func (r *registryServer) ReplaceConfig(ctx context.Context, req *registryv1.ReplaceConfigRequest) (*registryv1.ReplaceConfigResponse, error) {
	out, err := r.s.change(ctx, req.GetEtag(), func(b *base) (*candidate, error) {
		c, problem := b.replace(req.GetConfigJson())
		if problem != nil {
			return nil, refusal([]serverconfig.Problem{*problem})
		}
		return c, nil
	})
	if err != nil {
		return nil, err
	}
	return &registryv1.ReplaceConfigResponse{SnapshotId: string(out.id), Revision: out.revision, Etag: out.etag, Problems: out.warnings}, nil
}

// PutServer adds or replaces one server of the writable layer.
func (r *registryServer) PutServer(ctx context.Context, req *registryv1.PutServerRequest) (*registryv1.PutServerResponse, error) {
	out, err := r.s.change(ctx, req.GetEtag(), func(b *base) (*candidate, error) {
		c := b.keepAll()
		c.put(req.GetName(), json.RawMessage(req.GetServerJson()))
		return c, nil
	})
	if err != nil {
		return nil, err
	}
	return &registryv1.PutServerResponse{SnapshotId: string(out.id), Revision: out.revision, Etag: out.etag, Problems: out.warnings}, nil
}

// DeleteServer removes one server of the writable layer.
func (r *registryServer) DeleteServer(ctx context.Context, req *registryv1.DeleteServerRequest) (*registryv1.DeleteServerResponse, error) {
	name := req.GetName()
	out, err := r.s.change(ctx, req.GetEtag(), func(b *base) (*candidate, error) {
		if b.stored(name) == nil {
			if raw, ok := b.elsewhere(name); ok {
				return nil, fault.New(fault.ConfigConflict, "server %q is defined by %s, which the API does not write: edit that file, or disable the server", name, raw.Layer.Name).With("server", name)
			}
			return nil, errNoServer(name)
		}
		c := b.keepAll()
		c.remove(name)
		return c, nil
	})
	if err != nil {
		return nil, err
	}
	return &registryv1.DeleteServerResponse{SnapshotId: string(out.id), Revision: out.revision, Etag: out.etag}, nil
}

func errNoServer(name string) error {
	return fault.New(fault.ServerNotFound, "there is no server %q: ListServers lists those there are", name).With("server", name)
}

// ValidateConfig says what ReplaceConfig would find, and writes nothing.
func (r *registryServer) ValidateConfig(_ context.Context, req *registryv1.ValidateConfigRequest) (*registryv1.ValidateConfigResponse, error) {
	if _, err := r.s.feed.current(); err != nil {
		return nil, err
	}
	content, err := r.s.writableContent()
	if err != nil {
		return nil, err
	}
	b, err := r.s.newBase(content)
	if err != nil {
		return nil, err
	}
	c, problem := b.replace(req.GetConfigJson())
	if problem != nil {
		return &registryv1.ValidateConfigResponse{Problems: candidateMessages([]serverconfig.Problem{*problem})}, nil
	}
	return &registryv1.ValidateConfigResponse{Problems: candidateMessages(c.allProblems())}, nil
}

// change edits the writable file and publishes what it says then: read, merge, validate, write and publish under one lock.
// Where nothing changes, nothing is written.
func (s *Service) change(ctx context.Context, etag string, edit func(*base) (*candidate, error)) (written, error) {
	var out written
	err := s.locked(ctx, etag, func(ctx context.Context, b *base, file *write.Locked) error {
		c, err := edit(b)
		if err != nil {
			return err
		}
		if err := refusal(c.problems); err != nil {
			return err
		}
		out, err = s.save(ctx, c, file)
		return err
	})
	return out, err
}

// locked calls f with the writable file locked and read, and with what the other files say up to this moment. From then on
// the end of the request changes nothing any more. The file is nil if there is none that the API may write.
func (s *Service) locked(ctx context.Context, etag string, f func(ctx context.Context, b *base, file *write.Locked) error) (err error) {
	if _, err := s.feed.current(); err != nil {
		return err
	}
	var file *write.Locked
	var content []byte
	if s.writer != nil {
		if file, err = s.lock(ctx); err != nil {
			return err
		}
		defer func() {
			if closeErr := file.Close(); closeErr != nil {
				s.log.WarnContext(ctx, "configuration file not unlocked", "file", s.writable.Path, "err", closeErr)
			}
		}()
		if content, err = file.Read(); err != nil {
			return s.unreadable(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writePatience)
	defer cancel()
	if etag != "" && etag != s.etag(content) {
		return fault.New(fault.ConfigConflict, "%s says something else than when it was read under this etag: get it again, make the change anew, and give the etag of then", s.writable.Name)
	}
	if err := s.work.ask(func(ctx context.Context, p *publisher) error { return p.runOnce(ctx) }); err != nil {
		return storeFault(err)
	}
	b, err := s.newBase(content)
	if err != nil {
		return err
	}
	return f(ctx, b, file)
}

// lock locks the writable file.
func (s *Service) lock(ctx context.Context) (*write.Locked, error) {
	waiting, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	file, err := s.writer.Lock(waiting)
	switch {
	case err == nil:
		return file, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fault.New(fault.ConfigConflict, "another process has been writing %s for %v: try again", s.writable.Name, lockPatience).Because(err)
	}
	return nil, fault.Of(fault.Internal, "%s cannot be locked, and is unchanged: %v: let the user that runs Toolherd write its directory", s.writable.Name, err).Because(err)
}

// errNoFile says that there is nothing that the API may write.
var errNoFile = fault.New(fault.ConfigConflict, "there is no file that the API may write: start the registry with --mcp-config, or as a user with a home directory and without --no-mcp")

// save stores c, if it changes anything, and returns what is in force then.
func (s *Service) save(ctx context.Context, c *candidate, file *write.Locked) (written, error) {
	if file == nil {
		return written{}, errNoFile
	}
	content, err := c.compose()
	if err != nil {
		return written{}, err
	}
	if content == nil {
		return s.inForce(c.content, c.problems)
	}
	marks, err := s.marks.All(ctx)
	if err != nil {
		return written{}, storeFault(err)
	}
	// Before the file says it, so that at no moment an entry of the API's counts as one of its file.
	definitions := c.definitions(marks)
	if err := s.marks.Add(ctx, definitions); err != nil {
		return written{}, storeFault(err)
	}
	by := caller(ctx)
	err = s.work.ask(func(ctx context.Context, p *publisher) error {
		if err := file.Write(content); err != nil {
			return fault.Of(fault.Internal, "%s cannot be written, and is unchanged: %v", s.writable.Name, err).Because(err)
		}
		s.log.InfoContext(ctx, "configuration written through the API", "file", s.writable.Path, "actor", by, "servers", c.touched)
		return p.publishAs(ctx, by)
	})
	if err != nil {
		return written{}, err
	}
	if err := s.marks.Keep(ctx, s.writable.Path, definitions); err != nil {
		s.log.WarnContext(ctx, "definitions that are gone are still noted", "file", s.writable.Path, "err", err)
	}
	return s.inForce(content, c.problems)
}

// publishAs publishes what is said by now, in the name of whoever changed it.
func (p *publisher) publishAs(ctx context.Context, by string) error {
	p.pending, p.anew, p.actor = true, true, by
	defer func() { p.actor = actor }()
	if err := p.runOnce(ctx); err != nil {
		return fault.Of(fault.Unknown, "the change is stored, but not yet in force: it will be when the registry's database answers; ListServers shows it then").Because(err)
	}
	return nil
}

// inForce returns what is in force, where the writable file has this content.
func (s *Service) inForce(content []byte, problems []serverconfig.Problem) (written, error) {
	now, err := s.feed.current()
	if err != nil {
		return written{}, err
	}
	return written{id: now.ID, revision: int64(now.Revision), etag: s.etag(content), warnings: candidateMessages(problems)}, nil
}
