// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"testing"
	"time"
)

func TestCertificates(t *testing.T) {
	now := time.Now()
	a, err := NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.PEM())
	server, serverErr := a.Server("api", now, "127.0.0.1", "localhost")
	client, clientErr := a.Client("usher", now, "one", "two")
	cases := map[string]struct {
		pair  Pair
		err   error
		host  string
		usage x509.ExtKeyUsage
		after time.Duration
		good  bool
	}{
		"an address":          {server, serverErr, "127.0.0.1", x509.ExtKeyUsageServerAuth, 0, true},
		"a name":              {server, serverErr, "localhost", x509.ExtKeyUsageServerAuth, 0, true},
		"another address":     {server, serverErr, "127.0.0.2", x509.ExtKeyUsageServerAuth, 0, false},
		"a server as client":  {server, serverErr, "", x509.ExtKeyUsageClientAuth, 0, false},
		"a client":            {client, clientErr, "", x509.ExtKeyUsageClientAuth, 0, true},
		"a client as server":  {client, clientErr, "", x509.ExtKeyUsageServerAuth, 0, false},
		"a clock behind":      {client, clientErr, "", x509.ExtKeyUsageClientAuth, -skew / 2, true},
		"after the last hour": {client, clientErr, "", x509.ExtKeyUsageClientAuth, lifetime + skew, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pair, err := tls.X509KeyPair(c.pair.Cert, c.pair.Key)
			if c.err != nil || err != nil {
				t.Fatal(c.err, err)
			}
			_, err = pair.Leaf.Verify(x509.VerifyOptions{
				DNSName: c.host, Roots: roots, CurrentTime: now.Add(c.after), KeyUsages: []x509.ExtKeyUsage{c.usage},
			})
			if (err == nil) != c.good {
				t.Errorf("verify: %v, want success %t", err, c.good)
			}
			if subject := pair.Leaf.Subject; c.host == "" && subject.CommonName == "usher" && !slices.Equal(subject.Organization, []string{"one", "two"}) {
				t.Errorf("the groups are %q", subject.Organization)
			}
		})
	}
}
