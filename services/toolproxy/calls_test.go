package toolproxy_test

import (
	"testing"

	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"

	"github.com/toolherd/toolherd/services/toolproxy"
)

// CALL-001: an answer holds one outcome and everything about how it came about.
func TestCall(t *testing.T) {
	p := start(t, toolproxy.Config{})
	p.registry.publish(t, map[string]string{"peer": peerEntry(t, "")})
	p.awaitOK(t, "peer")
	text, info := p.text(t, "peer_echo", `{"n": 9007199254740993, "x":1.10}`)
	if text != `{"n": 9007199254740993, "x":1.10}` {
		t.Errorf("the server got %s", text)
	}
	if info.GetServer() != "peer" || info.GetOriginalName() != "echo" || info.GetSnapshotId() == "" || info.GetSessionId() == "" ||
		!info.GetSessionStartTime().IsValid() || info.GetEra() != "2025-11-25" || info.GetAttempt() != 1 ||
		info.GetDeadlineSource() != "caller" || info.GetDuration().AsDuration() <= 0 || info.GetSynthetic() {
		t.Errorf("info is %v", info)
	}
	_ = toolproxyv1.CallInfo{}
}
