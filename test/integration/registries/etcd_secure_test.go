// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/etcd"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/servers/run"
)

// TestEtcdUsers logs in; errors say what is wrong with the credentials.
func TestEtcdUsers(t *testing.T) {
	server := clustertest.StartEtcd(t)
	admin := raw(t, server)
	ctx := registrytest.Bounded(t)
	for _, step := range []func() error{
		func() error { _, err := admin.UserAdd(ctx, "root", "root-password"); return err },
		func() error { _, err := admin.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := admin.UserAdd(ctx, "usher", "right"); return err },
		func() error { _, err := admin.RoleAdd(ctx, "services"); return err },
		func() error {
			_, err := admin.RoleGrantPermission(ctx, "services", "services/", "services0",
				clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := admin.UserGrantRole(ctx, "usher", "services"); return err },
		func() error { _, err := admin.AuthEnable(ctx); return err },
	} {
		registrytest.NoError(t, step())
	}
	for name, test := range map[string]struct {
		prefix, user, password string
		want                   error
	}{
		"the right password":              {"services", "usher", "right", nil},
		"the wrong password":              {"services", "usher", registrytest.Secret, registry.ErrPermanent},
		"no user at all":                  {"services", "", "", registry.ErrPermanent},
		"a prefix that is not the user's": {"others", "usher", "right", registry.ErrPermanent},
	} {
		r, err := etcd.New(etcd.Options{
			Endpoints: []string{server.Endpoint()}, Prefix: test.prefix, Timeout: 5 * time.Second,
			Secret: map[string][]byte{etcd.KeyUsername: []byte(test.user), etcd.KeyPassword: []byte(test.password)},
		})
		registrytest.NoError(t, err)
		registrytest.Check(t, name+": ping", r.Ping(ctx), test.want)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// startTLS starts an etcd that also listens with TLS, and returns its address. The port
// without TLS serves to wait for the start.
func startTLS(t *testing.T, args ...string) string {
	t.Helper()
	ports, err := run.FreePorts(t.Context(), 2)
	registrytest.NoError(t, err)
	plain, secure := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("https://127.0.0.1:%d", ports[1])
	server, err := cluster.StartEtcd(registrytest.Bounded(t), t.TempDir(), cluster.EtcdOptions{
		Port:      ports[0],
		ExtraArgs: append(args, "--listen-client-urls="+plain+","+secure, "--advertise-client-urls="+plain),
	})
	registrytest.NoError(t, err)
	t.Cleanup(func() {
		if err := server.Kill(); err != nil {
			t.Errorf("stop etcd: %v", err)
		}
	})
	return secure
}

// TestEtcdTLS needs a client certificate, and verifies the server's.
func TestEtcdTLS(t *testing.T) {
	authority := registrytest.NewAuthority(t)
	ca, certificate, key := authority.Files()
	endpoint := startTLS(t, "--client-cert-auth", "--cert-file="+certificate, "--key-file="+key, "--trusted-ca-file="+ca)
	registrytest.CheckTLS(t, authority, registry.ErrTransient, func(secret map[string][]byte) *etcd.Registry {
		return registrytest.Connect(t, etcd.New, etcd.Options{Endpoints: []string{endpoint}, Prefix: "services", Secret: secret})
	})
	mine, _ := authority.Pair()
	_, other := authority.Pair()
	registrytest.CheckOptions(t, etcd.New, map[string]etcd.Options{
		"a bundle without a certificate": {Endpoints: []string{endpoint}, Secret: map[string][]byte{etcd.KeyCA: []byte("none")}},
		"a key of another certificate": {Endpoints: []string{endpoint},
			Secret: map[string][]byte{etcd.KeyCertificate: mine, etcd.KeyPrivateKey: other}},
	})
}
