// SPDX-License-Identifier: Apache-2.0

package exits

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// TestListed: each form is read, and whatever else people write is refused with the forms.
func TestListed(t *testing.T) {
	for text, want := range map[string]string{
		"service:web":                        "traffic.Service, one for each Pod",
		"pods:8080":                          "exits.Pods, one for each Pod",
		"address:10.0.0.1:80":                "traffic.Fixed, one for all",
		"url:http://127.0.0.1/list":          "exits.page, one for each Pod",
		"consul:http://127.0.0.1:8500/web":   "traffic.Consul, one for each Pod",
		"etcd:127.0.0.1:2379/services/a/web": "traffic.Etcd, one for each Pod",
		"":                                   "usage",
		"web":                                "usage",
		"pods:http":                          "usage",
		"pods:70000":                         "usage",
		"address:10.0.0.1":                   "usage",
		"url:file:///etc/hosts":              "usage",
		"consul:127.0.0.1:8500":              "usage",
		"etcd:127.0.0.1:2379/web":            "usage",
	} {
		got := "usage"
		switch listed, err := NewListed(text, nil, nil, "default"); {
		case err == nil:
			got = fmt.Sprintf("%T, one for %s", listed.Source, map[bool]string{true: "each Pod", false: "all"}[listed.Several])
		case !errors.Is(err, stage.ErrUsage):
			got = err.Error()
		}
		checktest.Same(t, "-listed "+text, want, got)
	}
}

// TestPage: a page lists addresses in lines or as JSON; one that lists anything else is an error, and nobody is called.
func TestPage(t *testing.T) {
	for body, want := range map[string]string{
		"10.0.0.1:80\n\n 10.0.0.2:80 \n":       "10.0.0.1:80 10.0.0.2:80",
		` ["10.0.0.1:80", "[2001:db8::1]:80"]`: "10.0.0.1:80 [2001:db8::1]:80",
		"[]":                                   "",
		"10.0.0.1":                             "no host:port",
		`["10.0.0.1"`:                          "unexpected end",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		addresses, err := page(server.URL).read(t.Context())
		server.Close()
		got := strings.Join(addresses, " ")
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("a page with %q lists %q, want %q", body, got, want)
		}
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	if _, err := page(server.URL).read(t.Context()); err == nil {
		t.Error("a page that is not there lists nothing, without an error")
	}
}

// TestChosenWays: ways are played in their own order, and a name that is none lists those that are.
func TestChosenWays(t *testing.T) {
	chosen, err := chosenWays([]string{"drain", "rollout"})
	checktest.NoError(t, err)
	checktest.Same(t, "the ways", []string{"rollout", "drain"}, list.Map(chosen, func(w way) string { return w.Name }))
	if _, err := chosenWays([]string{"reboot"}); !errors.Is(err, stage.ErrUsage) || !strings.Contains(err.Error(), "kubectl drain") {
		t.Errorf("a way that does not exist: %v", err)
	}
}

// TestNeeds: what cannot be played says why.
func TestNeeds(t *testing.T) {
	one := &run{Options: Options{Workload: "deployment/web"}, workload: &workload{replicas: 1, schedulable: 1}}
	two := &run{Options: Options{Workload: "deployment/web"}, workload: &workload{replicas: 2, schedulable: 1}}
	var got []string
	for _, w := range ways {
		got = append(got, fmt.Sprintf("%s: %t %t", w.Name, w.needs(one) == "", w.needs(two) == ""))
	}
	checktest.Same(t, "ways that one Pod and two Pods of one node can go", []string{
		"rollout: true true", "scale in: false true", "scale out: false true", "delete: false true", "evict: false true", "drain: false false",
	}, got)
}

// TestBusiestNode: the node with most Pods is drained, of these Pods alone.
func TestBusiestNode(t *testing.T) {
	pod := func(name, node string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	}
	node, there := busiestNode([]corev1.Pod{pod("a", "n2"), pod("b", "n1"), pod("c", "n2"), pod("d", "n1")})
	checktest.Same(t, "the node", "n1", node)
	checktest.Same(t, "its Pods", []string{"b", "d"}, list.Map(there, func(p corev1.Pod) string { return p.Name }))
}

// TestTable: lost requests and ways that were not played say why.
func TestTable(t *testing.T) {
	results := []Result{
		{Way: "rollout", Requests: 1200, Lost: 3, Took: 1500 * time.Millisecond, Reasons: map[string]int{"connection refused": 3}},
		{Way: "delete", Requests: 120, Took: time.Second},
		{Way: "drain", Skipped: "the cluster has no second node that takes Pods"},
	}
	checktest.Same(t, "the table", []string{
		"WAY OUT  REQUESTS  LOST    TOOK  WHY",
		"rollout     1,200     3  1.50 s  3 × connection refused",
		"delete        120     0  1.00 s  -",
		"drain           -     -       -  not played: the cluster has no second node that takes Pods",
	}, Table(results).Lines(false))
	checktest.Same(t, "lost requests", 3, Lost(results))
}

// TestLossesBelongToTheirWay: a request that is lost counts for the way that is played.
func TestLossesBelongToTheirWay(t *testing.T) {
	r := &run{reasons: map[string]map[string]int{}, client: traffic.New(traffic.Options{Source: traffic.Fixed("192.0.2.1:1"), Rate: 1})}
	r.begin("rollout")
	r.noteLost(traffic.Loss{Reason: "connection refused"})
	r.begin("drain")
	r.noteLost(traffic.Loss{Reason: "connection reset"})
	r.noteLost(traffic.Loss{Reason: "connection reset"})
	results := r.count([]Result{{Way: "rollout"}, {Way: "drain"}})
	checktest.Same(t, "why", []map[string]int{{"connection refused": 1}, {"connection reset": 2}},
		list.Map(results, func(r Result) map[string]int { return r.Reasons }))
}
