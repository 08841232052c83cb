package fake_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	agentv1 "github.com/toolherd/toolherd/proto/gen/toolherd/agent/v1"
	"github.com/toolherd/toolherd/test/fakeruntime/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func plan(t *testing.T, text string) fake.Plan {
	t.Helper()
	p, err := fake.ParsePlan(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlansSayWhatIsWrongWithThem(t *testing.T) {
	for _, text := range []string{"", "a,,b", "fail*0", "fail*x", "fail*10001", "slow;for", "slow;=2s"} {
		if p, err := fake.ParsePlan(text); err == nil {
			t.Errorf("%q is read as %v", text, p)
		}
	}
	for _, text := range []string{"sucseed", "slow;for=2", "fail;for=2s", "200"} {
		if _, err := fake.NewRuntime(fake.RuntimeOptions{Plan: plan(t, text)}); err == nil {
			t.Errorf("a runtime takes %q", text)
		}
	}
	for _, text := range []string{"ok", "200;delay=soon", "200;retries=3"} {
		if _, err := fake.NewReceiver(fake.ReceiverOptions{Paths: map[string]fake.Plan{"/x": plan(t, text)}}); err == nil {
			t.Errorf("a receiver takes %q", text)
		}
	}
}

func runtime(t *testing.T, o fake.RuntimeOptions, token string) (*fake.Runtime, agentv1.AgentRuntimeServiceClient) {
	t.Helper()
	r, err := fake.NewRuntime(o)
	if err != nil {
		t.Fatal(err)
	}
	server, err := fake.ListenRuntime(context.WithoutCancel(t.Context()), "127.0.0.1:0", r)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(server.Addr, rpc.ClientOptions{Token: func() (string, error) { return token, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, agentv1.NewAgentRuntimeServiceClient(conn)
}

func start(key, thread string) *agentv1.StartRunRequest {
	return &agentv1.StartRunRequest{IdempotencyKey: key, UserId: "u", ThreadId: thread}
}

func TestARunStartsOncePerKeyAndEndsAsPlanned(t *testing.T) {
	var lines bytes.Buffer
	r, client := runtime(t, fake.RuntimeOptions{
		Plan: plan(t, "busy,lost,fail,hang"), Threads: map[string]fake.Plan{"dead": plan(t, "gone")}, Journal: fake.NewJournal(&lines),
	}, fake.DefaultToken)
	if _, err := client.StartRun(t.Context(), start("k0", "dead")); !fault.Is(err, fault.ThreadGone) {
		t.Errorf("start in a thread that is gone: %v", err)
	}
	if _, err := client.StartRun(t.Context(), start("k1", "t")); !fault.Is(err, fault.ThreadBusy) {
		t.Errorf("start in a busy thread: %v", err)
	}
	if _, err := client.StartRun(t.Context(), start("k1", "t")); err == nil || fault.ReasonOf(err) != "" {
		t.Errorf("start whose answer is lost: %v", err)
	}
	runs := map[string]string{}
	for _, key := range []string{"k1", "k1", "k2", "k3"} {
		got, err := client.StartRun(t.Context(), start(key, "t"))
		if err != nil {
			t.Fatal(err)
		}
		if before, ok := runs[key]; ok && before != got.GetRunId() {
			t.Errorf("key %s started %s and then %s", key, before, got.GetRunId())
		}
		runs[key] = got.GetRunId()
	}
	look := func(run, thread string, want agentv1.RunStatus) {
		t.Helper()
		got, err := client.GetRun(t.Context(), &agentv1.GetRunRequest{RunId: run, ThreadId: thread})
		if err != nil || got.GetStatus() != want {
			t.Errorf("run %s in %s: %v, %v, want %v", run, thread, got, err, want)
		}
	}
	look(runs["k1"], "t", agentv1.RunStatus_RUN_STATUS_SUCCEEDED)
	look(runs["k2"], "t", agentv1.RunStatus_RUN_STATUS_FAILED)
	look(runs["k3"], "t", agentv1.RunStatus_RUN_STATUS_RUNNING)
	look(runs["k3"], "other", agentv1.RunStatus_RUN_STATUS_NOT_FOUND)
	r.Finish(runs["k3"], agentv1.RunStatus_RUN_STATUS_INTERRUPTED)
	look(runs["k3"], "t", agentv1.RunStatus_RUN_STATUS_INTERRUPTED)

	var steps []string
	for line := range strings.Lines(lines.String()) {
		var record fake.Record
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		if record.Kind == fake.KindStart {
			steps = append(steps, record.Step)
		}
	}
	if got, want := strings.Join(steps, " "), "gone busy lost repeated repeated fail hang"; got != want {
		t.Errorf("the journal has the starts %q, want %q", got, want)
	}
}

func TestARuntimeRefusesAWrongToken(t *testing.T) {
	r, client := runtime(t, fake.RuntimeOptions{Token: "right"}, "wrong")
	if _, err := client.StartRun(t.Context(), start("k", "t")); fault.KindOf(err) != fault.Unauthenticated {
		t.Errorf("start with a wrong token: %v", err)
	}
	if len(r.Starts()) != 0 {
		t.Error("a refused start is recorded")
	}
}

func TestAReceiverVerifiesStandardWebhooks(t *testing.T) {
	const symmetric = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	r, err := fake.NewReceiver(fake.ReceiverOptions{Keys: []string{symmetric}, Plan: plan(t, "204")})
	if err != nil {
		t.Fatal(err)
	}
	server, err := fake.ListenReceiver(context.WithoutCancel(t.Context()), "127.0.0.1:0", r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	post := func(id, stamp, signature, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+server.Addr+"/hook", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"webhook-id": id, "webhook-timestamp": stamp, "webhook-signature": signature} {
			if value != "" {
				req.Header.Set(name, value)
			}
		}
		transport := &http.Transport{DisableKeepAlives: true}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	now := strconv.FormatInt(time.Now().Unix(), 10)
	good := fake.SignForTest(symmetric, "id", now, "{}")
	for _, c := range []struct {
		name, id, stamp, signature, body string
		status                           int
		says                             string
	}{
		{"good", "id", now, good, "{}", 204, ""},
		{"good among others", "id", now, "v1a,eA== v1,eA== v9,x " + good, "{}", 204, ""},
		{"other body", "id", now, good, "{} ", 401, "signature"},
		{"other id", "di", now, good, "{}", 401, "signature"},
		{"no id", "", now, good, "{}", 401, "webhook-id"},
		{"no signature", "id", now, "", "{}", 401, "signature"},
		{"other version", "id", now, strings.Replace(good, "v1,", "v1a,", 1), "{}", 401, "signature"},
		{"no number", "id", "now", good, "{}", 401, "timestamp"},
		{"published vector, too old", "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", `{"test": 2432232314}`, 401, "timestamp"},
	} {
		if status, text := post(c.id, c.stamp, c.signature, c.body); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %q, want %d about %q", c.name, status, text, c.status, c.says)
		}
	}
	if got := len(r.Deliveries()); got != 9 {
		t.Errorf("%d of 9 deliveries are recorded", got)
	}
}

// The vectors are those of the libraries that the authors of Standard Webhooks publish.
func TestPublishedVectorsVerify(t *testing.T) {
	const id, stamp, body = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, `{"test": 2432232314}`
	seed, err := base64.StdEncoding.DecodeString("VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk=")
	if err != nil {
		t.Fatal(err)
	}
	for key, signature := range map[string]string{
		"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
		fake.PublicKeyForTest(seed):              "v1a,tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag==",
	} {
		h := http.Header{}
		h.Set("webhook-id", id)
		h.Set("webhook-timestamp", strconv.Itoa(stamp))
		h.Set("webhook-signature", signature)
		if err := fake.VerifyForTest(key, h, body, time.Unix(stamp, 0)); err != nil {
			t.Errorf("%s: %v", signature, err)
		}
	}
}
