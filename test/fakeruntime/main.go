// Command fakeruntime is the agent runtime and the webhook receiver of package fake as one process.
//
// It writes one line, `listening grpc=ADDR http=ADDR`, to standard error, and appends every call that reaches it as a
// line of JSON (see fake.Record) to the file that -records names. It ends with SIGINT or SIGTERM. While it runs, plans can
// be replaced on the address that -control opens, whose line is `control http=ADDR`:
//
//	POST /runs?plan=succeed[&thread=ID]        POST /deliveries?plan=200[&path=/hook]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/toolherd/toolherd/test/fakeruntime/fake"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "fakeruntime:", err)
		os.Exit(1)
	}
}

// settings are what the flags say.
type settings struct {
	grpc, http, control, records string
	runtime                      fake.RuntimeOptions
	receiver                     fake.ReceiverOptions
}

func parse(args []string) (settings, error) {
	s := settings{}
	s.runtime.Threads, s.receiver.Paths = map[string]fake.Plan{}, map[string]fake.Plan{}
	flags := flag.NewFlagSet("fakeruntime", flag.ContinueOnError)
	flags.StringVar(&s.grpc, "grpc", "127.0.0.1:0", "address of the agent runtime; empty for none")
	flags.StringVar(&s.http, "http", "127.0.0.1:0", "address of the webhook receiver; empty for none")
	flags.StringVar(&s.control, "control", "", "address where plans can be replaced; empty for none")
	flags.StringVar(&s.records, "records", "", "append every call to this `file` as a line of JSON")
	flags.StringVar(&s.runtime.Token, "token", fake.DefaultToken, "bearer `token` that calls of the runtime must carry")
	one := func(to *fake.Plan) func(string) error {
		return func(text string) (err error) {
			*to, err = fake.ParsePlan(text)
			return err
		}
	}
	keyed := func(to map[string]fake.Plan) func(string) error {
		return func(text string) (err error) {
			key, plan, ok := strings.Cut(text, "=")
			if !ok || key == "" {
				return errors.New("want KEY=PLAN")
			}
			to[key], err = fake.ParsePlan(plan)
			return err
		}
	}
	flags.Func("runs", "`plan` of the runs, such as busy*2,fail,succeed", one(&s.runtime.Plan))
	flags.Func("thread", "`ID=plan` of one thread; repeatable", keyed(s.runtime.Threads))
	flags.Func("deliveries", "`plan` of the deliveries, such as 503;retry=2*3,200", one(&s.receiver.Plan))
	flags.Func("path", "`/path=plan` of one path; repeatable", keyed(s.receiver.Paths))
	flags.Func("key", "verify deliveries with this whsec_ or whpk_ `key`; repeatable", func(key string) error {
		s.receiver.Keys = append(s.receiver.Keys, key)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return s, nil
}

func run(ctx context.Context, args []string, stderr io.Writer) (err error) {
	s, err := parse(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var records io.Writer
	if s.records != "" {
		f, err := os.OpenFile(s.records, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		records = f
	}
	journal := fake.NewJournal(records)
	s.runtime.Journal, s.receiver.Journal = journal, journal
	runtime, err := fake.NewRuntime(s.runtime)
	if err != nil {
		return err
	}
	receiver, err := fake.NewReceiver(s.receiver)
	if err != nil {
		return err
	}
	addrs := [2]string{"off", "off"}
	for i, listen := range []func() (*fake.Server, error){
		func() (*fake.Server, error) { return fake.ListenRuntime(ctx, s.grpc, runtime) },
		func() (*fake.Server, error) { return fake.ListenReceiver(ctx, s.http, receiver) },
	} {
		if (i == 0 && s.grpc == "") || (i == 1 && s.http == "") {
			continue
		}
		server, err := listen()
		if err != nil {
			return err
		}
		defer func() { _ = server.Close() }()
		addrs[i] = server.Addr
	}
	if s.control != "" {
		stop, err := control(ctx, s.control, stderr, runtime, receiver)
		if err != nil {
			return err
		}
		defer stop()
	}
	fmt.Fprintf(stderr, "listening grpc=%s http=%s\n", addrs[0], addrs[1])
	<-ctx.Done()
	return journal.Err()
}

// control serves the replacing of plans.
func control(ctx context.Context, address string, stderr io.Writer, runtime *fake.Runtime, receiver *fake.Receiver) (stop func(), err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	replace := func(key string, set func(string, fake.Plan) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			plan, err := fake.ParsePlan(r.URL.Query().Get("plan"))
			if err == nil {
				err = set(r.URL.Query().Get(key), plan)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /runs", replace("thread", runtime.SetPlan))
	mux.HandleFunc("POST /deliveries", replace("path", receiver.SetPlan))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // ends with stop
	}()
	fmt.Fprintln(stderr, "control http="+l.Addr().String())
	return func() {
		_ = server.Close()
		<-done
	}, nil
}
