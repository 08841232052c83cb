package rpc

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// metrics counts the calls of a process's servers.
//
// toolherd_rpc_server_duration_seconds is a histogram with the labels server, method and code. Methods are those
// registered and "unknown", codes the canonical names, so the set of labels is closed. The histogram's count is the
// number of calls. The observers of a method are looked up once per code, so that a call pays for one observation:
// an OpenTelemetry meter would build an attribute set per call.
type metrics struct {
	duration *prometheus.HistogramVec
}

// newMetrics registers the metrics, or finds those that another server of the process registered.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "toolherd_rpc_server_duration_seconds",
		Help:    "How long a gRPC call took in the server, by method and status code.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	}, []string{"server", "method", "code"})
	err := r.Register(duration)
	if taken, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := taken.ExistingCollector.(*prometheus.HistogramVec); ok {
			return &metrics{existing}, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("register rpc metrics: %w", err)
	}
	return &metrics{duration}, nil
}

// observer observes the calls of one method. A nil observer observes nothing.
type observer struct {
	metrics        *metrics
	server, method string
	byCode         [codes.Unauthenticated + 1]atomic.Pointer[prometheus.Observer]
}

func (m *metrics) method(server, method string) *observer {
	if m == nil {
		return nil
	}
	return &observer{metrics: m, server: server, method: method}
}

func (o *observer) observe(code codes.Code, d time.Duration) {
	if o == nil {
		return
	}
	if int(code) >= len(o.byCode) {
		code = codes.Unknown
	}
	p := o.byCode[code].Load()
	if p == nil {
		p = new(o.metrics.duration.WithLabelValues(o.server, o.method, codeName(code)))
		o.byCode[code].Store(p)
	}
	(*p).Observe(d.Seconds())
}
