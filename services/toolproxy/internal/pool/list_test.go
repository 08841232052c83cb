package pool_test

import (
	"fmt"
	"testing"

	"github.com/toolherd/toolherd/services/toolproxy/internal/pool"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

// A page may end between the sessions of one server and scope, so they have an order too.
func TestSessionsOfOneScopeAreListedInOneOrder(t *testing.T) {
	with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		for i := range 8 {
			fingerprint := fmt.Sprint(i)
			f.SetActive(map[string]string{"s": fingerprint})
			defer f.get(t, request(target(fingerprint), "u", "t")).Release()
		}
		var first []pool.Info
		for range 20 {
			list := f.List()
			if first == nil {
				first = list
			}
			if len(list) != 8 {
				t.Fatalf("%d sessions", len(list))
			}
			for i := range list {
				if list[i].Session != first[i].Session || i > 0 && list[i].Session.ID() <= list[i-1].Session.ID() {
					t.Fatal("the order is another one each time")
				}
			}
		}
	})
}

func TestRunningMeansThatGetWorks(t *testing.T) {
	p := pool.New(pool.Options{})
	select {
	case <-p.Running():
		t.Fatal("it runs before Run")
	default:
	}
	with(t, pool.Options{}, &wiretest.Server{}, func(t *testing.T, f *fixture) {
		<-f.Running()
		f.get(t, request(target("1"), "u", "t")).Release()
	})
}
