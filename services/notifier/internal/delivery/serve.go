package delivery

import (
	"context"
	"runtime/debug"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/telemetry"
	"github.com/toolherd/toolherd/services/notifier/internal/notification"
	"github.com/toolherd/toolherd/services/notifier/internal/sink"
)

// maxTextBytes bounds each text that is kept of an attempt.
const maxTextBytes = 1 << 10

// serve makes the attempt of a claim and passes on what came of it. asked is when the claim was asked for.
func (d *Deliverer) serve(ctx context.Context, s *sinkState, c notification.Claim, asked time.Time) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	held := d.held.begin(c, asked, cancel)
	it := item{sink: s, held: held}
	select {
	case s.senders <- struct{}{}:
	case <-ctx.Done():
		d.giveUp(ctx, it, c)
		return
	}
	it.outcome = d.outcome(ctx, s, c, asked)
	<-s.senders
	if ctx.Err() != nil && it.outcome.Verdict != notification.Done && it.outcome.Verdict != notification.Handed {
		d.giveUp(ctx, it, c) // what the sink did is unknown
		return
	}
	d.items <- it
}

// giveUp leaves a delivery to its lease: it is made again once that has run out.
func (d *Deliverer) giveUp(ctx context.Context, it item, c notification.Claim) {
	d.release(it)
	d.o.Metrics.count(it.sink.Name, abandoned)
	d.o.Log.InfoContext(ctx, "attempt was given up", "sink", it.sink.Name, "event_id", c.Event.ID, "err", context.Cause(ctx))
}

// outcome makes the attempt, unless there were enough.
func (d *Deliverer) outcome(ctx context.Context, s *sinkState, c notification.Claim, asked time.Time) notification.Outcome {
	if !c.Redriven && s.pausedSince(asked) {
		return notification.Outcome{Claim: c, Verdict: notification.Deferred, Error: "the sink was paused before this was sent"}
	}
	if c.AttemptCount >= s.MaxAttempts {
		return notification.Outcome{Claim: c, Verdict: notification.Dead, Error: d.exhausted(ctx, c)}
	}
	r := d.attempt(ctx, s, c)
	o := notification.Outcome{
		Claim: c, Verdict: r.Verdict, RunID: r.RunID, Delay: r.After,
		Error: d.bounded(r.Error), Status: r.Status, Excerpt: d.bounded(r.Excerpt),
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
	return d.bounded(text)
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
			span.SetStatus(otelcodes.Error, d.bounded(r.Error))
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
	why = d.bounded(why)
	if err := d.o.Store.SetPaused(ctx, s.Name, true, why); err != nil {
		d.o.Log.ErrorContext(ctx, "sink cannot be paused", "sink", s.Name, "reason", why, "err", err)
		return
	}
	s.pausedNow()
	d.o.Log.ErrorContext(ctx, "sink is paused", "sink", s.Name, "reason", why)
}

// bounded returns text without secrets, of at most maxTextBytes.
func (d *Deliverer) bounded(text string) string {
	text = d.o.Redact(text) // first: half a secret is not recognised
	if len(text) <= maxTextBytes {
		return text
	}
	const cut = "…"
	return text[:maxTextBytes-len(cut)] + cut // the store repairs what this does to a character
}
