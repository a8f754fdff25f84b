// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
)

// Authority signs certificates that are valid for an hour.
type Authority struct {
	// PEM is its own certificate.
	PEM []byte

	t           *testing.T
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	serial      int64
}

// NewAuthority creates an authority.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	a := &Authority{t: t}
	a.PEM, a.key = a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	block, _ := pem.Decode(a.PEM)
	var err error
	if a.certificate, err = x509.ParseCertificate(block.Bytes); err != nil {
		t.Fatal(err)
	}
	return a
}

// Pair issues a certificate for 127.0.0.1 that servers and clients can use, and its key,
// in PEM.
func (a *Authority) Pair() (certificate, key []byte) {
	a.t.Helper()
	certificate, private := a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "usher"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	der := checktest.Must(x509.MarshalECPrivateKey(private))(a.t)
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

// Files writes the authority's certificate and a new pair into files.
func (a *Authority) Files() (ca, certificate, key string) {
	a.t.Helper()
	pair, private := a.Pair()
	dir := a.t.TempDir()
	paths := []string{filepath.Join(dir, "ca.crt"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
	for n, data := range [][]byte{a.PEM, pair, private} {
		checktest.NoError(a.t, os.WriteFile(paths[n], data, 0o600))
	}
	return paths[0], paths[1], paths[2]
}

func (a *Authority) issue(template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	key := checktest.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(a.t)
	a.serial++
	template.SerialNumber, template.NotAfter = big.NewInt(a.serial), time.Now().Add(time.Hour)
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der := checktest.Must(x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer))(a.t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
}

// CheckTLS connects to a server that has a certificate of the authority and requires one
// from its clients. failure is the mark of a handshake that fails.
func CheckTLS[C registry.Connector](t *testing.T, a *Authority, failure error, connect func(secret map[string][]byte) C) {
	t.Helper()
	other := NewAuthority(t)
	certificate, key := a.Pair()
	foreign, foreignKey := other.Pair()
	for name, test := range map[string]struct {
		ca, certificate, key []byte
		want                 error
		words                string
	}{
		"our certificate": {a.PEM, certificate, key, nil, ""},
		// The server may close the connection before its reason arrives.
		"no certificate":        {a.PEM, nil, nil, failure, ""},
		"another's certificate": {a.PEM, foreign, foreignKey, failure, ""},
		"another authority":     {other.PEM, certificate, key, failure, "unknown authority"},
	} {
		c := connect(map[string][]byte{
			credentials.KeyCA: test.ca, credentials.KeyCertificate: test.certificate, credentials.KeyPrivateKey: test.key,
		})
		Check(t, name, c.Ping(within(t, callTimeout)), test.want, test.words)
		checktest.NoError(t, c.Close())
	}
}
