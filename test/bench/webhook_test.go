package bench

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolherd/toolherd/test/partners"
)

const webhookKey = "c2VjcmV0IGtleSBvZiB0aGUgYmVuY2htYXJrcw=="

// rowWebhook compares one notifier that works off a backlog with a plain net/http loop that signs alike.
func rowWebhook(t *testing.T, rep *report) {
	var received atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a sender that went away is its own row's failure
		received.Add(1)
	}))
	t.Cleanup(receiver.Close)
	c := newCrew(t, `notifier: { default_sink: hook, sinks: [ { name: hook, type: webhook, url: "`+receiver.URL+`", secrets: [ "whsec_`+webhookKey+`" ] } ] }`)
	c.remote.completed()
	plain := plainWebhooks(receiver)
	backlog := count(5_000)
	var ours, base []float64
	for round := range min(*roundCount, 3) {
		base = append(base, load(t, plain, 16, *perRound).perSecond)
		before := c.remote.asked.Load()
		c.seed(t, backlog)
		t.Run("work", func(t *testing.T) { // every task completes and leaves an event
			c.worker(t)
			await(t, "the end of the tasks", func(before int64) bool { return c.remote.asked.Load() >= before+int64(backlog) }, before)
			pause(t, time.Second/2)
		})
		t.Run("deliver", func(t *testing.T) {
			from := received.Load()
			partners.StartService(t, "notifier", c.args...)
			await(t, "the first delivery", func(before int64) bool { return received.Load() > before }, from)
			start, first := time.Now(), received.Load()
			await(t, fmt.Sprintf("all deliveries of round %d", round), func(before int64) bool { return received.Load() >= before+int64(backlog) }, from)
			ours = append(ours, float64(received.Load()-first)/time.Since(start).Seconds())
		})
	}
	rep.add(row{
		what:     "webhook deliveries of one notifier, a backlog, over a plain net/http loop at 16 with the same signing",
		measured: perSecondText(median(ours)), baseline: perSecondText(median(base)),
		ratio: fmt.Sprintf("%.2f x", ratio(t, len(ours), func(i int) float64 { return ours[i] / base[i] })), goal: ">= 0.5 x",
	})
}

// plainWebhooks signs and sends as Standard Webhooks says, and keeps nothing.
func plainWebhooks(receiver *httptest.Server) subject {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	key, _ := base64.StdEncoding.DecodeString(webhookKey) // a constant
	body := []byte(`{"type":"task.completed","timestamp":"2026-01-01T00:00:00Z","data":{"task_id":"mcp-task-0123456789abcdef0123456789abcdef","status":"completed","result_preview":"{\"ok\":true}"}}`)
	var n atomic.Int64
	return subject{"plain", func(ctx context.Context) error {
		id, now := strconv.FormatInt(n.Add(1), 10), strconv.FormatInt(time.Now().Unix(), 10)
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, now, body)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, receiver.URL, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Webhook-Id", id)
		req.Header.Set("Webhook-Timestamp", now)
		req.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	}}
}
