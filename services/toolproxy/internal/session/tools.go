package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// What a tool list may be at most. A list beyond it is taken for one that never ends.
const (
	maxPages     = 1000
	maxTools     = 10_000
	maxListBytes = 64 << 20
)

// Listing is a server's complete list of tools.
type Listing struct {
	Tools   []json.RawMessage // the tools in the server's order, each a JSON object as it came
	Skipped []string          // what was left out and why, for people
	TTL     time.Duration     // how long the server says that the list holds; 0 if it does not say
}

// ListTools reads all pages of the tool list. A list that is null or missing, repeats a cursor or exceeds 1000 pages,
// 10 000 tools or 64 MiB is UPSTREAM_PROTOCOL; elements that are no objects are left out.
func (s *Session) ListTools(ctx context.Context) (Listing, error) {
	var (
		list   Listing
		bytes  int
		cursor json.RawMessage
		seen   = map[string]bool{}
	)
	for range maxPages {
		members := ""
		if cursor != nil {
			members = `"cursor":` + string(cursor)
		}
		page, err := s.request(ctx, "tools/list", members)
		if err != nil {
			if s.noTools && isMethodNotFound(err) {
				return Listing{}, nil
			}
			return Listing{}, fmt.Errorf("tools/list: %w", err)
		}
		if bytes += len(page); bytes > maxListBytes {
			return Listing{}, brokenList("is larger than %d MiB", maxListBytes>>20)
		}
		if cursor, err = list.add(page); err != nil {
			return Listing{}, err
		}
		if cursor == nil {
			return list, nil
		}
		if seen[string(cursor)] {
			return Listing{}, brokenList("repeats a cursor: it never ends")
		}
		seen[string(cursor)] = true
	}
	return Listing{}, brokenList("has more than %d pages", maxPages)
}

// add takes the tools of a page and returns the cursor of the next one, or nil after the last.
func (l *Listing) add(page json.RawMessage) (cursor json.RawMessage, err error) {
	if err := complete(page); err != nil {
		return nil, err
	}
	tools := jsonrpc.Member(page, "tools")
	if !jsonrpc.IsArray(tools) {
		if jsonrpc.IsNull(tools) {
			return nil, brokenList("is null or missing")
		}
		return nil, brokenList("is not an array")
	}
	for tool := range jsonrpc.Elements(tools) {
		if len(l.Tools)+len(l.Skipped) == maxTools {
			return nil, brokenList("has more than %d tools", maxTools)
		}
		if !jsonrpc.IsObject(tool) {
			l.Skipped = append(l.Skipped, fmt.Sprintf("tool %d of the list is not an object", len(l.Tools)+len(l.Skipped)+1))
			continue
		}
		l.Tools = append(l.Tools, tool)
	}
	if ms, ok := jsonrpc.Int(jsonrpc.Member(page, "ttlMs")); ok && ms > 0 && ms < int64(24*time.Hour/time.Millisecond) {
		l.TTL = time.Duration(ms) * time.Millisecond
	}
	cursor = jsonrpc.Member(page, "nextCursor")
	if jsonrpc.IsNull(cursor) {
		return nil, nil
	}
	text, ok := jsonrpc.String(cursor)
	switch {
	case !ok:
		return nil, brokenList("has a cursor that is not a string")
	case text == "":
		return nil, nil
	}
	return cursor, nil
}

// complete checks that a result is an object that is not an interim answer.
func complete(result json.RawMessage) error {
	if !jsonrpc.IsObject(result) {
		return fault.New(fault.UpstreamProtocol, "tools/list: the result is not an object")
	}
	switch kind, ok := jsonrpc.String(jsonrpc.Member(result, "resultType")); {
	case !ok, kind == "complete":
		return nil
	default:
		return fault.New(fault.UpstreamProtocol, "tools/list: the result has the type %q", kind)
	}
}

func brokenList(format string, args ...any) error {
	return fault.New(fault.UpstreamProtocol, "the tool list "+format, args...)
}

func isMethodNotFound(err error) bool {
	e, ok := errors.AsType[*jsonrpc.Error](err)
	return ok && e.Code == jsonrpc.CodeMethodNotFound
}
