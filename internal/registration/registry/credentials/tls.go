// SPDX-License-Identifier: Apache-2.0

// Package credentials reads what the Secrets of several kinds of registry have
// in common.
package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// Keys of a credentials Secret.
const (
	// KeyCA is the PEM bundle that the server's certificate is checked with,
	// the system's roots if absent.
	KeyCA = "ca.crt"
	// KeyCertificate and KeyPrivateKey are the client certificate, in PEM.
	KeyCertificate = "tls.crt"
	KeyPrivateKey  = "tls.key"
)

// TLSKeys are the keys that TLS reads.
func TLSKeys() []string { return []string{KeyCA, KeyCertificate, KeyPrivateKey} }

// TLS makes a client's configuration from the Secret, which may be nil. Errors
// name the key, and no value.
func TLS(secret map[string][]byte) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca := secret[KeyCA]; len(ca) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("the credentials Secret's %s holds no certificate: put a PEM bundle there", KeyCA)
		}
	}
	certificate, key := secret[KeyCertificate], secret[KeyPrivateKey]
	if len(certificate) == 0 && len(key) == 0 {
		return config, nil
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("the credentials Secret's %s and %s are no pair: %w", KeyCertificate, KeyPrivateKey, err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}
