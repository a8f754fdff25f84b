// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// programs run in simulated Pods, and are asked whether requests are under way. The path is the Pod's namespace. The
// witness sees whether a Pod goes while it is busy.
var programs = &servers{says: map[string]string{}, asked: map[string]int{}}

type servers struct {
	inPods

	mu sync.Mutex
	// says is what the Pods of a namespace answer, or the Pod of an address: a number of requests that are under way, or
	// nothing. asked is how often those of a namespace were asked.
	says  map[string]string
	asked map[string]int
}

// inPods is an HTTP server that answers in all simulated Pods, at any port.
type inPods struct{ address string }

// serve begins to answer by the handler, until the context ends.
func (p *inPods) serve(ctx context.Context, handler http.Handler) {
	server := httptest.NewServer(handler)
	p.address = server.Listener.Addr().String()
	context.AfterFunc(ctx, server.Close)
}

// dial connects to the server, whatever the address of its Pod.
func (p *inPods) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, p.address)
}

// ServeHTTP answers with metrics, and with 503 if requests are under way.
func (p *servers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	namespace := strings.TrimPrefix(r.URL.Path, "/")
	n := p.underWay(namespace, 1)
	if one, _, err := net.SplitHostPort(r.Host); err == nil && p.underWay(one, 0) != "" {
		n = p.underWay(one, 0)
	}
	if n == "nothing" {
		<-r.Context().Done()
		return
	}
	if !strings.Contains(r.Header.Get("Accept"), "text/plain") && n != "0" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = fmt.Fprintf(w, "requests_active{listener=\"a\"} %s\nrequests_active{listener=\"b\"} 0\n", n) // its caller sees
}

// underWay is what the Pods of a namespace say, and adds to how often they were asked.
func (p *servers) underWay(namespace string, asked int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[namespace] += asked
	return p.says[namespace]
}

// times is how often the Pods of a namespace were asked.
func (p *servers) times(namespace string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[namespace]
}

// say has the Pods of a namespace answer so from now on.
func (p *servers) say(namespace, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.says[namespace] = what
}

// busy says how busy the Pods of a namespace are; empty if they are not.
func (p *servers) busy(namespace string) string {
	if n := p.underWay(namespace, 0); n != "" && n != "0" {
		return n
	}
	return ""
}

// underWay are the words about requests that are under way.
var underWay = []scenariotest.Word[*story]{
	{Name: "under way", Args: "N | nothing said",
		Does: "has N requests under way in each Pod from now on, or has Pods that do not answer when they are asked; a story " +
			"fails if a Pod ends meanwhile",
		Run: func(s *story, n string) { programs.say(s.Namespace, strings.TrimSuffix(n, " said")) }},
	{Name: "under way in", Args: "POD N",
		Does: "has N requests under way in a Pod from now on, whatever is in the others; nobody sees whether it ends meanwhile",
		Run: func(s *story, rest string) {
			name, n, _ := strings.Cut(rest, " ")
			pod := &corev1.Pod{}
			s.Must(s.Get(s.Context(), types.NamespacedName{Namespace: s.Namespace, Name: name}, pod))
			programs.say(pod.Status.PodIP, n)
		}},
	{Name: "asked", Args: "N times", Does: "waits until the Pods were asked N times more whether requests are under way",
		Run: func(s *story, n string) {
			want := programs.times(s.Namespace) + scenariotest.Number(strings.TrimSuffix(n, " times"))
			s.Until(n+" more", func() string {
				have := programs.times(s.Namespace)
				return registrytest.Unless(have >= want, fmt.Sprintf("asked %d times, of %d", have, want))
			})
		}},
	{Name: "not asked", Does: "fails if the Pods were asked whether requests are under way",
		Run: func(s *story, _ string) { s.Same("how often they were asked", programs.times(s.Namespace), 0) }},
}
