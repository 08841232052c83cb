package rpc_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/fault"
	"github.com/toolherd/toolherd/pkg/rpc"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{cert: cert, key: key, file: filepath.Join(t.TempDir(), "ca.pem")}
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

// issue writes a certificate for 127.0.0.1 and its key, both ways.
func (a *authority) issue(t *testing.T, name, certFile, keyFile string) {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "PRIVATE KEY", pkcs8)
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// secure is a server with TLS and tokens on TCP.
type secure struct {
	ca                *authority
	certFile, keyFile string
	address           string
	tokenFile         string
	log               logged
}

func newSecure(t *testing.T, clientCA *authority) *secure {
	t.Helper()
	dir := t.TempDir()
	s := &secure{
		ca:       newAuthority(t),
		certFile: filepath.Join(dir, "cert.pem"), keyFile: filepath.Join(dir, "key.pem"), tokenFile: filepath.Join(dir, "token"),
	}
	s.ca.issue(t, "first", s.certFile, s.keyFile)
	files := rpc.ServerTLSFiles{CertFile: s.certFile, KeyFile: s.keyFile}
	if clientCA != nil {
		files.ClientCAFile = clientCA.file
	}
	config, err := rpc.ServerTLS(files, s.log.log())
	if err != nil {
		t.Fatal(err)
	}
	token, sum := authn.NewToken()
	if err := os.WriteFile(s.tokenFile, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := newServer(t, rpc.ServerOptions{
		Log: s.log.log(), TLS: config, Tokens: tokens(t, "- {name: peer, sha256: "+sum+", roles: [agent]}"),
	})
	toolproxyv1.RegisterToolProxyServiceServer(server, tool{})
	l, err := rpc.Listen(t.Context(), rpc.ListenOptions{Address: "127.0.0.1:0", Authenticated: true, TLS: true})
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	serve(t, server, l)
	return s
}

// call makes one call over a fresh connection.
func (s *secure) call(t *testing.T, files rpc.ClientTLSFiles, tokenFile string) error {
	t.Helper()
	config, err := rpc.ClientTLS(files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	o := rpc.ClientOptions{TLS: config}
	if tokenFile != "" {
		if o.Token, err = rpc.TokenFile(tokenFile, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := rpc.Dial(s.address, o)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = toolproxyv1.NewToolProxyServiceClient(conn).CallTool(t.Context(), &toolproxyv1.CallToolRequest{})
	return err
}

// serving returns the name in the certificate that the server shows.
func (s *secure) serving(ctx context.Context) (string, error) {
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}} // it looks, it does not trust
	conn, err := dialer.DialContext(ctx, "tcp", s.address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

func TestPeersSpeakTLSWithTokens(t *testing.T) {
	s := newSecure(t, nil)
	if err := s.call(t, rpc.ClientTLSFiles{CAFile: s.ca.file}, s.tokenFile); err != nil {
		t.Errorf("with TLS and a token: %v", err)
	}
	if err := s.call(t, rpc.ClientTLSFiles{CAFile: s.ca.file}, ""); fault.KindOf(err) != fault.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
	if err := s.call(t, rpc.ClientTLSFiles{CAFile: newAuthority(t).file}, s.tokenFile); !fault.Is(err, fault.NotReady) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("with a strange authority: %v", err)
	}
	if err := s.call(t, rpc.ClientTLSFiles{}, s.tokenFile); !fault.Is(err, fault.NotReady) {
		t.Errorf("with the system's authorities: %v", err)
	}
	plain := dial(t, s.address, rpc.ClientOptions{})
	if _, err := toolproxyv1.NewToolProxyServiceClient(plain).CallTool(t.Context(), &toolproxyv1.CallToolRequest{}); err == nil {
		t.Error("plaintext is accepted")
	}
}

func TestClientCertificatesAreAskedForAndChecked(t *testing.T) {
	clients := newAuthority(t)
	s := newSecure(t, clients)
	dir := t.TempDir()
	files := rpc.ClientTLSFiles{CAFile: s.ca.file, CertFile: filepath.Join(dir, "c"), KeyFile: filepath.Join(dir, "k")}
	clients.issue(t, "client", files.CertFile, files.KeyFile)
	if err := s.call(t, files, s.tokenFile); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if err := s.call(t, files, ""); fault.KindOf(err) != fault.Unauthenticated {
		t.Errorf("a certificate took the place of the token: %v", err)
	}
	if err := s.call(t, rpc.ClientTLSFiles{CAFile: s.ca.file}, s.tokenFile); err == nil {
		t.Error("no certificate is accepted")
	}
	newAuthority(t).issue(t, "stranger", files.CertFile, files.KeyFile)
	if err := s.call(t, files, s.tokenFile); err == nil {
		t.Error("a stranger's certificate is accepted")
	}
}

func TestRotatedCertificatesAreServed(t *testing.T) {
	s := newSecure(t, nil)
	want := func(name string) {
		t.Helper()
		eventually(t, "certificate "+name, func() error {
			got, err := s.serving(t.Context())
			if err == nil && got != name {
				err = errors.New("serving " + got)
			}
			return err
		})
	}
	want("first")
	s.ca.issue(t, "second", s.certFile, s.keyFile)
	want("second")
	if err := os.WriteFile(s.keyFile, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a warning", func() error {
		if _, err := s.serving(t.Context()); err != nil {
			return err
		}
		if !strings.Contains(s.log.String(), "last good content") {
			return errors.New("no warning yet")
		}
		return nil
	})
	want("second")
}

func TestTLSFilesThatDoNotWorkStopTheStart(t *testing.T) {
	dir := t.TempDir()
	cert, key, junk := filepath.Join(dir, "c"), filepath.Join(dir, "k"), filepath.Join(dir, "j")
	ca := newAuthority(t)
	ca.issue(t, "x", cert, key)
	if err := os.WriteFile(junk, []byte("junk junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	for name, files := range map[string]rpc.ServerTLSFiles{
		"no key":         {CertFile: cert},
		"missing file":   {CertFile: cert, KeyFile: filepath.Join(dir, "absent")},
		"key of another": {CertFile: ca.file, KeyFile: key},
		"junk authority": {CertFile: cert, KeyFile: key, ClientCAFile: junk},
	} {
		if _, err := rpc.ServerTLS(files, log); err == nil {
			t.Errorf("server: %s is accepted", name)
		}
	}
	for name, files := range map[string]rpc.ClientTLSFiles{
		"junk authority": {CAFile: junk},
		"no key":         {CertFile: cert},
		"junk key":       {CertFile: cert, KeyFile: junk},
	} {
		if _, err := rpc.ClientTLS(files, log); err == nil {
			t.Errorf("client: %s is accepted", name)
		}
	}
	if _, err := rpc.TokenFile(junk, log); err == nil || strings.Contains(err.Error(), "junk junk") {
		t.Errorf("a file that is no token: %v", err)
	}
}
