package discovery_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
	"github.com/toolherd/toolherd/services/toolproxy/internal/wiretest"
)

// What one server says ends up in every answer that lists servers: it must fit and be encodable.
func TestWhatAServerSaysCannotBreakTheListOfServers(t *testing.T) {
	list := func(format string, args ...any) *wiretest.Server {
		return &wiretest.Server{Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
			if m.Method == "tools/list" {
				p.Emit(`{"jsonrpc":"2.0","id":` + string(m.ID) + "," + fmt.Sprintf(format, args...) + "}")
				return true
			}
			return false
		}}
	}
	same := `{"name":"t"},`
	servers := map[string]*wiretest.Server{
		"long":     list(`"error":{"code":-1,"message":"%s"}`, strings.Repeat("x", 5<<20)),
		"bytes":    list(`"error":{"code":-1,"message":"a%sb"}`, "\xff\xfe"),
		"numbers":  list(`"result":{"tools":[%s0]}`, strings.Repeat("0,", 1_000_000)),
		"nameless": list(`"result":{"tools":[%s{}]}`, strings.Repeat("{},", 9_000)),
		"twice":    list(`"result":{"tools":[%s{"name":"t"}]}`, strings.Repeat(same, 9_000)),
		"type":     list(`"result":{"resultType":"%s"}`, strings.Repeat("y", 5<<20)),
		"version": {Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
			p.Reply(m.ID, `{"protocolVersion":"`+strings.Repeat("z", 5<<20)+`","capabilities":{}}`)
			return true
		}},
	}
	with(t, servers, func(t *testing.T, f *fixture) {
		entries := map[string]string{}
		for name := range servers {
			entries[name] = entry(name, "")
		}
		f.publish(t, entries)
		time.Sleep(100 * time.Millisecond)
		for _, s := range f.store.Load().Servers() {
			b, err := proto.Marshal(s.View)
			if err != nil || len(b) > 16<<10 {
				t.Errorf("server %s: %d bytes, %v", s.Name, len(b), err)
			}
			if s.Status == failed && s.View.GetReason() == "" || s.Status == ok && len(s.View.GetWarnings()) == 0 {
				t.Errorf("server %s is %v and says nothing", s.Name, s.Status)
			}
		}
	})
}

// STAT-008: a server that announces another list and ends before it gives one is not started without the back-off.
func TestAnnouncementOfASessionThatEndedIsNoCauseOfACheck(t *testing.T) {
	for name, server := range map[string]*wiretest.Server{
		"before its first list": {Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
			if m.Method == "tools/list" {
				p.Notify("notifications/tools/list_changed", "{}")
				p.Exit(errors.New("exit status 1"))
			}
			return m.Method == "tools/list"
		}},
		"after a good list": {Handle: func(p *wiretest.Process, m jsonrpc.Message) bool {
			if m.Method == "tools/list" {
				p.Reply(m.ID, `{"tools":[]}`)
				p.Notify("notifications/tools/list_changed", "{}")
				p.Exit(errors.New("exit status 1"))
			}
			return m.Method == "tools/list"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			with(t, map[string]*wiretest.Server{"a": server}, func(t *testing.T, f *fixture) {
				f.publish(t, map[string]string{"a": entry("a", "")})
				time.Sleep(30 * time.Second)
				if n := len(server.Processes()); n > 7 {
					t.Errorf("%d processes were started in 30 s", n)
				}
			})
		})
	}
}
