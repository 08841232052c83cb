package safehttp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

// answers is a resolver that gives its answers in turn and the last one for ever.
type answers struct {
	mu    sync.Mutex
	next  [][]string
	asked int
}

func (a *answers) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	if len(a.next) == 0 {
		return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
	}
	now := a.next[0]
	if len(a.next) > 1 {
		a.next = a.next[1:]
	}
	var out []netip.Addr
	for _, s := range now {
		out = append(out, netip.MustParseAddr(s))
	}
	return out, nil
}

// dialled records where a dialer would have connected to.
type dialled struct {
	mu    sync.Mutex
	addrs []string
	fail  map[string]bool
	hang  map[string]bool
}

func (d *dialled) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	d.mu.Lock()
	d.addrs = append(d.addrs, addr)
	fail, hang := d.fail[addr], d.hang[addr]
	d.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if fail {
		return nil, errors.New("connection refused")
	}
	c, _ := net.Pipe()
	return c, nil
}

func newDialer(p Policy, r Resolver, d *dialled) *dialer {
	return &dialer{private: p, setting: "set allow_private", resolver: r, timeout: 5 * time.Second, dial: d.dial}
}

func TestANameThatFlipsIsDialledAtTheCheckedAddress(t *testing.T) {
	// CRED-024: one resolution, and the address of that answer is dialled.
	r, seen := &answers{next: [][]string{{"203.0.113.5"}, {"10.0.0.1"}}}, &dialled{}
	d := newDialer(nil, r, seen)
	conn, err := d.DialContext(t.Context(), "tcp", "flip.example:80")
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if r.asked != 1 || len(seen.addrs) != 1 || seen.addrs[0] != "203.0.113.5:80" {
		t.Fatalf("asked %d times, dialled %v", r.asked, seen.addrs)
	}
	_, err = d.DialContext(t.Context(), "tcp", "flip.example:80")
	if !errors.Is(err, ErrRefused) || len(seen.addrs) != 1 {
		t.Fatalf("second answer 10.0.0.1: err %v, dialled %v", err, seen.addrs)
	}
	for _, want := range []string{"10.0.0.1", "flip.example", "private network", "set allow_private"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the message lacks %q: %v", want, err)
		}
	}
}

func TestAddressesAreRefusedBeforeDialling(t *testing.T) {
	for _, tt := range []struct {
		addr    string
		resolve []string
		allow   Policy
		ok      bool
	}{
		{addr: "127.0.0.1:80"},
		{addr: "127.0.0.1:80", allow: AnyHost, ok: true},
		{addr: "[::1]:80"},
		{addr: "[::ffff:169.254.169.254]:80", allow: AnyHost},
		{addr: "169.254.169.254:80", allow: AnyHost},
		{addr: "[fd00:ec2::254]:80", allow: AnyHost},
		{addr: "metadata.google.internal:80", resolve: []string{"203.0.113.5"}, allow: AnyHost},
		{addr: "Metadata.Google.Internal.:80", resolve: []string{"203.0.113.5"}, allow: AnyHost},
		{addr: "innocent.example:80", resolve: []string{"169.254.169.254"}, allow: AnyHost},
		{addr: "innocent.example:80", resolve: []string{"203.0.113.5", "169.254.169.254"}, allow: AnyHost},
		{addr: "innocent.example:80", resolve: []string{"64:ff9b::a9fe:a9fe"}, allow: AnyHost},
		{addr: "127.1:80", resolve: []string{"203.0.113.5"}, allow: AnyHost},
		{addr: "0x7f000001:80", resolve: []string{"203.0.113.5"}, allow: AnyHost},
		{addr: "017700000001:80", allow: AnyHost},
		{addr: "2130706433:80", allow: AnyHost},
		{addr: "224.0.0.1:80", allow: AnyHost},
		{addr: "localhost:80", resolve: []string{"::1", "127.0.0.1"}},
		{addr: "localhost.:80", resolve: []string{"::1", "127.0.0.1"}},
		{addr: "localhost:80", resolve: []string{"::1", "127.0.0.1"}, allow: AnyHost, ok: true},
		{addr: "mixed.example:80", resolve: []string{"10.0.0.1", "203.0.113.5"}, ok: true},
	} {
		seen := &dialled{}
		conn, err := newDialer(tt.allow, &answers{next: [][]string{tt.resolve}}, seen).DialContext(t.Context(), "tcp", tt.addr)
		if conn != nil {
			_ = conn.Close()
		}
		if tt.ok {
			if err != nil {
				t.Errorf("%s (%v): %v", tt.addr, tt.resolve, err)
			}
			if tt.addr == "mixed.example:80" && seen.addrs[0] != "203.0.113.5:80" {
				t.Errorf("%s dialled %v", tt.addr, seen.addrs)
			}
			continue
		}
		if !errors.Is(err, ErrRefused) || len(seen.addrs) != 0 {
			t.Errorf("%s (%v): err %v, dialled %v", tt.addr, tt.resolve, err, seen.addrs)
		}
		if _, ok := errors.AsType[*DialError](err); !ok {
			t.Errorf("%s: %T is no DialError", tt.addr, err)
		}
	}
}

func TestASecondAddressIsTriedWhenTheFirstFailsOrHangs(t *testing.T) {
	r := &answers{next: [][]string{{"2001:db8::1", "2001:db8::2", "203.0.113.5"}}}
	for name, seen := range map[string]*dialled{
		"fails": {fail: map[string]bool{"[2001:db8::1]:80": true}},
		"hangs": {hang: map[string]bool{"[2001:db8::1]:80": true}},
	} {
		conn, err := newDialer(nil, r, seen).DialContext(t.Context(), "tcp", "dual.example:80")
		if err != nil {
			t.Fatalf("first address %s: %v", name, err)
		}
		_ = conn.Close()
		if len(seen.addrs) < 2 || seen.addrs[1] != "203.0.113.5:80" {
			t.Errorf("first address %s: dialled %v, want the other family second", name, seen.addrs)
		}
	}
}

func TestAnUnreachableHostFailsWithTheFirstCauseWithinTheTimeout(t *testing.T) {
	r := &answers{next: [][]string{{"203.0.113.5", "203.0.113.6"}}}
	seen := &dialled{fail: map[string]bool{"203.0.113.5:80": true}, hang: map[string]bool{"203.0.113.6:80": true}}
	d := newDialer(nil, r, seen)
	d.timeout = 50 * time.Millisecond
	_, err := d.DialContext(t.Context(), "tcp", "dead.example:80")
	if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "dead.example:80") {
		t.Fatalf("err = %v", err)
	}
	if errors.Is(err, ErrRefused) {
		t.Fatal("a refused connection is not a refusal of ours")
	}
}
