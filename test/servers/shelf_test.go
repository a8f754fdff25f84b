// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/usher-dev/usher/test/servers/run"
)

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
