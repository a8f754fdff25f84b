// SPDX-License-Identifier: Apache-2.0

// Package credentials reads the Secret keys that several kinds of registry share.
package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
)

// Keys of a credentials Secret.
const (
	// KeyCA is the PEM bundle that verifies the server's certificate. Default: the
	// system's roots.
	KeyCA = "ca.crt"
	// KeyCertificate and KeyPrivateKey are the client's certificate and key, in PEM.
	KeyCertificate = "tls.crt"
	KeyPrivateKey  = "tls.key"
	// KeyUsername and KeyPassword are a login.
	KeyUsername = "username"
	KeyPassword = "password"
)

// LoginHint says what to check if a server refuses the login.
const LoginHint = "the keys " + KeyUsername + " and " + KeyPassword + " of the credentials Secret"

// Login returns the user and the password. Line breaks at the end of the password are
// those of the file that it was read from.
func Login(secret map[string][]byte) (user, password string) {
	return strings.TrimSpace(string(secret[KeyUsername])), strings.TrimRight(string(secret[KeyPassword]), "\r\n")
}

// LoginKeys returns the keys of a login.
func LoginKeys() []string { return []string{KeyUsername, KeyPassword} }

// TLSKeys returns the keys that TLS reads.
func TLSKeys() []string { return []string{KeyCA, KeyCertificate, KeyPrivateKey} }

// TLS builds a client configuration from the Secret, which may be nil. Errors name the
// key but never a value.
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
