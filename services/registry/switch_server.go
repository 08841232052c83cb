package registry

import (
	"context"
	"encoding/json"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
	"github.com/toolherd/toolherd/services/registry/internal/mark"
	"github.com/toolherd/toolherd/services/registry/internal/verdict"
	"github.com/toolherd/toolherd/services/registry/internal/write"
)

// SetServerEnabled switches the entry in force of a name: in the writable file, or beside a file that the API does not
// write. To switch off always works; what is switched on is validated and judged as if it were new.
func (r *registryServer) SetServerEnabled(ctx context.Context, req *registryv1.SetServerEnabledRequest) (*registryv1.SetServerEnabledResponse, error) {
	name, enabled := req.GetName(), req.GetEnabled()
	var out written
	err := r.s.locked(ctx, req.GetEtag(), func(ctx context.Context, b *base, file *write.Locked) error {
		var err error
		if raw, ok := b.elsewhere(name); ok {
			out, err = b.overlay(ctx, raw, mark.Overlay{Place: mark.Place{Path: raw.Layer.Path, Server: name}, Enabled: enabled})
			return err
		}
		stored := b.stored(name)
		if stored == nil {
			return errNoServer(name)
		}
		entry, err := r.s.switched(name, stored, enabled)
		if err != nil {
			return err
		}
		c := b.keepAll()
		c.set(name, entry)
		out, err = r.s.save(ctx, c, file)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &registryv1.SetServerEnabledResponse{SnapshotId: string(out.id), Revision: out.revision, Etag: out.etag}, nil
}

// switched returns an entry switched on or off, if it may be.
func (s *Service) switched(name string, stored json.RawMessage, enabled bool) (json.RawMessage, error) {
	entry, ok := serverconfig.SetEnabled(stored, enabled)
	if !ok {
		return nil, fault.New(fault.ConfigInvalid, "the entry of server %q is no object, so that it has no switch: replace or delete it", name).With("server", name)
	}
	if !enabled {
		return entry, nil
	}
	if err := refusal(s.check(name, entry)); err != nil {
		return nil, err
	}
	root, err := strictjson.Parse(entry, entryLimits)
	if err != nil {
		return nil, err
	}
	return entry, refusal(s.refusals(name, root))
}

// overlay notes o, which is about the entry raw of a file that the API does not write, or that its file decides again.
func (b *base) overlay(ctx context.Context, raw verdict.Raw, o mark.Overlay) (written, error) {
	s := b.s
	if _, err := s.switched(o.Server, raw.JSON, o.Enabled); err != nil {
		return written{}, err
	}
	var err error
	if model, _ := serverconfig.Decode(o.Server, raw.JSON); model.Enabled == o.Enabled {
		err = s.marks.Clear(ctx, o.Place)
	} else {
		err = s.marks.Switch(ctx, o, caller(ctx))
	}
	if err != nil {
		return written{}, storeFault(err)
	}
	by := caller(ctx)
	s.log.InfoContext(ctx, "server switched through the API", "server", o.Server, "file", o.Path, "enabled", o.Enabled, "actor", by)
	if err := s.work.ask(func(ctx context.Context, p *publisher) error { return p.publishAs(ctx, by) }); err != nil {
		return written{}, err
	}
	return s.inForce(b.content, nil)
}
