// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/etcd"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// TestEtcdUsers logs in; errors say what is wrong with the credentials.
func TestEtcdUsers(t *testing.T) {
	server := clustertest.StartEtcd(t)
	admin := raw(t, server)
	for _, step := range []func() error{
		func() error { _, err := admin.UserAdd(bounded(t), "root", "root-password"); return err },
		func() error { _, err := admin.UserGrantRole(bounded(t), "root", "root"); return err },
		func() error { _, err := admin.UserAdd(bounded(t), "usher", "right"); return err },
		func() error { _, err := admin.RoleAdd(bounded(t), "services"); return err },
		func() error {
			_, err := admin.RoleGrantPermission(bounded(t), "services", "services/", "services0",
				clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := admin.UserGrantRole(bounded(t), "usher", "services"); return err },
		func() error { _, err := admin.AuthEnable(bounded(t)); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		prefix, user, password string
		want                   error
	}{
		"the right password":              {"services", "usher", "right", nil},
		"the wrong password":              {"services", "usher", "wrong", registry.ErrPermanent},
		"no user at all":                  {"services", "", "", registry.ErrPermanent},
		"a prefix that is not the user's": {"others", "usher", "right", registry.ErrPermanent},
	} {
		r, err := etcd.New(etcd.Options{
			Endpoints: []string{server.Endpoint()}, Prefix: test.prefix, Timeout: 5 * time.Second,
			Secret: map[string][]byte{etcd.KeyUsername: []byte(test.user), etcd.KeyPassword: []byte(test.password)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Ping(bounded(t)); !errors.Is(err, test.want) {
			t.Errorf("%s: ping: %v, want %v", name, err, test.want)
		} else if err != nil && strings.Contains(err.Error(), "wrong") {
			t.Errorf("%s: the error tells the password: %v", name, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// authority issues certificates for this test.
type authority struct {
	*testing.T
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(t *testing.T) *authority {
	a := &authority{T: t}
	a.pem, a.key = a.issue(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	block, _ := pem.Decode(a.pem)
	var err error
	if a.certificate, err = x509.ParseCertificate(block.Bytes); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) issue(template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	a.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
}

// pair issues a certificate for 127.0.0.1, with its key in PEM.
func (a *authority) pair(serial int64) (certificate, key []byte) {
	a.Helper()
	certificate, private := a.issue(&x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "usher"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		a.Fatal(err)
	}
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func (a *authority) file(name string, data []byte) string {
	a.Helper()
	path := filepath.Join(a.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		a.Fatal(err)
	}
	return path
}

// startTLS starts an etcd that also listens with TLS, and returns its address. The port
// without TLS serves to wait for the start.
func startTLS(t *testing.T, args ...string) string {
	t.Helper()
	var ports []int
	for range 2 {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}
	plain, secure := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("https://127.0.0.1:%d", ports[1])
	server, err := cluster.StartEtcd(bounded(t), t.TempDir(), cluster.EtcdOptions{
		Port:      ports[0],
		ExtraArgs: append(args, "--listen-client-urls="+plain+","+secure, "--advertise-client-urls="+plain),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Kill(); err != nil {
			t.Errorf("stop etcd: %v", err)
		}
	})
	return secure
}

// TestEtcdTLS needs a client certificate, and verifies the server's.
func TestEtcdTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	certificate, key := ours.pair(2)
	endpoint := startTLS(t, "--client-cert-auth",
		"--cert-file="+ours.file("server.crt", certificate), "--key-file="+ours.file("server.key", key),
		"--trusted-ca-file="+ours.file("ca.crt", ours.pem))
	mine, mineKey := ours.pair(3)
	for name, test := range map[string]struct {
		secret map[string][]byte
		want   error
		says   string
	}{
		"our certificate": {map[string][]byte{
			etcd.KeyCA: ours.pem, etcd.KeyCertificate: mine, etcd.KeyPrivateKey: mineKey}, nil, ""},
		// The server may close the connection before its reason arrives.
		"no certificate": {map[string][]byte{etcd.KeyCA: ours.pem}, registry.ErrTransient, ""},
		"another authority": {map[string][]byte{
			etcd.KeyCA: theirs.pem, etcd.KeyCertificate: mine, etcd.KeyPrivateKey: mineKey},
			registry.ErrTransient, "certificate signed by unknown authority"},
	} {
		r, err := etcd.New(etcd.Options{Endpoints: []string{endpoint}, Prefix: "services", Secret: test.secret})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err = r.Ping(ctx)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: ping: %v, want %v", name, err, test.want)
		} else if test.says != "" && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %q does not say what is wrong", name, err)
		}
		_ = r.Close()
	}
	for name, secret := range map[string]map[string][]byte{
		"a bundle without a certificate": {etcd.KeyCA: []byte("none")},
		"a key of another certificate":   {etcd.KeyCertificate: certificate, etcd.KeyPrivateKey: mineKey},
	} {
		if _, err := etcd.New(etcd.Options{Endpoints: []string{endpoint}, Secret: secret}); !errors.Is(err, registry.ErrPermanent) {
			t.Errorf("%s: %v, want a permanent error", name, err)
		}
	}
}
