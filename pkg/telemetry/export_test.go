package telemetry_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/telemetry"
)

// collector is an OTLP collector that keeps what it gets.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	mu  sync.Mutex
	got []*collectorv1.ExportTraceServiceRequest
}

func (c *collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, r)
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func TestSpansReachTheCollectorWithoutSecrets(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var c collector
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, &c)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() { server.Stop(); <-served }()

	tel, err := telemetry.New(t.Context(), telemetry.Config{
		Service: "toolproxy", Version: "1.2.3", LogOutput: t.Output(), OTLPEndpoint: "http://" + l.Addr().String(), Redact: hideHunter2,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, parent := tel.Tracer("test").Start(t.Context(), "parent hunter2", trace.WithAttributes(attribute.String("a", "hunter2")))
	_, child := tel.Tracer("test").Start(ctx, "child", trace.WithLinks(trace.Link{
		SpanContext: parent.SpanContext(), Attributes: []attribute.KeyValue{attribute.String("l", "hunter2")},
	}))
	child.SetAttributes(attribute.StringSlice("s", []string{"hunter2", "x"}), attribute.Int("n", 7))
	child.AddEvent("event hunter2", trace.WithAttributes(attribute.String("e", "hunter2")))
	child.RecordError(errors.New("hunter2"))
	child.SetStatus(otelcodes.Error, "hunter2")
	child.End()
	parent.End()
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	var all strings.Builder
	names := map[string]bool{}
	for _, r := range c.got {
		all.WriteString(r.String())
		for _, rs := range r.GetResourceSpans() {
			for _, ss := range rs.GetScopeSpans() {
				for _, s := range ss.GetSpans() {
					names[s.GetName()] = true
				}
			}
		}
	}
	if !names["parent ***"] || !names["child"] {
		t.Errorf("exported spans are %v", names)
	}
	text := all.String()
	if strings.Contains(text, "hunter2") {
		t.Errorf("a secret was exported: %s", text)
	}
	if n := strings.Count(text, "***"); n != 8 {
		t.Errorf("%d of 8 places are redacted: %s", n, text)
	}
	for _, want := range []string{"toolproxy", "1.2.3", "int_value:7"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q was not exported", want)
		}
	}
}

func TestAnAbsentCollectorIsLoggedAndHarmless(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	var out strings.Builder
	tel, err := telemetry.New(t.Context(), telemetry.Config{
		Service: "toolproxy", LogOutput: &out, OTLPEndpoint: "http://" + address,
	})
	if err != nil {
		t.Fatal(err)
	}
	_, span := tel.Tracer("test").Start(t.Context(), "work")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := tel.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "otlp_endpoint") || strings.Count(out.String(), "level=WARN") != 1 {
		t.Errorf("the log does not say once that spans are lost:\n%s", out.String())
	}
}
