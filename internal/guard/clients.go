// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
)

// Clients says which certificates callers have to show.
type Clients struct {
	// CA is a PEM file with the CAs that sign the certificates; empty if callers need no certificate.
	CA string
	// Names are the allowed names: a certificate must have one of them as its common name or as a DNS
	// name. Empty allows all.
	Names []string
}

// demand makes a server require a certificate of each connection. It reads the file for each one, so
// that CAs can be replaced while the guard runs.
func (c Clients) demand(config *tls.Config) {
	if c.CA == "" {
		return
	}
	config.ClientAuth, config.VerifyConnection = tls.RequireAndVerifyClientCert, c.verify
	shared := config.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		own, err := shared.Clone(), error(nil)
		own.ClientCAs, err = c.authorities()
		return own, err
	}
}

// Check reads the CAs, and returns an error if they are unusable.
func (c Clients) Check() error {
	if c.CA == "" {
		if len(c.Names) > 0 {
			return errors.New("--guard-client-names needs --guard-client-ca: names are those in certificates")
		}
		return nil
	}
	_, err := c.authorities()
	return err
}

func (c Clients) authorities() (*x509.CertPool, error) {
	text, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, fmt.Errorf("read --guard-client-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--guard-client-ca: %s holds no certificate: put a PEM bundle there", c.CA)
	}
	return pool, nil
}

// verify checks the name in a certificate, which TLS has checked by then.
func (c Clients) verify(connection tls.ConnectionState) error {
	shown := connection.PeerCertificates[0]
	has := func(name string) bool {
		return shown.Subject.CommonName == name || slices.Contains(shown.DNSNames, name)
	}
	if len(c.Names) > 0 && !slices.ContainsFunc(c.Names, has) {
		return errors.New("the certificate has none of --guard-client-names")
	}
	return nil
}
