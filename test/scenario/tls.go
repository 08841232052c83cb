package scenario

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority is a certificate authority for 127.0.0.1, with one certificate of it, in files.
type authority struct {
	CA, Cert, Key string // files
	pool          *x509.CertPool
}

func newAuthority(t testing.TB, dir string) *authority {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("make certificates: %v", err)
		}
	}
	a := &authority{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"),
		pool: x509.NewCertPool(),
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "scenario CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "toolherd"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	must(err)
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	must(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	for path, block := range map[string]*pem.Block{
		a.CA: {Type: "CERTIFICATE", Bytes: caDER}, a.Cert: {Type: "CERTIFICATE", Bytes: leafDER}, a.Key: {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		must(os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	parsed, err := x509.ParseCertificate(caDER)
	must(err)
	a.pool.AddCert(parsed)
	return a
}

func (a *authority) client() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: a.pool}
}
