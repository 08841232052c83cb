package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ListenOptions describe a listener and what protects it.
type ListenOptions struct {
	// Address is "host:port", where port 0 picks a free one, or "unix:/path".
	Address string
	// Authenticated says that the server asks for tokens.
	Authenticated bool
	// TLS says that the server speaks TLS.
	TLS bool
	// InsecurePlaintext takes the place of TLS where something else protects the network.
	InsecurePlaintext bool
}

// Listen opens a listener for [Server.Serve] and refuses one that would be open to strangers: outside loopback the
// server must ask for tokens and speak TLS. Every address that the host's name stands for counts. A Unix socket counts
// as loopback; it is made with mode 0600, and one that a dead process left behind is replaced.
//
// The caller gives the options that it gives the server; Listen cannot check that.
func Listen(ctx context.Context, o ListenOptions) (net.Listener, error) {
	if path, ok := strings.CutPrefix(o.Address, "unix:"); ok {
		return listenUnix(ctx, "/"+strings.TrimLeft(path, "/"), path)
	}
	host, port, err := net.SplitHostPort(o.Address)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: want host:port or unix:/path: %w", o.Address, err)
	}
	bind, loopback, err := resolve(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", o.Address, err)
	}
	if !loopback {
		if err := o.exposed(); err != nil {
			return nil, err
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(bind, port))
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", o.Address, err)
	}
	return l, nil
}

// exposed returns what is missing to listen where other machines can connect.
func (o ListenOptions) exposed() error {
	var missing []string
	if !o.Authenticated {
		missing = append(missing, "auth.tokens_file")
	}
	if !o.TLS && !o.InsecurePlaintext {
		missing = append(missing, "tls.cert_file and tls.key_file (or --insecure-plaintext where the network is protected otherwise)")
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("listen on %q: other machines could connect: set %s, or listen on 127.0.0.1", o.Address, strings.Join(missing, " and "))
}

// resolve returns the address to bind and whether nothing but loopback can reach it. A name is bound by the address that
// was looked at, so that a second look-up cannot change the verdict.
func resolve(ctx context.Context, host string) (bind string, loopback bool, err error) {
	if host == "" {
		return "", false, nil
	}
	addresses, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return "", false, err
	}
	loopback = true
	for _, a := range addresses {
		loopback = loopback && a.IP.IsLoopback()
		if a.IP.To4() != nil || bind == "" {
			bind = a.String()
		}
	}
	return bind, loopback && bind != "", nil
}

func listenUnix(ctx context.Context, absolute, given string) (net.Listener, error) {
	path := given
	if strings.HasPrefix(given, "//") {
		path = absolute // unix:///path
	}
	if err := removeDeadSocket(ctx, path); err != nil {
		return nil, fmt.Errorf("listen on unix:%s: %w", path, err)
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// Linux gives the socket file the mode of the socket, so nobody gets in before a chmod.
		var chmod error
		if err := c.Control(func(fd uintptr) { chmod = unix.Fchmod(int(fd), 0o600) }); err != nil {
			return err
		}
		return chmod
	}}
	l, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on unix:%s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on unix:%s: %w", path, err), l.Close())
	}
	return l, nil
}

func removeDeadSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return errors.New("the file exists and is not a socket")
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return errors.Join(errors.New("another process listens there"), conn.Close())
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	default:
		return err
	}
}
