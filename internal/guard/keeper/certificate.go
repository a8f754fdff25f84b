// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// clockSkew is how far the clock of an API server may be behind.
const clockSkew = time.Hour

// serialBits is the length of a certificate's serial number, which is random.
const serialBits = 128

// selfSigned makes a self-signed certificate for a host, valid for lifetime from now on, and its key, both as PEM.
//
// The key is ECDSA: when many Pods are deleted at once, API servers open a connection for nearly each deletion, and a
// signature with the RSA key of client-go's cert package would double what a deletion costs the guard.
func selfSigned(host string, now time.Time) (chain, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, nil, err
	}
	own := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: now.Add(-clockSkew).UTC(), NotAfter: now.Add(lifetime).UTC(),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
	}
	made, err := x509.CreateCertificate(rand.Reader, own, own, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	if key, err = keyutil.MarshalPrivateKeyToPEM(private); err != nil {
		return nil, nil, err
	}
	parsed, err := x509.ParseCertificate(made)
	if err != nil {
		return nil, nil, err
	}
	chain, err = cert.EncodeCertificates(parsed)
	return chain, key, err
}
