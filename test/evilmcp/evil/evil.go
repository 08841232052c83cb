// Package evil is an MCP server that misbehaves in one chosen way.
//
// Each [Mode] is otherwise a well-behaved server (package fake answers), so that a test gets as far as
// the one thing that it is about: a mode is honest up to the method that triggers it, mostly tools/call.
// Modes are listed by [Modes]; over stdio [Stdio] runs one, over HTTP [Handler] serves one. Everything is
// bounded in time and size, so that a test that fails leaves nothing running for long.
package evil

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/toolherd/toolherd/test/fakemcp/fake"
	"github.com/toolherd/toolherd/test/rawrpc"
)

// Secret is in what some modes write to standard error, in the shapes that have to be redacted.
const Secret = "sk-evil-4f9d2c7b1e6a8035"

// Options steer a mode.
type Options struct {
	// On is the method that triggers the mode; that of the mode when empty, `*` for every request.
	On string
	// Size replaces the number of bytes or items of modes that have one.
	Size int
	// Delay replaces the wait of modes that have one.
	Delay time.Duration
	// Target is a URL that some HTTP modes point to.
	Target string
	// PIDFile gets a line with a process id for each child that a mode starts.
	PIDFile string
	// Ready, when set, is closed by a child once it ignores signals.
	Ready io.Closer
	// JSON answers HTTP requests with JSON where the mode leaves that open.
	JSON bool
}

// Mode is one way to misbehave. Exactly one of its functions is set.
type Mode struct {
	Name  string
	About string
	// On is the method that triggers the mode; tools/call when empty.
	On string
	// Size and Delay are the defaults for [Options].
	Size  int
	Delay time.Duration

	// frames turns the honest answer into what is written, each a line over stdio and an event over
	// HTTP. Without frames nothing is answered.
	frames func(r *request) [][]byte
	// process runs instead of the whole stdio server.
	process func(ctx context.Context, p *process) error
	// wire answers an HTTP request.
	wire func(w http.ResponseWriter, h *httpRequest)
}

// Transports tells over what the mode works: "stdio", "http" or "stdio,http".
func (m Mode) Transports() string {
	switch {
	case m.process != nil:
		return "stdio"
	case m.wire != nil:
		return "http"
	}
	return "stdio,http"
}

// request is one request that a mode answers.
type request struct {
	o      Options
	msg    rawrpc.Message
	honest []byte // the answer of the honest server
	seen   int    // requests of this method before this one
}

// Modes returns every mode by name.
func Modes() []Mode {
	all := slices.Concat(processModes(), childModes(), noiseModes(), sizeModes(), answerModes(), askModes(), listModes(), initModes(), httpModes(), bodyModes())
	slices.SortFunc(all, func(a, b Mode) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Find returns a mode by name.
func Find(name string) (Mode, error) {
	for _, m := range Modes() {
		if m.Name == name {
			return m, nil
		}
	}
	return Mode{}, fmt.Errorf("no mode %q: evilmcp -list names them", name)
}

// with fills in what the options leave open.
func (m Mode) with(o Options) Options {
	o.On = cmp.Or(o.On, m.On, "tools/call")
	o.Size = cmp.Or(o.Size, m.Size)
	o.Delay = cmp.Or(o.Delay, m.Delay)
	return o
}

// triggers reports whether a message triggers the mode.
func (o Options) triggers(m rawrpc.Message) bool {
	return m.IsRequest() && (o.On == "*" || o.On == m.Method)
}

// honest is the well-behaved server behind a mode: few tools, every legacy version.
func honest(exit func(int)) *fake.Server {
	return fake.New(fake.Options{
		Name: "evil", Only: []string{"echo", "sleep", "counter", "pid", "stats", "big", "exit"}, Exit: exit,
	})
}

// answered is what a mode writes for one request.
func (m Mode) answered(r *request) [][]byte {
	if !r.o.triggers(r.msg) {
		return [][]byte{r.honest}
	}
	return m.frames(r)
}

// result answers r with a result of its own.
func (r *request) result(result string) []byte {
	return rawrpc.Result(r.msg.ID, json.RawMessage(result))
}

// text answers r with a result of one text block.
func (r *request) text(s string) []byte {
	return r.result(`{"content":[{"type":"text","text":` + string(rawrpc.Quote(s)) + `}]}`)
}

// answers makes a mode that answers its method with a fixed result.
func answers(name, on, about, result string) Mode {
	return Mode{Name: name, On: on, About: about, frames: func(r *request) [][]byte { return [][]byte{r.result(result)} }}
}

// lines makes a mode that answers with fixed frames, %ID% in which becomes the id of the request.
func lines(name, about string, frames ...string) Mode {
	return Mode{Name: name, About: about, frames: func(r *request) [][]byte {
		var out [][]byte
		for _, f := range frames {
			out = append(out, []byte(strings.ReplaceAll(f, "%ID%", string(r.msg.ID))))
		}
		return out
	}}
}

// fill returns n bytes of b, as a string of JSON needs no escapes for.
func fill(n int, b byte) []byte { return bytes.Repeat([]byte{b}, n) }

// List writes one line for each mode: name, transports, triggering method and description.
func List(w io.Writer) error {
	for _, m := range Modes() {
		on := cmp.Or(m.On, "tools/call")
		if m.process != nil {
			on = "-"
		}
		if _, err := fmt.Fprintf(w, "%-28s %-11s %-15s %s\n", m.Name, m.Transports(), on, m.About); err != nil {
			return err
		}
	}
	return nil
}

// started tells the test about a child.
func (o Options) started(pid int) error {
	if o.PIDFile == "" {
		return nil
	}
	f, err := os.OpenFile(o.PIDFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(f, pid); err != nil {
		return err
	}
	return f.Close()
}
