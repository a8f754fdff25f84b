// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/checktest/pki"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
)

// Authority signs certificates for servers and clients.
type Authority struct {
	// PEM is its own certificate.
	PEM []byte

	t         *testing.T
	authority *pki.Authority
}

// NewAuthority creates an authority.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	authority := checktest.Must(pki.NewAuthority("authority", time.Now()))(t)
	return &Authority{PEM: authority.PEM(), t: t, authority: authority}
}

// Pair issues a certificate for 127.0.0.1 that servers and clients can use, and its key,
// in PEM.
func (a *Authority) Pair() (certificate, key []byte) {
	a.t.Helper()
	pair := checktest.Must(a.authority.Peer("usher", time.Now(), "127.0.0.1"))(a.t)
	return pair.Cert, pair.Key
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

// CheckTLS connects to a server that has a certificate of the authority and requires one
// from its clients. failure is the mark of a handshake that fails.
func CheckTLS[C registry.Connector](t *testing.T, a *Authority, failure error, connect func(secret map[string][]byte) (C, error)) {
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
		c := checktest.Must(connect(map[string][]byte{
			credentials.KeyCA: test.ca, credentials.KeyCertificate: test.certificate, credentials.KeyPrivateKey: test.key,
		}))(t)
		Check(t, name, c.Ping(within(t, callTimeout)), test.want, test.words)
		checktest.NoError(t, c.Close())
	}
}
