// Package webhook delivers events as Standard Webhooks (https://www.standardwebhooks.com) says.
//
//	POST url
//	webhook-id: <event_id>               the same over retries and redrive: a receiver that remembers it sees each event once
//	webhook-timestamp: <unix seconds>    of the attempt
//	webhook-signature: v1,… v1a,…        one for each key, over id.timestamp.body
//
//	{"type":"task.completed","timestamp":"2026-01-02T03:04:05Z","data":{"event_id":…,"task_id":…,…}}
//
// What an answer means:
//
//	2xx                     delivered, whatever its body
//	410                     dead letter, and the sink is paused: nobody wants deliveries there
//	3xx                     a failure: a redirect is not followed, and no delivery goes to where it leads
//	429, 503 and the like   a failure; the next attempt comes no sooner than Retry-After says
//	everything else         a failure
//	refused address         dead letter: no attempt would ever be made
//
// The receiver is the operator's choice and may still be hostile: time and size of its answer are bounded, and cloud
// metadata is never reached, whatever its name resolves to.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/toolherd/toolherd/pkg/safehttp"
	"github.com/toolherd/toolherd/pkg/version"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
	"github.com/toolherd/toolherd/services/notifier/internal/sink"
)

const (
	// answerTimeout bounds an attempt, from the connection to the headers of the answer.
	answerTimeout = 30 * time.Second
	// bodyTimeout bounds how long the body of an answer may take, which decides nothing.
	bodyTimeout = 2 * time.Second
	// maxAnswer is how much of it is read.
	maxAnswer = 64 << 10
)

// Options describe a sink. URL and Keys are required.
type Options struct {
	// Name is the sink's.
	Name string
	// URL is where deliveries go. Its host may be private; no other may.
	URL *url.URL
	// Keys sign each delivery.
	Keys []Key
	// MaxConns bounds the connections to the receiver.
	MaxConns int
	// AnswerTimeout bounds an attempt; default 30 s.
	AnswerTimeout time.Duration
	// MaxRetryAfter caps what Retry-After may ask for; default 8 h.
	MaxRetryAfter time.Duration
	// Resolver finds addresses; nil means the system's.
	Resolver safehttp.Resolver
}

// Sender delivers to one receiver.
type Sender struct {
	o         Options
	url       string
	transport *safehttp.Transport // and no client: a redirect is an answer like any other
}

// New returns a sender. It connects when first used.
func New(o Options) *Sender {
	o.AnswerTimeout = cmp.Or(o.AnswerTimeout, answerTimeout)
	o.MaxRetryAfter = cmp.Or(o.MaxRetryAfter, 8*time.Hour)
	return &Sender{o: o, url: o.URL.String(), transport: safehttp.NewTransport(safehttp.Options{
		AllowPrivate: safehttp.SameHost(o.URL),
		Setting:      "correct the url of the sink " + o.Name,
		MaxBodyBytes: -1, // the answer's status counts whatever follows it; what is read of the body is bounded here
		MaxIdleConns: o.MaxConns,
		MaxConns:     o.MaxConns,
		Resolver:     o.Resolver,
	})}
}

// Close frees the connections.
func (s *Sender) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// Send posts the event once.
func (s *Sender) Send(ctx context.Context, c notification.Claim) sink.Result {
	body, err := Body(c.Event)
	if err != nil {
		return sink.Result{Verdict: notification.Dead, Error: err.Error()}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(s.o.AnswerTimeout, func() { cancel(errLate) })
	defer late.Stop()
	req, err := s.request(ctx, c.Event.ID, body)
	if err != nil {
		return sink.Result{Verdict: notification.Dead, Error: err.Error()}
	}
	resp, err := s.transport.RoundTrip(req)
	if err != nil {
		return s.failed(ctx, err)
	}
	defer resp.Body.Close()
	late.Reset(bodyTimeout)
	excerpt := readSome(resp.Body)
	return s.judge(resp, excerpt)
}

var errLate = errors.New("no answer in time")

// Body returns what is posted for an event. It fails where the event's own body is no JSON object.
func Body(e notification.Event) ([]byte, error) {
	data, err := sink.Data(e)
	if err != nil {
		return nil, err
	}
	return sink.Encode(struct {
		Type      string `json:"type"`
		Timestamp string `json:"timestamp"`
		Data      any    `json:"data"`
	}{"task." + cmp.Or(sink.Status(e), "updated"), e.Created.UTC().Format(time.RFC3339Nano), data})
}

func (s *Sender) request(ctx context.Context, id string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("the url of the sink %s cannot be posted to", s.o.Name) // it may hold a secret, and so may err
	}
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header = http.Header{
		"Content-Type":      {"application/json"},
		"User-Agent":        {"toolherd/" + version.Number},
		"Accept-Encoding":   {"identity"},
		"Webhook-Id":        {id},
		"Webhook-Timestamp": {timestamp},
		"Webhook-Signature": {sign(s.o.Keys, id, timestamp, body)},
	}
	return req, nil
}

// failed returns the result of an attempt without an answer.
func (s *Sender) failed(ctx context.Context, err error) sink.Result {
	switch {
	case errors.Is(err, safehttp.ErrRefused):
		return sink.Result{Verdict: notification.Dead, Error: err.Error()}
	case errors.Is(context.Cause(ctx), errLate):
		return sink.Result{Verdict: notification.Failed, Error: fmt.Sprintf("the receiver did not answer within %v", s.o.AnswerTimeout)}
	}
	return sink.Result{Verdict: notification.Failed, Error: err.Error()}
}

func (s *Sender) judge(resp *http.Response, excerpt string) sink.Result {
	r := sink.Result{Verdict: notification.Failed, Status: strconv.Itoa(resp.StatusCode), Excerpt: excerpt}
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		r.Verdict = notification.Done
	case code == http.StatusGone:
		r.Verdict = notification.Dead
		r.Error = "the receiver answered 410 Gone: it wants no deliveries any more; resume the sink if that was a mistake"
		r.Pause = "the receiver answered 410 Gone to event " + resp.Request.Header.Get("Webhook-Id")
	case code >= 300 && code < 400:
		r.Error = fmt.Sprintf("the receiver answered %d, a redirect, which is not followed: write the address where it leads as the sink's url", code)
	default:
		r.Error = fmt.Sprintf("the receiver answered %d %s", code, http.StatusText(code))
	}
	if r.Verdict == notification.Failed {
		r.After = min(retryAfter(resp.Header, time.Now()), s.o.MaxRetryAfter)
	}
	return r
}

// retryAfter returns how long an answer asks to wait; 0 if it does not say.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if text == "" {
		return 0
	}
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	// By the receiver's own clock, where it tells, since the two may differ.
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(at.Sub(now), 0)
}

// readSome reads the beginning of an answer, to its end if it is short, so that the connection can be used again.
func readSome(body io.Reader) string {
	b, _ := io.ReadAll(io.LimitReader(body, maxAnswer)) // a body that breaks off changes nothing
	return string(b)
}
