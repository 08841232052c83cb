package stack

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/toolherd/toolherd/services/toolproxy"
)

func TestMain(m *testing.M) {
	if toolproxy.IsWatchdog() {
		os.Exit(toolproxy.Watchdog())
	}
	goleak.VerifyTestMain(m)
}
