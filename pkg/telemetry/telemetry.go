// Package telemetry makes the log, the tracer and the metrics of a process, and serves its health over HTTP.
//
// It guarantees that nothing leaves through a log line or a span without having passed the process's redactor, and
// that a log line written in a span names its trace. It sets no global: slog's default logger, OpenTelemetry's
// providers and Prometheus's default registry stay as they are, so what does not get its logger or tracer through a
// constructor says nothing.
//
// Without an OTLP endpoint no span is recorded, but trace context still travels: a caller's trace id goes through every
// hop and appears in the log. Only W3C trace context is used, no baggage.
package telemetry

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// exportTimeout bounds one export with its retries, and with it how long a shutdown waits for an absent collector.
const exportTimeout = 2 * time.Second

// Config says what a process tells about itself. Service and LogOutput are required.
type Config struct {
	Service   string // name of the process in traces and metrics
	Version   string
	LogLevel  string    // debug, info (default), warn or error
	LogFormat string    // text (default) or json
	LogOutput io.Writer // written to by one goroutine at a time

	// OTLPEndpoint is where traces go by OTLP over gRPC, as a URL: http://host:4317 in plaintext, https with TLS.
	// Empty exports none.
	OTLPEndpoint string
	// SampleRatio is the share of the traces started in this process that are exported, above 0 and at most 1;
	// default 1. A caller's decision about its own trace is followed.
	SampleRatio float64
	// Redact removes secrets from a text; nil leaves it as it is.
	Redact func(string) string
}

// Telemetry is what New made of a Config. Log and Metrics are set.
type Telemetry struct {
	Log     *slog.Logger
	Metrics *prometheus.Registry

	service  string
	redact   func(string) string
	provider *sdktrace.TracerProvider
}

// New checks the configuration. The caller calls [Telemetry.Shutdown] last. An OTLP endpoint that cannot be reached is
// not an error: spans are dropped and the log says so.
func New(ctx context.Context, c Config) (*Telemetry, error) {
	switch {
	case c.Service == "":
		return nil, errors.New("telemetry: Service is empty")
	case c.LogOutput == nil:
		return nil, errors.New("telemetry: LogOutput is nil")
	case c.SampleRatio < 0 || c.SampleRatio > 1:
		return nil, fmt.Errorf("telemetry: sample ratio %v: want above 0 and at most 1", c.SampleRatio)
	}
	if c.Redact == nil {
		c.Redact = func(s string) string { return s }
	}
	log, err := newLog(c)
	if err != nil {
		return nil, err
	}
	provider, err := newProvider(ctx, c, log)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{Log: log, Metrics: prometheus.NewRegistry(), service: c.Service, redact: c.Redact, provider: provider}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "toolherd_build_info",
		Help: "Always 1; its labels say which service and version runs.",
	}, []string{"service", "version"})
	build.WithLabelValues(c.Service, c.Version).Set(1)
	t.Metrics.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return t, nil
}

// Tracing makes tracers, for options such as those of pkg/rpc.
func (t *Telemetry) Tracing() trace.TracerProvider { return t.provider }

// Tracer returns a tracer; name is the import path of the package that starts the spans.
func (t *Telemetry) Tracer(name string) trace.Tracer { return t.provider.Tracer(name) }

// Shutdown exports what is left, until ctx ends. Spans that end later are lost.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("shut down tracing: %w", err)
	}
	return nil
}

func newProvider(ctx context.Context, c Config, log *slog.Logger) (*sdktrace.TracerProvider, error) {
	if c.OTLPEndpoint == "" {
		// A caller's sampled trace must stay sampled for the hops after us, so its spans are "recorded", for nobody.
		return sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample()))), nil
	}
	u, err := url.Parse(c.OTLPEndpoint)
	switch {
	case strings.Contains(c.OTLPEndpoint, "@"):
		return nil, errors.New("otlp_endpoint holds credentials, which do not belong there, and is not shown: want a URL such as http://collector:4317")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("otlp_endpoint %q: want a URL such as http://collector:4317", c.OTLPEndpoint)
	}
	exporter, err := otlptracegrpc.New(ctx,
		otlptracegrpc.WithEndpointURL(c.OTLPEndpoint),
		otlptracegrpc.WithTimeout(exportTimeout),
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{
			Enabled: true, InitialInterval: 500 * time.Millisecond, MaxInterval: time.Second, MaxElapsedTime: exportTimeout,
		}))
	if err != nil {
		return nil, fmt.Errorf("otlp_endpoint %s: %w", u.Host, err)
	}
	return sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&export{next: exporter, redact: c.Redact, log: log}),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cmp.Or(c.SampleRatio, 1)))),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.namespace", "toolherd"),
			attribute.String("service.name", c.Service),
			attribute.String("service.version", c.Version),
			attribute.String("service.instance.id", rand.Text()),
		)),
	), nil
}
