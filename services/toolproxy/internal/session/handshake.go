package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// legacyVersions are what initialize may agree on.
var legacyVersions = [...]string{Version20251125, Version20250618, Version20250326, Version20241105}

var (
	errClosed = errors.New("session closed")

	// errNotModern says that a server answered server/discover, but not as one that speaks 2026-07-28.
	errNotModern = errors.New("the server does not offer protocol version " + Version20260728)
)

// abandonTimeout bounds the end of a connection that never became a session.
const abandonTimeout = 5 * time.Second

// Open connects and agrees on a version. ctx bounds the handshake, not the session. On an error nothing is left.
func Open(ctx context.Context, o Options) (*Session, error) {
	switch cmp.Or(o.Era, Auto) {
	case Legacy:
		return openLegacy(ctx, &o)
	case Modern:
		return openModern(ctx, &o)
	case Auto:
		if slices.Contains(legacyVersions[:], o.Known) {
			return openKnownLegacy(ctx, &o)
		}
		return probe(ctx, &o)
	default:
		return nil, fault.New(fault.ConfigInvalid, "era %q: it is auto, legacy or modern", o.Era)
	}
}

func openLegacy(ctx context.Context, o *Options) (*Session, error) {
	s, err := connect(ctx, o)
	if err != nil {
		return nil, err
	}
	return s.settle(ctx, s.initialize(ctx, o.Client))
}

func openModern(ctx context.Context, o *Options) (*Session, error) {
	s, err := connect(ctx, o)
	if err != nil {
		return nil, err
	}
	err = s.discover(ctx, o.Client)
	if errors.Is(err, errNotModern) {
		err = fault.New(fault.UpstreamProtocol, "%v, and its entry says `era: modern`; use `era: auto`", errNotModern)
	}
	if err == nil {
		s.subscribe(ctx, o)
	}
	return s.settle(ctx, err)
}

// openKnownLegacy saves the probe. A server that meanwhile speaks 2026-07-28 only refuses initialize; then it is probed.
func openKnownLegacy(ctx context.Context, o *Options) (*Session, error) {
	s, err := openLegacy(ctx, o)
	if _, refused := errors.AsType[*jsonrpc.Error](err); !refused {
		return s, err
	}
	return probe(ctx, o)
}

// probe finds out which era the server speaks.
func probe(ctx context.Context, o *Options) (*Session, error) {
	s, err := connect(ctx, o)
	if err != nil {
		return nil, err
	}
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if o.Known != Version20260728 {
		bounded, cancel = context.WithTimeout(ctx, o.ProbeTimeout)
	}
	discoverErr := s.discover(bounded, o.Client)
	cancel()
	switch {
	case discoverErr == nil:
		s.subscribe(ctx, o)
		return s, nil
	case ctx.Err() != nil, refusedLogin(discoverErr):
		return s.settle(ctx, discoverErr)
	case errors.Is(discoverErr, errNotModern):
		return s.settle(ctx, s.initialize(ctx, o.Client))
	}
	// The connection is unusable or its state unknown: what became of the first message decides nothing.
	o.Log.DebugContext(ctx, "server/discover got no answer", "session_id", s.id, "err", discoverErr)
	s.abandon(ctx)
	s, err = openLegacy(ctx, o)
	if _, refused := errors.AsType[*jsonrpc.Error](err); !refused {
		return s, err
	}
	// It understood initialize and refused it: a modern server that was slow to start.
	modern, modernErr := openModern(ctx, o)
	if modernErr != nil {
		return nil, err
	}
	return modern, nil
}

// settle returns an open session, or ends it where the handshake did not succeed.
func (s *Session) settle(ctx context.Context, err error) (*Session, error) {
	if err == nil {
		return s, nil
	}
	// The reason why the connection ended says more than that it did.
	if ended := s.Err(); ended != nil && fault.Is(err, fault.SessionClosed) {
		err = ended
	}
	if fault.Is(err, fault.SessionClosed) {
		// There was no session yet, and no call whose outcome could be unknown: it is a start that failed.
		err = fmt.Errorf("the connection was lost during the handshake: %s", err.Error())
	}
	s.abandon(ctx)
	return nil, err
}

// abandon ends a connection that never became a session: without grace where the time for the start is over.
func (s *Session) abandon(ctx context.Context) {
	if k, ok := s.wire.(interface{ Kill() }); ok && ctx.Err() != nil {
		k.Kill()
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	if err := s.Close(closing); err != nil {
		s.log.DebugContext(ctx, "connection did not end well", "session_id", s.id, "err", err)
	}
}

// initialize is the legacy handshake.
func (s *Session) initialize(ctx context.Context, c Client) error {
	result, err := s.request(ctx, "initialize",
		`"protocolVersion":"`+Version20251125+`","capabilities":{},"clientInfo":`+c.json())
	if err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	if !jsonrpc.IsObject(result) {
		return fault.New(fault.UpstreamProtocol, "initialize: the result is not an object")
	}
	version, _ := jsonrpc.String(jsonrpc.Member(result, "protocolVersion"))
	if !slices.Contains(legacyVersions[:], version) {
		return fault.New(fault.UpstreamProtocol,
			"initialize: the server wants protocol version %q, which Toolherd does not speak", version)
	}
	s.setVersion(version)
	s.noTools = jsonrpc.IsNull(jsonrpc.Member(jsonrpc.Member(result, "capabilities"), "tools"))
	if err := s.link.Notify(ctx, "notifications/initialized", nil); err != nil {
		return fmt.Errorf("notifications/initialized: %w", err)
	}
	return nil
}

// discover is the modern handshake. The error is errNotModern where the server answered, in whatever way, without
// offering the version.
func (s *Session) discover(ctx context.Context, c Client) error {
	s.setVersion(Version20260728)
	s.meta = `"io.modelcontextprotocol/protocolVersion":"` + Version20260728 +
		`","io.modelcontextprotocol/clientInfo":` + c.json() +
		`,"io.modelcontextprotocol/clientCapabilities":{}`
	result, err := s.request(ctx, "server/discover", "")
	if err == nil && offers(result, Version20260728) {
		s.noTools = jsonrpc.IsNull(jsonrpc.Member(jsonrpc.Member(result, "capabilities"), "tools"))
		return nil
	}
	if _, refused := errors.AsType[*jsonrpc.Error](err); err == nil || refused {
		s.setVersion("")
		s.meta = ""
		return errNotModern
	}
	return fmt.Errorf("server/discover: %w", err)
}

// offers reports whether a discover result lists the version.
func offers(result json.RawMessage, version string) bool {
	for v := range jsonrpc.Elements(jsonrpc.Member(result, "supportedVersions")) {
		if text, ok := jsonrpc.String(v); ok && text == version {
			return true
		}
	}
	return false
}

func (s *Session) setVersion(version string) { s.version = version }

// refusedLogin reports whether the server wants credentials, which says nothing about its era.
func refusedLogin(err error) bool {
	return fault.Is(err, fault.UpstreamUnauthenticated) || fault.Is(err, fault.Forbidden)
}

func (c Client) json() string {
	b := append([]byte(nil), `{"name":`...)
	b = jsonrpc.AppendString(b, c.Name)
	b = append(b, `,"version":`...)
	b = jsonrpc.AppendString(b, c.Version)
	return string(append(b, '}'))
}
