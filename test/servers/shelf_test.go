// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/servers/run"
)

const wait = 30 * time.Second

// watched starts a watch and returns what it reports.
func watched(t *testing.T, s Server) <-chan Sighting {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	sightings, done := make(chan Sighting, 100), make(chan error, 1)
	go func() { done <- s.Watch(ctx, func(one Sighting) { sightings <- one }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the watch ended with %v", err)
		}
	})
	return sightings
}

func expect(t *testing.T, sightings <-chan Sighting, uid string, in bool) {
	t.Helper()
	select {
	case got := <-sightings:
		if got.UID != uid || got.In != in || got.Since.IsZero() || got.Since.After(time.Now()) {
			t.Errorf("reported %+v, want %s, in: %t", got, uid, in)
		}
	case <-time.After(wait):
		t.Fatalf("nothing is reported about %s", uid)
	}
}

func endpoint(uid string, weight int) string {
	return fmt.Sprintf(`{"Op":0,"Addr":"127.0.0.1:1","Metadata":{"weight":%d,"usher":{"uid":%q}}}`, weight, uid)
}

func TestEtcd(t *testing.T) {
	server, err := Start(t.Context(), kindEtcd, Where{Dir: t.TempDir()})
	registrytest.NoError(t, err)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	client := server.(*etcd).client
	put := func(id, value string) {
		t.Helper()
		if _, err := client.Put(t.Context(), root+id, value); err != nil {
			t.Fatal(err)
		}
	}
	put("a", endpoint("one", 1))
	sightings := watched(t, server)
	expect(t, sightings, "one", true)
	put("a", endpoint("one", 7)) // No change: it is as available as before.
	put("b", endpoint("two", 1))
	expect(t, sightings, "two", true)
	put("b", endpoint("two", 0))
	expect(t, sightings, "two", false)
	put("a", endpoint("three", 1))
	expect(t, sightings, "one", false)
	expect(t, sightings, "three", true)
	registrytest.NoError(t, server.Evict(t.Context(), "three"))
	expect(t, sightings, "three", false)
	if err := server.Evict(t.Context(), "nobody"); !errors.Is(err, errNotWatched) {
		t.Errorf("evict nobody: %v", err)
	}
	if !strings.HasPrefix(server.Name(), "etcd 3.") || server.PID() == 0 || server.Spec().Etcd == nil {
		t.Errorf("it is %s, process %d, %+v", server.Name(), server.PID(), server.Spec())
	}
	counts(t, server, client)
}

// counts sends various requests, and compares them with the server's counts.
func counts(t *testing.T, server Server, client *clientv3.Client) {
	t.Helper()
	before, err := server.Calls(t.Context())
	registrytest.NoError(t, err)
	_, getErr := client.Get(t.Context(), root)
	registrytest.NoError(t, errors.Join(server.Put(t.Context(), "x"), server.Remove(t.Context(), "x"), getErr))
	after, err := server.Calls(t.Context())
	registrytest.NoError(t, err)
	got := after.Since(before)
	if !maps.Equal(got, Calls{"Put": 1, "DeleteRange": 1, rangeCall: 1}) || got.Writes() != 2 {
		t.Errorf("counted %v, %d of them writes", got, got.Writes())
	}
}

// A watch that may have missed something reports it.
func TestEtcdEnds(t *testing.T) {
	server, err := Start(t.Context(), kindEtcd, Where{Dir: t.TempDir()})
	registrytest.NoError(t, err)
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := server.Watch(t.Context(), func(Sighting) {}); err == nil {
		t.Error("the watch of a server that is gone ended well")
	}
}

// fakeConsul answers reads with one list after another, then with an error.
func fakeConsul(t *testing.T, answers ...string) *consul {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			return
		}
		if len(answers) == 0 {
			http.Error(w, "no more", http.StatusInternalServerError)
			return
		}
		w.Header().Set("X-Consul-Index", fmt.Sprint(len(answers)))
		_, _ = fmt.Fprint(w, answers[0])
		answers = answers[1:]
	}))
	t.Cleanup(server.Close)
	return &consul{Consul: &run.Consul{HTTP: run.HTTP{Address: server.URL}}, nodes: map[string]string{}}
}

// consulInstance is Consul's answer for a service with one instance.
func consulInstance(weight, life int) string {
	return fmt.Sprintf(`[{"Node":{"Node":"n"},"Service":{"Meta":{"usher-uid":"one"},"Weights":{"Passing":%d},"CreateIndex":%d}}]`,
		weight, life)
}

func TestConsulWatch(t *testing.T) {
	c := fakeConsul(t,
		consulInstance(1, 5),
		consulInstance(3, 5), // No change.
		consulInstance(1, 9), // It left and came back between two reads.
		consulInstance(0, 9),
	)
	var sightings []string
	err := c.Watch(t.Context(), func(s Sighting) { sightings = append(sightings, fmt.Sprint(s.UID, s.In)) })
	if err == nil || !strings.Contains(err.Error(), "no more") {
		t.Errorf("a read that failed: %v", err)
	}
	if got := strings.Join(sightings, " "); got != "onetrue onefalse onetrue onefalse" {
		t.Errorf("reported %s", got)
	}
	if c.reads != 4 {
		t.Errorf("%d reads are counted, want 4", c.reads)
	}
	if err := errors.Join(c.Evict(t.Context(), "one"), c.Put(t.Context(), "x")); err != nil {
		t.Error(err)
	}
	if err := c.Evict(t.Context(), "nobody"); !errors.Is(err, errNotWatched) {
		t.Errorf("evict nobody: %v", err)
	}
}

func TestConsulCalls(t *testing.T) {
	c := fakeConsul(t, `# TYPE consul_api_http summary
consul_api_http{method="GET",path="v1_health_service_",quantile="0.5"} 0.3
consul_api_http_count{method="GET",path="v1_health_service_"} 12
consul_api_http_count{method="GET",path="v1_agent_metrics"} 3
consul_api_http_count{method="PUT",path="v1_txn"} 2
`)
	c.reads = 5
	calls, err := c.Calls(t.Context())
	if err != nil || !maps.Equal(calls, Calls{readCall: 7, "PUT v1_txn": 2}) || calls.Writes() != 2 {
		t.Errorf("counted %v, %d of them writes, %v", calls, calls.Writes(), err)
	}
}

func TestUnknownKind(t *testing.T) {
	if _, err := Start(t.Context(), "disk", Where{}); err == nil || !strings.Contains(err.Error(), `"disk" is none of`) {
		t.Errorf("got %v", err)
	}
}
