// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/usher-dev/usher/internal/registration/registry/etcd"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

const prefix = "services"

func connect(t *testing.T, server *cluster.Etcd) *etcd.Registry {
	t.Helper()
	return registrytest.Connect(t, etcd.New, etcd.Options{Endpoints: []string{server.Endpoint()}, Prefix: prefix})
}

func raw(t *testing.T, server *cluster.Etcd) *clientv3.Client {
	t.Helper()
	return registrytest.Connect(t, clientv3.New, clientv3.Config{Endpoints: []string{server.Endpoint()}, DialTimeout: 30 * time.Second})
}

func TestEtcdConformance(t *testing.T) {
	server := clustertest.StartEtcd(t)
	client := raw(t, server)
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		// All tests share one server: each begins with an empty one.
		if _, err := client.Delete(registrytest.Bounded(t), "", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		return registrytest.Fixture{
			Connector: connect(t, server),
			Seed: func(t *testing.T, service, id string) {
				if _, err := client.Put(registrytest.Bounded(t), prefix+"/"+service+"/"+id, `{"Op":0,"Addr":"192.0.2.1:1"}`); err != nil {
					t.Fatal(err)
				}
			},
			Break: server.Kill, Mend: server.Restart,
		}
	})
}
