package toolproxy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

func (t *tools) ListSessions(_ context.Context, r *toolproxyv1.ListSessionsRequest) (*toolproxyv1.ListSessionsResponse, error) {
	size, err := pageSize(r.GetPageSize(), 100)
	if err != nil {
		return nil, err
	}
	list := token{List: "sessions", Filter: []string{r.GetServer()}, After: make([]string, 4)}
	from, err := after(r.GetPageToken(), list)
	if err != nil {
		return nil, err
	}
	out := &toolproxyv1.ListSessionsResponse{}
	for _, info := range t.s.pool.List() {
		key := []string{info.Key.Server, info.Key.UserID, info.Key.ThreadID, info.Session.ID()}
		if r.GetServer() != "" && r.GetServer() != key[0] || from != nil && slices.Compare(key, from) <= 0 {
			continue
		}
		if len(out.Sessions) == size {
			out.NextPageToken = list.String()
			break
		}
		list.After = key
		out.Sessions = append(out.Sessions, sessionView(info))
	}
	return out, nil
}

func sessionView(info pool.Info) *toolproxyv1.Session {
	s := info.Session
	out := &toolproxyv1.Session{
		SessionId: s.ID(),
		Server:    info.Key.Server,
		Scope:     &corev1.Scope{UserId: info.Key.UserID, ThreadId: info.Key.ThreadID},
		Transport: string(info.Transport),
		Era:       s.Version(),
		StartTime: timestamppb.New(s.StartTime()),
		CallCount: info.Calls,
		InFlight:  int32(info.InFlight),
		Pid:       int32(s.PID()),
		Held:      !info.HeldUntil.IsZero(),
	}
	if info.Calls > 0 {
		out.LastUseTime = timestamppb.New(info.LastUse)
	}
	out.ResidentBytes = residentBytes(s.PID())
	return out
}

// residentBytes returns the resident memory of a process, or 0 where the system does not tell.
func residentBytes(pid int) int64 {
	if pid == 0 {
		return 0
	}
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	fields := bytes.Fields(statm)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

func (t *tools) ResetSessions(ctx context.Context, r *toolproxyv1.ResetSessionsRequest) (*toolproxyv1.ResetSessionsResponse, error) {
	p, _ := authn.FromContext(ctx)
	operator := p.Has(authn.Operator)
	if !operator && r.GetServer() == "" && r.GetScope() == nil {
		return nil, fault.New(fault.Forbidden, "ending all sessions takes the role operator; name a scope, or a server")
	}
	match := func(k upstream.Key) bool { return r.GetServer() == "" || r.GetServer() == k.Server }
	if r.GetScope() != nil || !operator { // others end their own sessions only
		scope, err := resolve(ctx, r.GetScope())
		if err != nil {
			return nil, err
		}
		byServer := match
		match = func(k upstream.Key) bool {
			return byServer(k) && k.UserID == scope.UserID && (k.ThreadID == scope.ThreadID || k.ThreadID == "")
		}
	}
	return &toolproxyv1.ResetSessionsResponse{Ended: int32(t.s.pool.Reset(match))}, nil
}
