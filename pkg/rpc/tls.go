package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/toolherd/toolherd/pkg/internal/reread"
)

// ServerTLSFiles names the PEM files of a listener.
type ServerTLSFiles struct {
	CertFile     string // certificate chain, leaf first
	KeyFile      string // its private key
	ClientCAFile string // authorities of client certificates; empty asks for none
}

// ServerTLS returns the configuration of a listener. With a ClientCAFile every client needs a certificate of one of its
// authorities, in addition to its token. Connections opened a second after a file changed use the new content; content
// that is not usable is logged and the last good one stays in use.
func ServerTLS(files ServerTLSFiles, log *slog.Logger) (*tls.Config, error) {
	if files.CertFile == "" || files.KeyFile == "" {
		return nil, errors.New("TLS: tls.cert_file and tls.key_file are both needed")
	}
	paths := []string{files.CertFile, files.KeyFile}
	if files.ClientCAFile != "" {
		paths = append(paths, files.ClientCAFile)
	}
	current, err := reread.Open(reread.Source[*tls.Config]{What: "TLS files", Paths: paths, Log: log, Parse: serverConfig})
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return current.Get(), nil
		},
	}, nil
}

func serverConfig(contents [][]byte) (*tls.Config, error) {
	cert, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{cert}}
	if len(contents) == 3 {
		if c.ClientCAs, err = pool(contents[2]); err != nil {
			return nil, err
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// ClientTLSFiles names the PEM files of a connection.
type ClientTLSFiles struct {
	CAFile   string // authorities of the server's certificate; empty trusts the system's
	CertFile string // own certificate chain, for servers that want one
	KeyFile  string // its private key
}

// ClientTLS returns the configuration of a connection. Without a CAFile the system's authorities are trusted. The
// CAFile is read once; a client certificate, which only some servers want, is followed as by [ServerTLS].
func ClientTLS(files ClientTLSFiles, log *slog.Logger) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if files.CAFile != "" {
		authorities, err := reread.Open(reread.Source[*x509.CertPool]{
			What: "CA file", Paths: []string{files.CAFile}, Log: log,
			Parse: func(contents [][]byte) (*x509.CertPool, error) { return pool(contents[0]) },
		})
		if err != nil {
			return nil, err
		}
		c.RootCAs = authorities.Get()
	}
	if (files.CertFile == "") != (files.KeyFile == "") {
		return nil, errors.New("TLS: a certificate file needs its key file, and the other way round")
	}
	if files.CertFile != "" {
		own, err := reread.Open(reread.Source[*tls.Certificate]{
			What: "TLS files", Paths: []string{files.CertFile, files.KeyFile}, Log: log,
			Parse: func(contents [][]byte) (*tls.Certificate, error) {
				cert, err := tls.X509KeyPair(contents[0], contents[1])
				return &cert, err
			},
		})
		if err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.Get(), nil }
	}
	return c, nil
}

func pool(pem []byte) (*x509.CertPool, error) {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		return nil, errors.New("no PEM certificate of an authority in it")
	}
	return p, nil
}

// TokenFile returns a source for ClientOptions.Token that follows a file with one token in it.
func TokenFile(path string, log *slog.Logger) (func() (string, error), error) {
	file, err := reread.Open(reread.Source[string]{
		What: "peer token file", Paths: []string{path}, Log: log,
		Parse: func(contents [][]byte) (string, error) {
			token := strings.TrimSpace(string(contents[0]))
			if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
				return "", fmt.Errorf("want one token and nothing else, have %d bytes", len(contents[0]))
			}
			return token, nil
		},
	})
	if err != nil {
		return nil, err
	}
	return func() (string, error) { return file.Get(), nil }, nil
}
