// SPDX-License-Identifier: Apache-2.0

// Package pki creates keys and certificates for a development cluster and for tests: a certificate
// authority, and server and client certificates. Its keys are not meant to leave the machine.
// client-go's cert and keyutil do not sign certificates with an authority, and envtest's authority is
// internal.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	// lifetime of every certificate. A development cluster lives for hours.
	lifetime = 365 * 24 * time.Hour
	// skew tolerates a clock that was set back a little after the start.
	skew = time.Hour
)

// Pair is a certificate and its key, both PEM.
type Pair struct {
	// Cert is the certificate.
	Cert []byte
	// Key is the private key.
	Key []byte
}

// Authority signs certificates. NewAuthority creates it.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pair Pair
}

// NewAuthority creates a certificate authority that is valid from now on.
func NewAuthority(name string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", name, err)
	}
	own, err := cert.NewSelfSignedCACert(cert.Config{CommonName: name, NotBefore: now.Add(-skew)}, key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	pair, err := encode(own.Raw, key)
	return &Authority{cert: own, key: key, pair: pair}, err
}

// ReadAuthority returns the authority of a pair that Pair has returned.
func ReadAuthority(pair Pair) (*Authority, error) {
	certs, err := cert.ParseCertsPEM(pair.Cert)
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(pair.Key)
	if err != nil {
		return nil, fmt.Errorf("read the authority's key: %w", err)
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the authority's key is a %T, not one of an elliptic curve", key)
	}
	return &Authority{cert: certs[0], key: private, pair: pair}, nil
}

// PEM returns the authority's certificate.
func (a *Authority) PEM() []byte { return a.pair.Cert }

// Pair returns the authority's certificate and private key. Its holder can act as any user of the
// cluster.
func (a *Authority) Pair() Pair { return a.pair }

// Server signs a serving certificate for hosts, each an IP address or a DNS name.
func (a *Authority) Server(name string, now time.Time, hosts ...string) (Pair, error) {
	return a.serving(name, now, hosts, x509.ExtKeyUsageServerAuth)
}

// Peer signs a certificate for hosts that can serve, and can identify themselves as clients.
func (a *Authority) Peer(name string, now time.Time, hosts ...string) (Pair, error) {
	return a.serving(name, now, hosts, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

func (a *Authority) serving(name string, now time.Time, hosts []string, usages ...x509.ExtKeyUsage) (Pair, error) {
	template := x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: usages}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.sign(template, now)
}

// Client signs a client certificate. Kubernetes reads the user from the common
// name and the groups from the organisations.
func (a *Authority) Client(user string, now time.Time, groups ...string) (Pair, error) {
	return a.sign(x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, now)
}

func (a *Authority) sign(template x509.Certificate, now time.Time) (pair Pair, err error) {
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.NotBefore, template.NotAfter = now.Add(-skew), now.Add(lifetime)
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return pair, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, a.cert, key.Public(), a.key)
	if err != nil {
		return pair, fmt.Errorf("sign the certificate of %s: %w", template.Subject, err)
	}
	return encode(der, key)
}

func encode(der []byte, key *ecdsa.PrivateKey) (Pair, error) {
	private, err := keyutil.MarshalPrivateKeyToPEM(key)
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}), Key: private}, err
}
