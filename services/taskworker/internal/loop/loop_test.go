package loop_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/services/taskworker/internal/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestALoopStepsAtOnceThenAtItsIntervalAndAgainAtOnceForMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		began := time.Now()
		var at []time.Duration
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := loop.Loop{
			Name: "count", Every: time.Minute, Timeout: time.Second, Log: slog.New(slog.NewTextHandler(&log, nil)),
			Step: func(ctx context.Context) (bool, error) {
				if d, ok := ctx.Deadline(); !ok || time.Until(d) > time.Second {
					t.Error("a step has no deadline")
				}
				at = append(at, time.Since(began))
				switch len(at) {
				case 2:
					return true, nil
				case 4, 5, 6, 7, 8, 9, 10:
					return false, errors.New("away")
				case 12:
					cancel()
				}
				return false, nil
			},
		}
		if err := l.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if at[0] != 0 || at[1] != time.Minute || at[2] != time.Minute || at[3] != 2*time.Minute {
			t.Errorf("steps at %v", at)
		}
		for i := 4; i < 11; i++ {
			if gap := at[i] - at[i-1]; gap <= 0 || gap > 5*time.Second {
				t.Errorf("try %d after %v", i, gap)
			}
		}
		if at[11]-at[10] != time.Minute {
			t.Errorf("steps at %v: not back at the interval", at)
		}
		text := log.String()
		if strings.Count(text, "\n") != 2 || strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "works again") {
			t.Errorf("an outage is two lines, got:\n%s", text)
		}
	})
}
