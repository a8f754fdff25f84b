// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"go.uber.org/zap"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// recorder is a Sink that remembers the list, and every intermediate list.
type recorder struct {
	mu      sync.Mutex
	entries map[string]string
	sizes   []int
}

func (r *recorder) Replace(entries []Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = map[string]string{}
	for _, entry := range entries {
		r.entries[entry.Key] = entry.Addr
	}
	r.sizes = append(r.sizes, len(r.entries))
}

func (r *recorder) Update(put []Entry, removed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range removed {
		delete(r.entries, key)
	}
	for _, entry := range put {
		r.entries[entry.Key] = entry.Addr
	}
	r.sizes = append(r.sizes, len(r.entries))
}

func (r *recorder) has(want string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	text, err := json.Marshal(r.entries) // sorts the keys
	return err == nil && string(text) == want
}

func dial(t *testing.T, etcd *cluster.Etcd) *clientv3.Client {
	t.Helper()
	return registrytest.Connect(t, clientv3.New, clientv3.Config{Endpoints: []string{etcd.Endpoint()}, Logger: zap.NewNop()})
}

// The entries that etcd's own naming library writes are found, and an outage neither
// loses nor repeats anything.
func TestEtcdSource(t *testing.T) {
	etcd := clustertest.StartEtcd(t)
	client := dial(t, etcd)
	manager, err := endpoints.NewManager(client, "services/web")
	registrytest.NoError(t, err)
	do := func(updates ...*endpoints.UpdateWithOpts) {
		t.Helper()
		registrytest.NoError(t, manager.Update(t.Context(), updates))
	}
	add := func(key, addr string) *endpoints.UpdateWithOpts {
		return endpoints.NewAddUpdateOpts("services/web/"+key, endpoints.Endpoint{Addr: addr, Metadata: map[string]int{"weight": 1}})
	}
	do(add("a", "127.0.0.2:80"))
	if _, err := client.Put(t.Context(), "services/website/x", "not ours"); err != nil {
		t.Fatal(err)
	}

	sink := &recorder{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var following sync.WaitGroup
	following.Go(func() {
		follow(ctx, Etcd{Client: client, Prefix: "services", Service: "web"}, sink, func(error) {})
	})
	registrytest.Until(t, "the first list", func() bool { return sink.has(`{"a":"127.0.0.2:80"}`) })

	do(endpoints.NewDeleteUpdateOpts("services/web/a"), add("b", "127.0.0.3:80"))
	registrytest.Until(t, "a change of both", func() bool { return sink.has(`{"b":"127.0.0.3:80"}`) })
	if i := slices.Index(sink.sizes, 0); i >= 0 {
		t.Errorf("sizes of the list %v: a transaction was shown in part", sink.sizes)
	}

	registrytest.NoError(t, etcd.Kill())
	registrytest.NoError(t, etcd.Restart(t.Context()))
	do(add("c", "127.0.0.4:80"))
	registrytest.Until(t, "a change after an outage", func() bool { return sink.has(`{"b":"127.0.0.3:80","c":"127.0.0.4:80"}`) })
	cancel()
	following.Wait()
}

func TestEtcdSourceRefusesWhatIsNoEndpoint(t *testing.T) {
	etcd := clustertest.StartEtcd(t)
	client := dial(t, etcd)
	source := Etcd{Client: client, Prefix: "services", Service: "web"}
	for _, c := range []struct{ value, want string }{
		{"nonsense", "services/web/a: its value is no endpoint"},
		{`{"Op":0}`, "services/web/a: its value has no Addr"},
	} {
		if _, err := client.Put(t.Context(), "services/web/a", c.value); err != nil {
			t.Fatal(err)
		}
		if err := source.Follow(t.Context(), &recorder{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("value %q: error %v, want one that says %q", c.value, err, c.want)
		}
	}
}
