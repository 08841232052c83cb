package telemetry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	callerTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	callerParent = "00-" + callerTrace + "-00f067aa0ba902b7-01"
)

func hideHunter2(s string) string { return strings.ReplaceAll(s, "hunter2", "***") }

func start(t *testing.T, c telemetry.Config) *telemetry.Telemetry {
	t.Helper()
	c.Service = "toolproxy"
	if c.LogOutput == nil {
		c.LogOutput = t.Output()
	}
	tel, err := telemetry.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tel.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return tel
}

type credentials struct {
	User     string `json:"user"`
	Password string `json:"password"`
}

type broken struct{}

func (*broken) Error() string { panic("hunter2") }

func TestNothingSecretReachesTheLog(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			var out strings.Builder
			log := start(t, telemetry.Config{LogFormat: format, LogOutput: &out, Redact: hideHunter2}).Log
			log = log.With("bound", "hunter2").WithGroup("g")
			log.Info("message hunter2",
				"text", "a hunter2 b",
				"err", fmt.Errorf("dial: %w", fault.New(fault.ServerError, "hunter2").Because(errors.New("cause hunter2"))),
				"struct", credentials{"u", "hunter2"},
				"pointer", &credentials{"u", "hunter2"},
				"map", map[string]any{"k": []string{"hunter2"}},
				slog.Group("inner", "x", "hunter2"),
				"panics", error(new(broken)),
				"harmless", credentials{"u", "p"},
				"number", 2,
			)
			line := out.String()
			if strings.Contains(line, "hunter2") {
				t.Errorf("a secret is in the log: %s", line)
			}
			if n := strings.Count(line, "***"); n != 10 {
				t.Errorf("%d of 10 places are redacted: %s", n, line)
			}
			if !strings.Contains(line, "(cause: cause ***)") {
				t.Errorf("the cause of a fault is not logged: %s", line)
			}
			if format == "json" {
				var record struct {
					G struct {
						Number   int
						Harmless credentials
					}
				}
				if err := json.Unmarshal([]byte(line), &record); err != nil || record.G.Number != 2 || record.G.Harmless.User != "u" {
					t.Errorf("values without secrets changed: %+v, %v: %s", record, err, line)
				}
			}
		})
	}
}

func TestLinesInASpanNameItsTrace(t *testing.T) {
	var out strings.Builder
	tel := start(t, telemetry.Config{LogFormat: "json", LogOutput: &out})
	ctx, span := tel.Tracer("test").Start(telemetry.WithTraceparent(t.Context(), callerParent, ""), "work")
	defer span.End()
	tel.Log.InfoContext(ctx, "inside")
	var line struct {
		TraceID string `json:"trace_id"`
		SpanID  string `json:"span_id"`
	}
	if err := json.Unmarshal([]byte(out.String()), &line); err != nil {
		t.Fatal(err)
	}
	if line.TraceID != callerTrace || line.SpanID != span.SpanContext().SpanID().String() {
		t.Errorf("line is in %+v, want trace %s and span %s", line, callerTrace, span.SpanContext().SpanID())
	}
	out.Reset()
	tel.Log.Info("outside")
	if strings.Contains(out.String(), "trace_id") {
		t.Errorf("a line outside any span has a trace: %s", out.String())
	}
}

func TestLevelsAreKept(t *testing.T) {
	var out strings.Builder
	log := start(t, telemetry.Config{LogLevel: "warn", LogOutput: &out}).Log
	log.Info("no")
	log.Warn("yes")
	if strings.Contains(out.String(), "no") || !strings.Contains(out.String(), "level=WARN") {
		t.Errorf("log is %q", out.String())
	}
}

// Without an endpoint nothing is exported, and the trace of a caller still goes through, sampled or not.
func TestTraceContextTravelsWithoutAnExporter(t *testing.T) {
	tel := start(t, telemetry.Config{})
	for _, flags := range []string{"00", "01"} {
		parent := "00-" + callerTrace + "-00f067aa0ba902b7-" + flags
		ctx, span := tel.Tracer("test").Start(telemetry.WithTraceparent(t.Context(), parent, "vendor=1"), "work")
		got, state := telemetry.Traceparent(ctx)
		want := "00-" + callerTrace + "-" + span.SpanContext().SpanID().String() + "-" + flags
		if got != want || state != "vendor=1" {
			t.Errorf("traceparent %q, %q, want %q", got, state, want)
		}
		span.End()
	}
	ctx, span := tel.Tracer("test").Start(t.Context(), "root")
	defer span.End()
	if got, _ := telemetry.Traceparent(ctx); !strings.HasSuffix(got, "-00") || span.IsRecording() {
		t.Errorf("a root span is recorded for nobody: %q", got)
	}
}

func TestHandlerServesHealthReadinessAndMetrics(t *testing.T) {
	tel := start(t, telemetry.Config{Version: "1.2.3", Redact: hideHunter2})
	var ready error
	server := httptest.NewServer(tel.Handler(func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("readiness is asked without a time limit")
		}
		return ready
	}))
	defer server.Close()
	get := func(method, path string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	for _, want := range []struct {
		ready  error
		method string
		path   string
		status int
		text   string
	}{
		{nil, "GET", "/healthz", 200, "ok"},
		{nil, "GET", "/readyz", 200, "ok"},
		{errors.New("no snapshot yet: hunter2"), "GET", "/readyz", 503, "no snapshot yet: ***"},
		{errors.New("no snapshot yet"), "GET", "/healthz", 200, "ok"},
		{nil, "GET", "/metrics", 200, `toolherd_build_info{service="toolproxy",version="1.2.3"} 1`},
		{nil, "GET", "/metrics", 200, "go_goroutines"},
		{nil, "POST", "/readyz", 405, ""},
		{nil, "GET", "/debug/pprof/", 404, ""},
	} {
		ready = want.ready
		status, body := get(want.method, want.path)
		if status != want.status || !strings.Contains(body, want.text) {
			t.Errorf("%s %s: %d %q, want %d %q", want.method, want.path, status, body, want.status, want.text)
		}
	}
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	for want, c := range map[string]telemetry.Config{
		"Service":            {LogOutput: io.Discard},
		"LogOutput":          {Service: "x"},
		`log_level "loud"`:   {Service: "x", LogOutput: io.Discard, LogLevel: "loud"},
		`log_format "xml"`:   {Service: "x", LogOutput: io.Discard, LogFormat: "xml"},
		"sample ratio":       {Service: "x", LogOutput: io.Discard, SampleRatio: 2},
		"http://collector":   {Service: "x", LogOutput: io.Discard, OTLPEndpoint: "collector:4317"},
		"is not shown":       {Service: "x", LogOutput: io.Discard, OTLPEndpoint: "ftp://u:hunter2@collector"},
		`otlp_endpoint "x"`:  {Service: "x", LogOutput: io.Discard, OTLPEndpoint: "x"},
		`"ftp://collector"`:  {Service: "x", LogOutput: io.Discard, OTLPEndpoint: "ftp://collector"},
		`"http://%zz:4317"`:  {Service: "x", LogOutput: io.Discard, OTLPEndpoint: "http://%zz:4317"},
		`otlp_endpoint "//"`: {Service: "x", LogOutput: io.Discard, OTLPEndpoint: "//"},
	} {
		if _, err := telemetry.New(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error about %s", c, err, want)
		}
	}
}
