package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// subject is one path whose calls are measured.
type subject struct {
	name string
	call func(ctx context.Context) error
}

// sample is what one round of a subject gave.
type sample struct {
	p50, p99  time.Duration
	perSecond float64
}

// load keeps a number of calls of a subject in flight for a while.
func load(t *testing.T, s subject, concurrency int, d time.Duration) sample {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d+30*time.Second)
	defer cancel()
	var mu sync.Mutex
	var all []time.Duration
	start := time.Now()
	var wg sync.WaitGroup
	for range concurrency {
		wg.Go(func() {
			var own []time.Duration
			for time.Since(start) < d {
				before := time.Now()
				if err := s.call(ctx); err != nil {
					t.Errorf("%s: %v", s.name, err)
					return
				}
				own = append(own, time.Since(before))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	if t.Failed() || len(all) == 0 {
		t.FailNow()
	}
	slices.Sort(all)
	return sample{p50: all[len(all)/2], p99: all[len(all)*99/100], perSecond: float64(len(all)) / elapsed.Seconds()}
}

// rounds interleaves the subjects and returns their samples, one per round.
func rounds(t *testing.T, subjects []subject, concurrency int) map[string][]sample {
	t.Helper()
	out := map[string][]sample{}
	for _, s := range subjects { // warm up: connections, sessions, code
		load(t, s, concurrency, *perRound/4)
	}
	for round := range *roundCount {
		for i := range subjects { // another order each round
			s := subjects[(i+round)%len(subjects)]
			out[s.name] = append(out[s.name], load(t, s, concurrency, *perRound))
		}
	}
	return out
}

// median returns the middle of values in order.
func median[T int64 | float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// ratio is the median over the rounds of f.
func ratio(t *testing.T, n int, f func(round int) float64) float64 {
	t.Helper()
	values := make([]float64, n)
	for i := range values {
		values[i] = f(i)
	}
	return median(values)
}

// row is one line of the table.
type row struct{ what, measured, baseline, ratio, goal string }

// report collects rows and prints them at the end.
type report struct {
	mu   sync.Mutex
	rows []row
}

func (r *report) add(x row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, x)
}

func (r *report) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tTOOLHERD\tBASELINE\tRATIO\tGOAL")
	for _, x := range r.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", x.what, x.measured, x.baseline, x.ratio, x.goal)
	}
	_ = w.Flush() // a builder takes everything
	return b.String()
}

func ms(d time.Duration) string { return fmt.Sprintf("%.3f ms", float64(d)/1e6) }

func column[T any](samples []sample, f func(sample) T) []T {
	out := make([]T, len(samples))
	for i, s := range samples {
		out[i] = f(s)
	}
	return out
}

func p50(s sample) time.Duration     { return s.p50 }
func throughput(s sample) float64    { return s.perSecond }
func perSecondText(v float64) string { return fmt.Sprintf("%.0f/s", v) }
