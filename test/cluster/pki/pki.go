// SPDX-License-Identifier: Apache-2.0

// Package pki creates the keys and certificates of one development cluster: its own
// certificate authority, server and client certificates, and the key that signs
// service-account tokens. Nothing here is meant to leave the machine.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

const (
	// Lifetime of every certificate. A development cluster lives for hours.
	Lifetime = 365 * 24 * time.Hour
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
	pem  []byte
}

// NewAuthority creates a certificate authority that is valid from now on.
func NewAuthority(name string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the certificate authority: %w", err)
	}
	template, err := template(pkix.Name{CommonName: name}, now)
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back the certificate authority: %w", err)
	}
	return &Authority{cert: cert, key: key, pem: encode("CERTIFICATE", der)}, nil
}

// LoadAuthority loads an authority from its PEM certificate and key.
func LoadAuthority(pair Pair) (*Authority, error) {
	both, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, fmt.Errorf("read the certificate authority: %w", err)
	}
	key, ok := both.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !both.Leaf.IsCA {
		return nil, errors.New("read the certificate authority: it is not one that this program made")
	}
	return &Authority{cert: both.Leaf, key: key, pem: pair.Cert}, nil
}

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte { return a.pem }

// Pair is the authority's certificate and private key: whoever has it can act as any
// user of the cluster.
func (a *Authority) Pair() (Pair, error) {
	key, err := privatePEM(a.key)
	return Pair{Cert: a.pem, Key: key}, err
}

// Server signs a serving certificate for hosts, each an IP address or a DNS
// name; there must be at least one.
func (a *Authority) Server(name string, now time.Time, hosts ...string) (Pair, error) {
	if len(hosts) == 0 {
		return Pair{}, fmt.Errorf("serving certificate %q: name at least one host", name)
	}
	template, err := template(pkix.Name{CommonName: name}, now)
	if err != nil {
		return Pair{}, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.sign(template)
}

// Client signs a client certificate. Kubernetes reads the user from the common
// name and the groups from the organisations.
func (a *Authority) Client(user string, now time.Time, groups ...string) (Pair, error) {
	if user == "" {
		return Pair{}, errors.New("client certificate: the user's name is empty")
	}
	template, err := template(pkix.Name{CommonName: user, Organization: groups}, now)
	if err != nil {
		return Pair{}, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

func (a *Authority) sign(template *x509.Certificate) (Pair, error) {
	name := template.Subject.CommonName
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make the key of certificate %q: %w", name, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign certificate %q: %w", name, err)
	}
	private, err := privatePEM(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: encode("CERTIFICATE", der), Key: private}, nil
}

// SigningKey creates the key pair for service-account tokens, both in PEM.
func SigningKey() (public, private []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the service-account key: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode the service-account key: %w", err)
	}
	private, err = privatePEM(key)
	if err != nil {
		return nil, nil, err
	}
	return encode("PUBLIC KEY", der), private, nil
}

func template(subject pkix.Name, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-skew),
		NotAfter:     now.Add(Lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}, nil
}

func privatePEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a private key: %w", err)
	}
	return encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
