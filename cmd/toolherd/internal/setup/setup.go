// Package setup makes what the processes of a split deployment need to know each other by, in one directory:
//
//	ca.pem                          the authority that signed all certificates
//	registry.pem, registry.key …    a certificate and its key for each service
//	toolproxy.token …               what each service that calls others shows them
//	agent.token, operator.token     for callers
//	tokens.yaml                     who these tokens are, by hash: auth.tokens_file of every service
//	secret.key                      registry.secret_key_file
//
// The authority's key is kept nowhere. Certificates last ten years; an organisation with an authority of its own uses that.
package setup

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/secret"
)

// validity is how long certificates last.
const validity = 10 * 365 * 24 * time.Hour

// tokensName is written last: where it stands, everything else does.
const tokensName = "tokens.yaml"

// services are the names of the services, which are those of their hosts.
func services() []string { return []string{"registry", "toolproxy", "taskworker", "notifier"} }

// caller is an entry of tokens.yaml.
type caller struct {
	name  string
	roles []authn.Role
	any   bool // may act for any user
}

func callers() []caller {
	return []caller{
		{name: "toolproxy", roles: []authn.Role{authn.Toolproxy}},
		{name: "taskworker", roles: []authn.Role{authn.Worker}},
		{name: "notifier", roles: []authn.Role{authn.Notifier}},
		{name: "agent", roles: []authn.Role{authn.Agent}, any: true},
		{name: "operator", roles: []authn.Role{authn.Operator, authn.Agent}, any: true},
	}
}

// Make fills dir, which it makes if it is missing, and reports whether it did: one that was filled before stays as it is.
// Certificates are for the names of the services, for localhost, and for hosts, names or IP addresses.
func Make(dir string, hosts []string) (made bool, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("make the directory (--dir): %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, tokensName)); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if _, err := secret.LoadOrCreateKey(filepath.Join(dir, "secret.key")); err != nil {
		return false, err
	}
	if err := makeCertificates(dir, hosts); err != nil {
		return false, fmt.Errorf("make certificates: %w", err)
	}
	if err := makeTokens(dir); err != nil {
		return false, fmt.Errorf("make tokens: %w", err)
	}
	return true, nil
}

func makeCertificates(dir string, hosts []string) error {
	now := time.Now()
	authority := &x509.Certificate{
		Subject: pkix.Name{CommonName: "Toolherd " + now.UTC().Format(time.DateOnly)}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validity),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := certify(filepath.Join(dir, "ca.pem"), authority, signing{authority, caKey, caKey}); err != nil {
		return err
	}
	for _, name := range services() {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		leaf := &x509.Certificate{
			Subject: pkix.Name{CommonName: name}, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		for _, host := range append([]string{name, "localhost", "127.0.0.1", "::1"}, hosts...) {
			if ip := net.ParseIP(host); ip != nil {
				leaf.IPAddresses = append(leaf.IPAddresses, ip)
			} else {
				leaf.DNSNames = append(leaf.DNSNames, host)
			}
		}
		encoded, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})); err != nil {
			return err
		}
		if err := certify(filepath.Join(dir, name+".pem"), leaf, signing{authority, key, caKey}); err != nil {
			return err
		}
	}
	return nil
}

// signing is who is certified, and by whom.
type signing struct {
	authority       *x509.Certificate
	subject, signer *ecdsa.PrivateKey
}

// certify signs a certificate and writes it.
func certify(path string, template *x509.Certificate, s signing) error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, s.authority, s.subject.Public(), s.signer)
	if err != nil {
		return err
	}
	return write(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func makeTokens(dir string) error {
	var entries strings.Builder
	for _, c := range callers() {
		token, hash := authn.NewToken()
		if err := write(filepath.Join(dir, c.name+".token"), []byte(token+"\n")); err != nil {
			return err
		}
		roles := make([]string, len(c.roles))
		for i, r := range c.roles {
			roles[i] = string(r)
		}
		fmt.Fprintf(&entries, "- name: %s\n  sha256: %s\n  roles: [%s]\n", c.name, hash, strings.Join(roles, ", "))
		if c.any {
			entries.WriteString("  act_as: any\n")
		}
	}
	return write(filepath.Join(dir, tokensName), []byte(entries.String()))
}

// write writes a file as a whole that only this user can read.
func write(path string, content []byte) error {
	temp := path + ".tmp"
	if err := os.WriteFile(temp, content, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
