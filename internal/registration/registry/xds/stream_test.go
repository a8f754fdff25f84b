// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// caller is the client end of a stream.
type caller struct {
	*testing.T
	*stream
	answers []*discoveryv3.DiscoveryResponse
	logs    strings.Builder
}

func newCaller(t *testing.T, store *Store) *caller {
	t.Helper()
	m, err := newMetrics(prometheus.NewRegistry())
	registrytest.NoError(t, err)
	c := &caller{T: t}
	log := funcr.New(func(_, args string) { c.logs.WriteString(args + "\n") }, funcr.Options{})
	c.stream = &stream{adsServer: &adsServer{store: store, metrics: m, log: log}, wants: map[string]*want{}}
	c.send = func(r *discoveryv3.DiscoveryResponse) error {
		c.answers = append(c.answers, r)
		return nil
	}
	return c
}

// ask sends a request that answers the nonce.
func (c *caller) ask(typeURL, nonce string, names ...string) {
	c.Helper()
	err := c.take(&discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "me"}, TypeUrl: typeURL, ResponseNonce: nonce, ResourceNames: names,
	})
	registrytest.NoError(c.T, err)
}

func (c *caller) changed() {
	c.Helper()
	registrytest.NoError(c.T, c.push(typeAssignment))
}

// receives checks that exactly one answer arrived, and returns its nonce.
func (c *caller) receives(typeURL string, resources int) string {
	c.Helper()
	if len(c.answers) != 1 {
		c.Fatalf("%d answers came, want one", len(c.answers))
	}
	answer := c.answers[0]
	c.answers = nil
	if answer.GetTypeUrl() != typeURL || len(answer.GetResources()) != resources || answer.GetNonce() == "" || answer.GetVersionInfo() == "" {
		c.Errorf("the answer is %v, want %d of %s", answer, resources, typeURL)
	}
	for _, r := range answer.GetResources() {
		if r.GetTypeUrl() != typeURL {
			c.Errorf("a resource of the type %s in an answer of %s", r.GetTypeUrl(), typeURL)
		}
	}
	return answer.GetNonce()
}

func (c *caller) silence(why string) {
	c.Helper()
	if len(c.answers) > 0 {
		c.Errorf("%s: was answered with %v", why, c.answers)
		c.answers = nil
	}
}

func TestStreamTalk(t *testing.T) {
	store := NewStore()
	store.handle(slice("one", "1", "10.0.0.1"), false)
	c := newCaller(t, store)
	for _, kind := range []string{typeListener, typeRoute, typeCluster} {
		c.ask(kind, "", "web.demo")
		nonce := c.receives(kind, 1)
		c.ask(kind, nonce, "web.demo")
		c.silence("an acknowledgement")
	}
	c.ask(typeAssignment, "", "web.demo")
	first := c.receives(typeAssignment, 1)
	c.ask(typeAssignment, first, "web.demo")
	c.changed()
	c.silence("a change of something else")

	store.handle(slice("one", "2", "10.0.0.2"), false)
	c.changed()
	second := c.receives(typeAssignment, 1)
	c.ask(typeAssignment, first, "web.demo", "shop.demo")
	c.silence("a request from before the last answer")
	c.ask(typeAssignment, second, "web.demo", "shop.demo")
	third := c.receives(typeAssignment, 2)

	// Dropped and requested again: the client has forgotten it.
	c.ask(typeAssignment, third, "shop.demo")
	c.silence("fewer names")
	store.handle(slice("one", "3", "10.0.0.3"), false)
	c.changed()
	c.silence("a change of what nobody asks for")
	c.ask(typeAssignment, third, "shop.demo", "web.demo")
	c.receives(typeAssignment, 2)
	c.ask(typeAssignment, "", "x.y")
	c.silence("an empty nonce after an answer")
}

// TestStreamRefused checks that a refused answer is not repeated.
func TestStreamRefused(t *testing.T) {
	store := NewStore()
	store.handle(slice("one", "1", "10.0.0.1"), false)
	c := newCaller(t, store)
	c.ask(typeAssignment, "", "web.demo")
	nonce := c.receives(typeAssignment, 1)
	refusal := &discoveryv3.DiscoveryRequest{
		TypeUrl: typeAssignment, ResponseNonce: nonce, ResourceNames: []string{"web.demo"},
		ErrorDetail: &rpcstatus.Status{Message: "no\nsuch thing"},
	}
	registrytest.NoError(t, c.take(refusal))
	c.silence("a refusal")
	if n := testutil.ToFloat64(c.metrics.refusals); n != 1 || !strings.Contains(c.logs.String(), `"says"="no such thing"`) ||
		!strings.Contains(c.logs.String(), `"node"="me"`) {
		t.Errorf("%v refusals are counted; the log says %s", n, c.logs.String())
	}
	store.handle(slice("one", "2", "10.0.0.2"), false)
	c.changed()
	c.receives(typeAssignment, 1)
}

// TestStreamNames checks that every valid service name gets an answer, whether or not
// the service exists.
func TestStreamNames(t *testing.T) {
	c := newCaller(t, NewStore())
	c.ask(typeListener, "", "web", "Web.demo", "a.b.c", "", "web.demo:80")
	c.silence("names that no service can have")
	if !strings.Contains(c.logs.String(), "<service>.<namespace>") {
		t.Errorf("the log says %s", c.logs.String())
	}
	c.ask(typeListener, "", "web.demo", "nobody.demo", "web.demo")
	c.receives(typeListener, 2)
	c.ask(typeCluster, "")
	c.silence("no name")
	c.ask("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "", "web.demo")
	c.silence("another type")
	err := c.take(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, ResourceNames: make([]string, maxNames+1)})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("too many names: %v", err)
	}
}
