package registry

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/pkg/serverconfig/strictjson"
	"github.com/toolherd/toolherd/services/registry/internal/source"
)

// GetConfig returns the writable file as it is at this moment, and the entries in force of all other layers as they
// were read last.
func (r *registryServer) GetConfig(context.Context, *registryv1.GetConfigRequest) (*registryv1.GetConfigResponse, error) {
	now, err := r.s.feed.current()
	if err != nil {
		return nil, err
	}
	content, err := r.s.writableContent()
	if err != nil {
		return nil, err
	}
	shown, err := r.s.showConfig(content)
	if err != nil {
		return nil, err
	}
	out := &registryv1.GetConfigResponse{
		ConfigJson: shown,
		Etag:       r.s.etag(content),
		SnapshotId: string(now.ID),
		Source:     r.s.writable.Name,
	}
	for name, raw := range r.s.own.Load().raw {
		if raw.Layer.Path == r.s.writable.Path {
			continue
		}
		out.ReadOnly = append(out.ReadOnly, &registryv1.ReadOnlyEntry{
			Name:        name,
			ServerJson:  string(serverconfig.Mask(raw.JSON)),
			Source:      raw.Layer.Name,
			SourceClass: string(raw.Layer.Class),
		})
	}
	slices.SortFunc(out.ReadOnly, func(a, b *registryv1.ReadOnlyEntry) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out, nil
}

// writableContent reads the writable file; nil means that there is none.
func (s *Service) writableContent() ([]byte, error) {
	if s.writable.Path == "" {
		return nil, nil
	}
	content, err := readFile(s.writable.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, s.unreadable(err)
	case content == nil:
		content = []byte{}
	}
	return content, nil
}

// readFile is how a writer reads its file.
func readFile(path string) ([]byte, error) {
	content, _, err := source.Read(path)
	return content, err
}

func (s *Service) unreadable(err error) error {
	return fault.New(fault.ConfigInvalid, "%s cannot be read: %v", s.writable.Name, err).Because(err)
}

// showConfig returns content with its secrets masked and all else as written. Top-level keys come in a fixed order.
func (s *Service) showConfig(content []byte) (string, error) {
	if content == nil {
		return `{"mcpServers":{}}`, nil
	}
	doc, problem := serverconfig.ParseDocument(content)
	if problem != nil {
		return "", fault.New(fault.ConfigInvalid, "%s is broken: %s", s.writable.Name, problem.String())
	}
	b := []byte(`{"mcpServers":{`)
	for i, server := range doc.Servers {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strictjson.AppendString(b, server.Name), ':')
		b = append(b, serverconfig.Mask(server.JSON)...)
	}
	b = append(b, '}')
	extras := doc.Extras
	if doc.Interceptors != nil {
		extras = append([]serverconfig.Extra{{Key: "mcpInterceptors", JSON: doc.Interceptors}}, extras...)
	}
	for _, extra := range extras {
		b = append(strictjson.AppendString(append(b, ','), extra.Key), ':')
		b = append(b, serverconfig.MaskValue(extra.Key, extra.JSON)...)
	}
	b = append(b, '}')
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return "", fmt.Errorf("show configuration: %w", err)
	}
	return out.String(), nil
}

// etag identifies content. It is keyed, so that it is no means to test guesses of what is masked.
func (s *Service) etag(content []byte) string {
	if content == nil {
		return s.etagKey.MAC("registry.etag.absent", nil)
	}
	return s.etagKey.MAC("registry.etag", content)
}

// newEtagKey returns key, so that replicas agree, or one for this run where there is none.
func newEtagKey(key *secret.Key) (*secret.Key, error) {
	if key != nil {
		return key, nil
	}
	material := make([]byte, secret.KeySize)
	rand.Read(material) // never fails
	return secret.NewKey(material)
}
