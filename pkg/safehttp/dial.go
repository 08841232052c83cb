package safehttp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toolherd/toolherd/pkg/fault"
)

// ErrRefused is wrapped by every error that says this package would not send a request: a forbidden address,
// name, scheme, URL or redirect. Nothing was sent to what was refused, and trying again is useless.
var ErrRefused = errors.New("refused by the outbound client")

// refuse returns the error for a request that is not sent.
func refuse(format string, args ...any) *fault.Error {
	return fault.Of(fault.FailedPrecondition, format, args...).Because(ErrRefused)
}

// DialError says that no connection could be made, so that no byte of the request was sent.
// It unwraps to the cause, such as a DNS error, a refused connection or a refusal of this package.
type DialError struct {
	Addr string // host:port as asked for
	Err  error
}

// Error returns the address and the cause.
func (e *DialError) Error() string {
	if errors.Is(e.Err, ErrRefused) {
		return e.Err.Error() // names the host already
	}
	return fmt.Sprintf("connect to %s: %v", e.Addr, e.Err)
}

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }

// A Resolver finds the addresses of a host; [net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// A dialer connects to the addresses of one resolution, each checked first.
type dialer struct {
	private  Policy
	setting  string
	resolver Resolver
	timeout  time.Duration
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	maxAddresses = 8                      // of one answer that are tried
	stagger      = 250 * time.Millisecond // head start of an address over the next one, as in RFC 8305
)

// DialContext connects to addr, a host:port. Every error is a [DialError].
func (d *dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	addrs, err := d.resolve(ctx, addr)
	if err != nil {
		return nil, &DialError{Addr: addr, Err: err}
	}
	conn, err := d.connect(ctx, network, addrs)
	if err != nil {
		return nil, &DialError{Addr: addr, Err: err}
	}
	return conn, nil
}

// resolve returns the addresses that addr stands for and that may be dialled.
func (d *dialer) resolve(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	rawHost, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	portNumber, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	host := canonical(rawHost)
	if err := checkHost(host); err != nil {
		return nil, err
	}
	found, err := d.lookup(ctx, host, rawHost)
	if err != nil {
		return nil, err
	}
	allowed := make([]netip.AddrPort, 0, len(found))
	var refused error
	for _, a := range found {
		err := d.check(host, a)
		if err == nil {
			allowed = append(allowed, netip.AddrPortFrom(a.Unmap(), uint16(portNumber)))
		} else if refused == nil {
			refused = err
		}
		if isMetadata(a) {
			return nil, err // an answer that contains such an address is nobody's honest mistake
		}
	}
	if len(allowed) == 0 {
		if refused == nil {
			refused = fmt.Errorf("no address for host %s", host)
		}
		return nil, refused
	}
	return interleave(allowed[:min(len(allowed), maxAddresses)]), nil
}

// lookup asks the resolver once, or parses a literal address; raw keeps the zone of a link-local one.
func (d *dialer) lookup(ctx context.Context, host, raw string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(raw); err == nil {
		return []netip.Addr{a}, nil
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	return d.resolver.LookupNetIP(ctx, "ip", host)
}

func isMetadata(a netip.Addr) bool {
	c, _ := classify(a)
	return c == metadata
}

// check returns why host may not be reached at a, or nil.
func (d *dialer) check(host string, a netip.Addr) error {
	c, name := classify(a)
	target := a.String()
	if host != target && host != a.Unmap().String() {
		target = fmt.Sprintf("%s, an address of %s,", target, host)
	}
	var f *fault.Error
	switch c {
	case public:
		return nil
	case private:
		if d.private != nil && d.private(host) {
			return nil
		}
		f = refuse("%s is not reached from here: it is %s; %s", target, name, d.setting)
	case metadata:
		f = refuse("%s is never reached: it is %s and nothing allows that; use another address", target, name)
	default:
		f = refuse("%s is never reached: it is %s, where no server can be; use another address", target, name)
	}
	return f.With("host", host).With("address", a.String())
}

// checkHost returns why a host in canonical form may not be asked for, whatever it resolves to, or nil.
func checkHost(host string) error {
	if host == "" {
		return refuse("the URL has no host; write http://host:port/path")
	}
	if isMetadataName(host) {
		return refuse("%s is never reached: it is the name of a cloud metadata service and nothing allows that; use another address", host).With("host", host)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	if a, ok := numeric(host); ok {
		if !a.IsValid() {
			return refuse("%s is neither a host name nor an IP address; correct the address", host).With("host", host)
		}
		return refuse("%s is not a host name and not an IP address in its usual notation; write %s if that is meant", host, a).
			With("host", host).With("address", a.String())
	}
	if strings.ContainsAny(host, ":/\\@ \t") {
		return refuse("%q is not a host name; correct the address", host).With("host", host)
	}
	return nil
}

// interleave alternates the families, beginning with the resolver's first choice, so that a family without a
// route costs one head start and not all of them.
func interleave(in []netip.AddrPort) []netip.AddrPort {
	var first, second []netip.AddrPort
	for _, a := range in {
		if a.Addr().Is4() == in[0].Addr().Is4() {
			first = append(first, a)
		} else {
			second = append(second, a)
		}
	}
	out := make([]netip.AddrPort, 0, len(in))
	for i := range max(len(first), len(second)) {
		if i < len(first) {
			out = append(out, first[i])
		}
		if i < len(second) {
			out = append(out, second[i])
		}
	}
	return out
}

// connect returns the first connection that comes about; each address gets a head start over the next, which
// ends early if it fails. All attempts have ended when connect returns.
func (d *dialer) connect(ctx context.Context, network string, addrs []netip.AddrPort) (net.Conn, error) {
	if len(addrs) == 1 {
		return d.dial(ctx, network, addrs[0].String())
	}
	ctx, cancel := context.WithCancel(ctx)
	var (
		wg       sync.WaitGroup
		outcomes = make(chan outcome, len(addrs))
		errs     []error
		winner   net.Conn
		next     = 0
		running  = 0
	)
	start := func() {
		a := addrs[next].String()
		next++
		running++
		wg.Go(func() {
			c, err := d.dial(ctx, network, a)
			outcomes <- outcome{c, err}
		})
	}
	timer := time.NewTimer(stagger)
	defer timer.Stop()
	start()
	for winner == nil && running > 0 {
		select {
		case o := <-outcomes:
			running--
			if o.err == nil {
				winner = o.conn
				continue
			}
			errs = append(errs, o.err)
			if next < len(addrs) && ctx.Err() == nil {
				start()
				timer.Reset(stagger)
			}
		case <-timer.C:
			if next < len(addrs) {
				start()
				timer.Reset(stagger)
			}
		}
	}
	cancel()
	wg.Wait()
	for range running {
		if o := <-outcomes; o.conn != nil {
			_ = o.conn.Close()
		}
	}
	if winner == nil {
		return nil, errs[0]
	}
	return winner, nil
}

// outcome is the end of one attempt to connect.
type outcome struct {
	conn net.Conn
	err  error
}
