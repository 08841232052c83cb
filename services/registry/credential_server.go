package registry

import (
	"context"
	"errors"
	"fmt"

	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// credentialServer serves CredentialService. Without internal it refuses what only Toolherd's own services may ask,
// on top of the roles that pkg/rpc checks: a service's token that leaked opens nothing on a public listener.
type credentialServer struct {
	credentialv1.UnsafeCredentialServiceServer
	s        *Service
	internal bool
}

var errNotHere = fault.New(fault.Forbidden, "GetAccessToken and ResolveSecrets are served on the internal listener only")

func (c *credentialServer) GetAccessToken(context.Context, *credentialv1.GetAccessTokenRequest) (*credentialv1.GetAccessTokenResponse, error) {
	if !c.internal {
		return nil, errNotHere
	}
	return nil, rpc.Unimplemented("GetAccessToken: " + noLogin)
}

func (c *credentialServer) ResolveSecrets(ctx context.Context, req *credentialv1.ResolveSecretsRequest) (*credentialv1.ResolveSecretsResponse, error) {
	if !c.internal {
		return nil, errNotHere
	}
	refs, err := c.s.refs(ctx, req)
	if err != nil {
		return nil, err
	}
	// First, so that what is handed out here is not deleted a moment later.
	if err := c.s.store.UseSecrets(ctx, refs); err != nil {
		return nil, storeFault(err)
	}
	secrets, err := c.s.open(ctx, refs)
	if err != nil {
		return nil, err
	}
	return &credentialv1.ResolveSecretsResponse{Secrets: secrets}, nil
}

// maxRefs bounds how many secrets one request may name.
const maxRefs = 1000

// refs returns the references to the secrets that are asked for: those that the request names, else those of its entry.
func (s *Service) refs(ctx context.Context, req *credentialv1.ResolveSecretsRequest) ([]snapshot.Ref, error) {
	named := req.GetRefs()
	if len(named) == 0 {
		entry, err := s.resolvable(ctx, snapshot.ID(req.GetSnapshotId()), req.GetServer())
		if err != nil {
			return nil, err
		}
		return entry.Refs(), nil
	}
	if len(named) > maxRefs {
		return nil, fault.New(fault.InvalidArguments, "refs: %d of %d at most", len(named), maxRefs)
	}
	now, err := s.feed.current()
	if err != nil {
		return nil, err
	}
	// The snapshot that a task was submitted under may be gone, and its server too: the task goes to its end all the same.
	// Trust that was revoked ends it.
	if e := now.content.Find(req.GetServer()); e != nil && e.State == snapshot.Untrusted {
		return nil, untrusted(e)
	}
	refs := make([]snapshot.Ref, len(named))
	for i, r := range named {
		refs[i] = snapshot.Ref{Server: req.GetServer(), FieldPath: r.GetFieldPath(), MAC: r.GetMac()}
	}
	return refs, nil
}

func untrusted(e *snapshot.Entry) error {
	return fault.New(fault.ServerUntrusted, "server %q is not trusted: %s", e.Name, e.Reason).With("server", e.Name)
}

// resolvable returns the entry of server in the snapshot id if its secrets may be handed out: it was active there, and
// its project has not lost the trust since.
func (s *Service) resolvable(ctx context.Context, id snapshot.ID, server string) (*snapshot.Entry, error) {
	now, err := s.feed.current()
	if err != nil {
		return nil, err
	}
	content := now.content
	if id != now.ID {
		if content, err = s.contentOf(ctx, id); err != nil {
			return nil, err
		}
	}
	entry := content.Find(server)
	if entry == nil {
		return nil, fault.New(fault.ServerNotFound, "snapshot %s has no server %q", id, server).With("server", server)
	}
	if e := now.content.Find(server); e != nil && e.State == snapshot.Untrusted {
		entry = e
	}
	switch entry.State {
	case snapshot.Active:
		return entry, nil
	case snapshot.Untrusted:
		return nil, untrusted(entry)
	case snapshot.Disabled:
		return nil, fault.New(fault.ServerDisabled, "server %q is disabled: %s", server, entry.Reason).With("server", server)
	default:
		return nil, fault.New(fault.ServerError, "server %q is in error: %s", server, entry.Reason).With("server", server)
	}
}

// open decrypts the secrets that refs lead to, by field path.
func (s *Service) open(ctx context.Context, refs []snapshot.Ref) (map[string]string, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	if s.key == nil {
		return nil, fault.New(fault.ServerError, "server %q has literal secrets, but this registry has no key: set registry.secret_key_file", refs[0].Server)
	}
	stored, err := s.store.Secrets(ctx, refs)
	if err != nil {
		return nil, storeFault(err)
	}
	out := map[string]string{}
	for _, x := range stored {
		plain, err := s.key.Open(x.Ciphertext, x.Ref.Bind())
		if errors.Is(err, secret.ErrOtherKey) {
			return nil, fault.New(fault.ServerError, "%s of server %q was encrypted under the secret key %s, this registry has %s: restore that key, or restart so that the files are published under this one",
				x.FieldPath, x.Server, x.KeyID, s.key.ID()).Because(err)
		}
		if err != nil {
			return nil, fmt.Errorf("open %s of server %s: %w", x.FieldPath, x.Server, err)
		}
		out[x.FieldPath] = string(plain)
	}
	for _, r := range refs {
		if _, ok := out[r.FieldPath]; !ok {
			return nil, fault.New(fault.ServerError, "%s of server %q is not stored: restore the database, or change the literal in its file", r.FieldPath, r.Server).With("server", r.Server)
		}
	}
	return out, nil
}
