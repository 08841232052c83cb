package scenario

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/evilmcp/evil"
	"github.com/toolherd/toolherd/test/partners"
)

// Limits of the evil servers' entries, in seconds, and what a call or a start may take beyond them on a busy machine.
const (
	evilInit = 5
	evilCall = 3
	evilMore = 12 * time.Second
)

// evilServers returns an entry for every mode on every transport that it works over, by names like stdio-noise.
func evilServers(t *testing.T) map[string]any {
	t.Helper()
	trap := partners.FakeHTTP(t)
	sizes := map[string]string{ // what a mode does without end is as bad with less of it
		"stderr-flood": "4194304", "endless-line": "67108864", "get-flood": "4194304",
	}
	servers := map[string]any{}
	for _, m := range evil.Modes() {
		if m.Name == "sleeper" {
			continue // it is the child of other modes
		}
		args := []string{"-target", trap.URL}
		if size := sizes[m.Name]; size != "" {
			args = append(args, "-size", size)
		}
		for transport := range strings.SplitSeq(m.Transports(), ",") {
			var entry map[string]any
			if transport == "stdio" {
				entry = partners.Evil(t, m.Name, args...).Entry()
			} else {
				entry = map[string]any{"url": partners.EvilHTTP(t, m.Name, args...).URL}
			}
			entry["session_init_timeout"], entry["tool_call_timeout"], entry["tool_call_max_timeout"] = evilInit, evilCall, evilCall
			servers[transport+"-"+m.Name] = entry
		}
	}
	return servers
}

// STAT-005, SESS-010: whatever a server does, its start and its calls end in bounded time, a healthy server answers all the
// while, and nothing is left of it once it is removed.
func TestEveryEvilServerIsContained(t *testing.T) {
	servers := evilServers(t)

	good := partners.Fake(t).Entry()
	servers["good"] = good
	h := New(t, SQLite, Options{Servers: servers, Args: []string{"--log-level", "warn"}})

	watching, stop := context.WithCancel(t.Context())
	healthy := make(chan time.Duration, 1)
	tools := h.Tools(t)
	go func() {
		var worst time.Duration
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for watching.Err() == nil {
			<-tick.C
			started := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			_, err := tools.CallTool(ctx, Call{Tool: "good_echo"}.Request())
			cancel()
			worst = max(worst, time.Since(started))
			if err != nil {
				t.Errorf("the healthy server: %v", err)
				break
			}
		}
		healthy <- worst
	}()

	names := slices.Sorted(maps.Keys(servers))
	all := h.Settled(t, names...)
	want := wantEvil()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(12)
	for _, name := range names {
		if name == "good" {
			continue
		}
		group.Go(func() error {
			_, mode, _ := strings.Cut(name, "-")
			got := callEvil(ctx, t, tools, all[name])
			if expected := want[mode]; expected == "" {
				t.Errorf("%s: add the mode to wantEvil; it ends with %s", name, got)
			} else if !slices.Contains(strings.Split(expected, " or "), got) && got != "TIMEOUT" { // on a busy machine anything large may be slow
				t.Errorf("%s: ends with %s, want %s", name, got, expected)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	stop()
	if worst := <-healthy; worst > 5*time.Second {
		t.Errorf("the healthy server once took %s", worst)
	}
	for _, s := range h.Servers(t) {
		if strings.Contains(s.GetReason(), evil.Secret) {
			t.Errorf("%s: the reason shows the secret: %s", s.GetName(), s.GetReason())
		}
	}
	h.Apply(t, map[string]any{"good": good})
	h.SettledOK(t, "good")
	Eventually(t, "only the healthy server's process is left", func() bool { return len(h.Processes()) == 1 })
	if got := h.Processes(); len(got) != 1 || !strings.Contains(got[0].Command, "fakemcp") {
		t.Errorf("left are %v", got)
	}
}

// callEvil calls the tool echo and returns how that ended in one word: the reason, or ok. A server that could not even be
// started or listed gives SERVER_ERROR or UPSTREAM_UNAUTHENTICATED.
func callEvil(ctx context.Context, t *testing.T, tools toolproxyv1.ToolProxyServiceClient, s *toolproxyv1.Server) string {
	t.Helper()
	started := time.Now()
	call := Call{Tool: s.GetName() + "_echo", Arguments: `{"n":6}`, View: viewJSON}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := tools.CallTool(bounded, call.Request())
	if d, most := time.Since(started), (evilCall+evilInit)*time.Second+evilMore; d > most {
		t.Errorf("%s: the call took %s", s.GetName(), d)
	}
	f := reasonOf(err)
	switch {
	case err == nil:
		return "ok"
	case f.Domain != "toolherd" || !strings.Contains(f.Message, s.GetName()):
		t.Errorf("%s: the call ends with %v, which does not name the server or has no reason", s.GetName(), f)
	case strings.Contains(f.Message, evil.Secret):
		t.Errorf("%s: the error shows the secret: %s", s.GetName(), f.Message)
	}
	return f.Reason
}

// wantEvil says how a call of each mode ends, by mode.
func wantEvil() map[string]string {
	want := map[string]string{}
	for outcome, modes := range map[string]string{
		// What is odd, but hurts nobody.
		"ok": `content-bad-blocks content-missing content-null content-null-block content-object cookies crlf duplicate-answer
			elicit-same-id elicit-unasked exit-first-message get-closes get-flood get-silent grandchild grandchild-setsid gzip-unasked
			ignores-sigterm init-early-list-changed init-markup init-no-tools init-odd-members invalid-utf8 is-error-string lingers
			list-changed-storm log-secret long-5m long-70k many-blocks meta-array noise notification-flood notifications-odd npx
			other-case progress-bad request-flood requests-odd sampling-unasked session-changes slow-start sse-no-event-name sse-odd
			sse-open-after sse-other-name sse-two-lines stderr-flood structured-values tools-bad-headers tools-bad-schemas tools-cursor-empty
			tools-cursor-null tools-duplicate tools-huge tools-invalid-utf8 tools-markup tools-name-129 tools-name-lengths tools-no-schema
			tools-null-element tools-odd-elements tools-odd-members tools-odd-names unknown-ids http-slow`,
		// On the stream of an HTTP answer it is part of that answer.
		"ok or PAYLOAD_TOO_LARGE": `noise-long long-20m-notification`,
		// No list, no tools: the server is in error.
		"SERVER_ERROR": `auth-no-challenge deaf-at-start exit-after-init exit-at-start init-empty init-error init-null init-number-version
			init-old-version no-list only-initialize orphan session-id-huge session-id-odd silent tools-cursor-cycle tools-cursor-loop
			tools-cursor-number tools-endless tools-error tools-many tools-missing tools-null tools-object tools-result-null
			tools-second-page-fails redirect-cross redirect-get redirect-loop redirect-metadata redirect-scheme`,
		"UPSTREAM_UNAUTHENTICATED": `auth-garbage auth-metadata-bait auth-target`,
		// Nobody knows what became of the call.
		"SESSION_CLOSED": `batch body-reset body-short bom closes-stdout conn-reset crash-mid-call duplicate-members exit-mid-call
			half-frame header-huge id-other-type session-lost sse-cut sse-cut-resumable sse-no-blank-line status-400-session
			status-404-rpc status-503-session`,
		"UPSTREAM_PROTOCOL": `both-outcomes deep empty-200 empty-202 error-no-code error-null error-string html-200 html-502 input-required
			json-broken json-other-id no-outcome no-type no-version result-array result-null result-number result-string status-999 task-handle`,
		// If the write fails, nothing was sent, and another session takes the call.
		"ok or SESSION_CLOSED": `closes-stdin`,
		"UPSTREAM_ERROR":       `error-secret`,
		"RATE_LIMITED":         `status-429-forever`,
		"PAYLOAD_TOO_LARGE":    `body-endless gzip-bomb long-20m long-20m-decoy long-20m-error long-20m-id-last sse-endless-event sse-endless-lines`,
		"TIMEOUT":              `body-drip body-hangs deaf endless-line half-frame-hang http-silent no-call sse-comments-forever swapped-answers`,
	} {
		for mode := range strings.FieldsSeq(modes) {
			want[mode] = outcome
		}
	}
	return want
}
