package registry

import (
	"encoding/json"

	"google.golang.org/protobuf/types/known/timestamppb"

	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/serverconfig"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
)

// snapshotMessage returns a snapshot with its servers. Nobody may change it afterwards.
func snapshotMessage(stored snapshot.Stored, content *snapshot.Content) *registryv1.Snapshot {
	m := activationMessage(stored.Activation)
	m.CreateTime = timestamppb.New(stored.CreateTime)
	m.ServerCount = int32(len(content.Servers))
	if len(content.Interceptors) > 0 {
		b, err := json.Marshal(content.Interceptors)
		if err == nil { // strings always marshal
			m.InterceptorsJson = string(b)
		}
	}
	for i := range content.Servers {
		e := &content.Servers[i]
		m.Servers = append(m.Servers, &registryv1.ServerEntry{
			Name:        e.Name,
			State:       stateMessage(e.State),
			Reason:      e.Reason,
			FixCommand:  e.FixCommand,
			EntryJson:   string(e.JSON),
			Fingerprint: e.Fingerprint,
			Source:      e.Source,
			SourceClass: string(e.Class),
			Problems:    problemMessages(e),
			Stale:       e.Stale,
		})
	}
	return m
}

func activationMessage(a snapshot.Activation) *registryv1.Snapshot {
	m := &registryv1.Snapshot{
		SnapshotId:     string(a.ID),
		Revision:       int64(a.Revision),
		Actor:          a.Actor,
		ActivateReason: a.Reason,
	}
	if a.Revision > 0 { // a candidate never was effective
		m.ActivateTime = timestamppb.New(a.ActivateTime)
	}
	return m
}

// holdMessage returns who holds what, and the candidates behind it, newest first.
func holdMessage(a snapshot.Activation, candidates []snapshot.Candidate) *registryv1.Hold {
	m := &registryv1.Hold{
		SnapshotId: string(a.ID), Revision: int64(a.Revision), Actor: a.Actor, Reason: a.Reason, HoldTime: timestamppb.New(a.HoldTime),
	}
	for _, c := range candidates {
		m.Candidates = append(m.Candidates, &registryv1.Candidate{
			SnapshotId: string(c.ID), RecordTime: timestamppb.New(c.RecordTime), Actor: c.Actor, Change: c.Reason,
			ServerCount: int32(c.ServerCount),
		})
	}
	return m
}

func configuredMessage(e *snapshot.Entry) *registryv1.ConfiguredServer {
	return &registryv1.ConfiguredServer{
		Name:        e.Name,
		Transport:   e.Transport,
		State:       stateMessage(e.State),
		Reason:      e.Reason,
		FixCommand:  e.FixCommand,
		Source:      e.Source,
		SourceClass: string(e.Class),
		Problems:    problemMessages(e),
		Stale:       e.Stale,
	}
}

func stateMessage(s snapshot.State) registryv1.EntryState {
	switch s {
	case snapshot.Active:
		return registryv1.EntryState_ENTRY_STATE_ACTIVE
	case snapshot.Disabled:
		return registryv1.EntryState_ENTRY_STATE_DISABLED
	case snapshot.Untrusted:
		return registryv1.EntryState_ENTRY_STATE_UNTRUSTED
	case snapshot.Error:
		return registryv1.EntryState_ENTRY_STATE_ERROR
	default:
		return registryv1.EntryState_ENTRY_STATE_UNSPECIFIED
	}
}

func problemMessages(e *snapshot.Entry) []*registryv1.Problem {
	var out []*registryv1.Problem
	for _, p := range e.Problems {
		severity := registryv1.Severity_SEVERITY_ERROR
		if p.Severity == serverconfig.SeverityWarning.String() {
			severity = registryv1.Severity_SEVERITY_WARNING
		}
		server := e.Name
		if e.Synthetic {
			server = ""
		}
		out = append(out, &registryv1.Problem{
			Severity: severity, Server: server, Path: p.Path, Reason: p.Reason, Message: p.Message, Hint: p.Hint,
		})
	}
	return out
}
