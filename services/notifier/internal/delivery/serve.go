package delivery

import (
	"context"
	"runtime/debug"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/telemetry"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
	"github.com/toolherd/toolherd/services/notifier/internal/sink"
)

// maxErrorBytes and maxExcerptBytes bound what is kept of an attempt.
const (
	maxErrorBytes   = 1 << 10
	maxExcerptBytes = 1 << 10
)

// serve makes the attempt of a claim and writes what came of it. asked is when the claim was asked for.
func (d *Deliverer) serve(ctx context.Context, s *sinkState, c notification.Claim, asked time.Time) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer d.held.begin(c, asked, cancel)()
	o := d.outcome(ctx, s, c)
	if ctx.Err() != nil && o.Verdict != notification.Done && o.Verdict != notification.Handed {
		// What the sink did is unknown: the delivery is made again once its lease has run out.
		d.o.Metrics.count(s.Name, abandoned)
		d.o.Log.InfoContext(ctx, "attempt was given up", "sink", s.Name, "event_id", c.Event.ID, "err", context.Cause(ctx))
		return
	}
	d.settle(ctx, s, o)
}

// outcome makes the attempt, unless there were enough.
func (d *Deliverer) outcome(ctx context.Context, s *sinkState, c notification.Claim) notification.Outcome {
	if c.AttemptCount >= s.MaxAttempts {
		return notification.Outcome{Claim: c, Verdict: notification.Dead, Error: d.exhausted(ctx, c)}
	}
	r := d.attempt(ctx, s, c)
	o := notification.Outcome{
		Claim: c, Verdict: r.Verdict, RunID: r.RunID, Delay: r.After,
		Error: d.bounded(r.Error, maxErrorBytes), Status: r.Status, Excerpt: d.bounded(r.Excerpt, maxExcerptBytes),
	}
	switch r.Verdict {
	case notification.Failed, notification.Redispatch:
		if failures := c.AttemptCount + 1; failures >= s.MaxAttempts {
			o.Delay = 0 // there is nothing to wait for: the next claim ends it
		} else {
			o.Delay = max(r.After, s.backoff.Delay(failures))
		}
	default:
	}
	if r.Pause != "" {
		d.pause(ctx, s, r.Pause)
	}
	return o
}

// exhausted says why nothing is sent any more, with the last failure.
func (d *Deliverer) exhausted(ctx context.Context, c notification.Claim) string {
	text := "given up after " + strconv.Itoa(c.AttemptCount) + " failures in a row"
	if n, err := d.o.Store.Get(ctx, c.ID); err == nil && n.LastError != "" {
		text += ", the last one: " + n.LastError
	}
	return d.bounded(text, maxErrorBytes)
}

// attempt asks the sink. A panic there is a failure like any other, so that it is counted and comes to an end.
func (d *Deliverer) attempt(ctx context.Context, s *sinkState, c notification.Claim) (r sink.Result) {
	ctx, span := d.start(ctx, s, c)
	defer func() {
		if v := recover(); v != nil {
			d.o.Log.ErrorContext(ctx, "attempt panicked", "sink", s.Name, "event_id", c.Event.ID, "err", &run.PanicError{Value: v, Stack: debug.Stack()})
			r = sink.Result{Verdict: notification.Failed, Error: "internal error of notifier: see its log"}
		}
		if r.Error != "" {
			span.SetStatus(otelcodes.Error, d.bounded(r.Error, maxErrorBytes))
		}
		span.SetAttributes(attribute.String("toolherd.verdict", string(r.Verdict)))
		span.End()
	}()
	return s.Sender.Send(ctx, c)
}

// start starts the span of an attempt, linked to the submit of its task.
func (d *Deliverer) start(ctx context.Context, s *sinkState, c notification.Claim) (context.Context, trace.Span) {
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer), trace.WithNewRoot()}
	if submit := trace.SpanContextFromContext(telemetry.WithTraceparent(context.WithoutCancel(ctx), c.Event.Traceparent, "")); submit.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: submit}))
	}
	ctx, span := d.o.Tracer.Start(ctx, "deliver", opts...)
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("toolherd.sink", s.Name), attribute.String("toolherd.sink_type", s.Type),
			attribute.String("toolherd.task_id", c.Event.TaskID), attribute.String("toolherd.event_id", c.Event.ID),
			attribute.String("toolherd.phase", string(c.Phase)), attribute.Int("toolherd.attempt_count", c.AttemptCount),
		)
	}
	return ctx, span
}

func (d *Deliverer) pause(ctx context.Context, s *sinkState, why string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	why = d.bounded(why, maxErrorBytes)
	if err := d.o.Store.SetPaused(ctx, s.Name, true, why); err != nil {
		d.o.Log.ErrorContext(ctx, "sink cannot be paused", "sink", s.Name, "reason", why, "err", err)
		return
	}
	d.o.Log.ErrorContext(ctx, "sink is paused", "sink", s.Name, "reason", why)
}

// settle writes an outcome. While the database does not take it, it is tried again for as long as the lease lives.
func (d *Deliverer) settle(ctx context.Context, s *sinkState, o notification.Outcome) {
	failing := backoff.New(backoff.Config{Base: 50 * time.Millisecond, Cap: 2 * time.Second, Jitter: 0.2})
	for {
		written, err := d.settleOnce(ctx, o)
		switch {
		case err == nil && written:
			d.settled(ctx, s, o)
			return
		case err == nil:
			d.o.Metrics.count(s.Name, stale)
			d.o.Log.InfoContext(ctx, "outcome is stale and dropped", "sink", s.Name, "event_id", o.Claim.Event.ID, "verdict", string(o.Verdict))
			return
		}
		if backoff.Sleep(ctx, failing.Next()) != nil {
			d.o.Metrics.count(s.Name, abandoned)
			d.o.Log.WarnContext(ctx, "outcome could not be written: the delivery is made again", "sink", s.Name, "event_id", o.Claim.Event.ID, "err", err)
			return
		}
	}
}

// settleOnce is not cancelled with the attempt: it is what the attempt was for.
func (d *Deliverer) settleOnce(ctx context.Context, o notification.Outcome) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(storeTimeout, d.o.Lease))
	defer cancel()
	return d.o.Store.Settle(ctx, o)
}

// settled accounts for an outcome that was written.
func (d *Deliverer) settled(ctx context.Context, s *sinkState, o notification.Outcome) {
	event := []any{"sink", s.Name, "event_id", o.Claim.Event.ID}
	switch o.Verdict {
	case notification.Done:
		d.o.Metrics.delivered(s.Name, time.Since(o.Claim.Event.Created))
		d.o.Log.DebugContext(ctx, "delivered", event...)
	case notification.Failed, notification.Redispatch:
		d.o.Metrics.count(s.Name, failed)
		d.o.Log.InfoContext(ctx, "delivery failed", append(event, "failures", o.Claim.AttemptCount+1, "next_in", o.Delay, "err", o.Error)...)
	case notification.Deferred:
		d.o.Metrics.count(s.Name, deferred)
	case notification.Dead:
		d.o.Metrics.count(s.Name, dead)
		d.o.Log.ErrorContext(ctx, "delivery is a dead letter", append(event, "err", o.Error)...)
	default:
	}
}

// bounded returns text without secrets, of at most n bytes.
func (d *Deliverer) bounded(text string, n int) string {
	text = d.o.Redact(text) // first: half a secret is not recognised
	if len(text) <= n {
		return text
	}
	const cut = "…"
	return text[:n-len(cut)] + cut // the store repairs what this does to a character
}
