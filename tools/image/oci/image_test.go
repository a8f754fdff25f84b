// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"crypto/x509"
	"strings"
	"testing"
)

func TestAuthorities(t *testing.T) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities()) {
		t.Fatal("Go reads no certificate")
	}
	if n := strings.Count(string(authorities()), "BEGIN CERTIFICATE"); n < 80 {
		t.Errorf("%d authorities, which is too few to be Mozilla's", n)
	}
}
