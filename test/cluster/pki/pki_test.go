// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"
	"time"
)

func noon() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

func authority(t *testing.T) *Authority {
	t.Helper()
	a, err := NewAuthority("test", noon())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func parse(t *testing.T, cert []byte) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode(cert)
	if block == nil || len(rest) > 0 {
		t.Fatalf("not one PEM block: %q", cert)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func roots(t *testing.T, a *Authority) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(parse(t, a.PEM()))
	return pool
}

func TestServer(t *testing.T) {
	a := authority(t)
	pair, err := a.Server("api", noon(), "127.0.0.1", "::1", "localhost")
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, pair.Cert)
	cases := map[string]struct {
		host  string
		at    time.Time
		usage x509.ExtKeyUsage
		good  bool
	}{
		"an address":      {"127.0.0.1", noon(), x509.ExtKeyUsageServerAuth, true},
		"IPv6":            {"::1", noon(), x509.ExtKeyUsageServerAuth, true},
		"a name":          {"localhost", noon(), x509.ExtKeyUsageServerAuth, true},
		"another name":    {"example.org", noon(), x509.ExtKeyUsageServerAuth, false},
		"another address": {"127.0.0.2", noon(), x509.ExtKeyUsageServerAuth, false},
		"as a client":     {"localhost", noon(), x509.ExtKeyUsageClientAuth, false},
		"a clock behind":  {"localhost", noon().Add(-skew / 2), x509.ExtKeyUsageServerAuth, true},
		"too early":       {"localhost", noon().Add(-2 * skew), x509.ExtKeyUsageServerAuth, false},
		"the last moment": {"localhost", noon().Add(Lifetime), x509.ExtKeyUsageServerAuth, true},
		"too late":        {"localhost", noon().Add(Lifetime + time.Second), x509.ExtKeyUsageServerAuth, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := cert.Verify(x509.VerifyOptions{
				DNSName: c.host, Roots: roots(t, a), CurrentTime: c.at, KeyUsages: []x509.ExtKeyUsage{c.usage},
			})
			if (err == nil) != c.good {
				t.Errorf("verify says %v, want success %t", err, c.good)
			}
		})
	}
	if _, err := a.Server("api", noon()); err == nil {
		t.Error("a serving certificate without hosts was signed")
	}
}

func TestClient(t *testing.T) {
	a := authority(t)
	cases := map[string]struct {
		user   string
		groups []string
	}{
		"an administrator": {"admin", []string{"system:masters"}},
		"no groups":        {"system:kube-scheduler", nil},
		"two groups":       {"usher", []string{"one", "two"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pair, err := a.Client(c.user, noon(), c.groups...)
			if err != nil {
				t.Fatal(err)
			}
			cert := parse(t, pair.Cert)
			groups := slices.Sorted(slices.Values(cert.Subject.Organization))
			if cert.Subject.CommonName != c.user || !slices.Equal(groups, c.groups) {
				t.Errorf("subject is %s", cert.Subject)
			}
			_, err = cert.Verify(x509.VerifyOptions{
				Roots: roots(t, a), CurrentTime: noon(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := a.Client("", noon()); err == nil {
		t.Error("a client without a name was signed")
	}
}

func TestLoadAuthoritySignsForTheSameRoot(t *testing.T) {
	first := authority(t)
	pair, err := first.Pair()
	if err != nil {
		t.Fatal(err)
	}
	second, err := LoadAuthority(pair)
	if err != nil {
		t.Fatal(err)
	}
	client, err := second.Client("later", noon())
	if err != nil {
		t.Fatal(err)
	}
	_, err = parse(t, client.Cert).Verify(x509.VerifyOptions{
		Roots: roots(t, first), CurrentTime: noon(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLoadAuthorityRefuses(t *testing.T) {
	a := authority(t)
	own, err := a.Pair()
	if err != nil {
		t.Fatal(err)
	}
	client, err := a.Client("admin", noon())
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]Pair{
		"nothing":          {},
		"no authority":     client,
		"keys of others":   {Cert: own.Cert, Key: client.Key},
		"not a key at all": {Cert: own.Cert, Key: []byte("?")},
	}
	for name, pair := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := LoadAuthority(pair); err == nil {
				t.Error("it was taken")
			}
		})
	}
}

func TestSigningKey(t *testing.T) {
	public, private, err := SigningKey()
	if err != nil {
		t.Fatal(err)
	}
	pub, _ := pem.Decode(public)
	priv, _ := pem.Decode(private)
	if pub == nil || priv == nil {
		t.Fatalf("not PEM: %q, %q", public, private)
	}
	key, err := x509.ParseECPrivateKey(priv.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x509.ParsePKIXPublicKey(pub.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if verifier, ok := other.(*ecdsa.PublicKey); !ok || !verifier.Equal(key.Public()) {
		t.Error("the two halves do not belong together")
	}
}
