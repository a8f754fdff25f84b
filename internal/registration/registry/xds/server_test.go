// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/semaphore"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/usher-dev/usher/internal/checktest"
)

// slice returns a slice of the service web in the namespace demo, with ready endpoints.
func slice(name, version string, addresses ...string) *discoveryv1.EndpointSlice {
	port := int32(80)
	made := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "demo", Name: name, ResourceVersion: version, Labels: map[string]string{LabelService: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	for _, address := range addresses {
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return made
}

func conditions(ready, serving, terminating bool) discoveryv1.EndpointConditions {
	return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
}

func list(version string, slices ...*discoveryv1.EndpointSlice) *discoveryv1.EndpointSliceList {
	made := &discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
	for _, s := range slices {
		made.Items = append(made.Items, *s)
	}
	return made
}

// serves checks the endpoints that clients receive, as address:port, with ! for a
// draining one.
func serves(t *testing.T, s *Store, name, want string) {
	t.Helper()
	r := checktest.Must(s.assignment(name))(t)
	var made endpointv3.ClusterLoadAssignment
	checktest.NoError(t, r.data.UnmarshalTo(&made))
	var have []string
	for _, locality := range made.GetEndpoints() {
		if locality.GetLocality() == nil || locality.GetLoadBalancingWeight().GetValue() == 0 {
			t.Errorf("gRPC refuses or skips %v", locality)
		}
		for _, e := range locality.GetLbEndpoints() {
			socket := e.GetEndpoint().GetAddress().GetSocketAddress()
			text := fmt.Sprintf("%s:%d", socket.GetAddress(), socket.GetPortValue())
			if e.GetHealthStatus() == corev3.HealthStatus_DRAINING {
				text += "!"
			}
			have = append(have, text)
		}
	}
	if made.GetClusterName() != name || strings.Join(have, " ") != want {
		t.Errorf("%s is served as %s %v, want %s", name, made.GetClusterName(), have, want)
	}
}

func TestStoreFollows(t *testing.T) {
	s := NewStore()
	serves(t, s, "web.demo", "")
	one, two := slice("one", "1", "10.0.0.2", "10.0.0.1"), slice("two", "2", "10.0.0.3", "10.0.0.1")
	handler := s.handler()
	handler.OnAdd(one, true)
	handler.OnAdd(two, false)
	serves(t, s, "web.demo", "10.0.0.1:80 10.0.0.2:80 10.0.0.3:80")
	serves(t, s, "web.other", "")

	fewer := slice("one", "3", "10.0.0.2")
	handler.OnUpdate(one, fewer)
	serves(t, s, "web.demo", "10.0.0.1:80 10.0.0.2:80 10.0.0.3:80")
	handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "demo/two", Obj: two})
	serves(t, s, "web.demo", "10.0.0.2:80")

	moved := slice("one", "4", "10.0.0.2")
	moved.Labels[LabelService] = "shop"
	handler.OnUpdate(fewer, moved)
	serves(t, s, "web.demo", "")
	serves(t, s, "shop.demo", "10.0.0.2:80")
	left := slice("one", "5", "10.0.0.2")
	left.Labels = nil
	handler.OnUpdate(moved, left)
	serves(t, s, "shop.demo", "")
	if len(s.parts)+len(s.encoded) > 0 {
		t.Errorf("what is gone is remembered: %v %v", s.parts, s.encoded)
	}
}

// TestStoreConditions checks that endpoints in service and terminating ones are served.
func TestStoreConditions(t *testing.T) {
	s := NewStore()
	one := slice("one", "1", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
	one.Endpoints[1].Conditions = conditions(false, true, true)
	one.Endpoints[2].Conditions = conditions(false, false, true)
	one.Endpoints[3].Conditions = conditions(false, true, false)
	s.handle(one, false)
	serves(t, s, "web.demo", "10.0.0.1:80 10.0.0.2:80!")
	// Another slice has the same address, in service.
	s.handle(slice("two", "2", "10.0.0.2"), false)
	serves(t, s, "web.demo", "10.0.0.1:80 10.0.0.2:80")

	noPort, name := slice("two", "3", "10.0.0.9"), slice("one", "4", "web.example.com")
	noPort.Ports, name.AddressType = nil, discoveryv1.AddressTypeFQDN
	s.handle(noPort, false)
	s.handle(name, false)
	serves(t, s, "web.demo", "")
}

// TestStoreVersions checks that a version changes exactly when the served state does.
func TestStoreVersions(t *testing.T) {
	s, other := NewStore(), NewStore()
	version := func(s *Store) string {
		t.Helper()
		r := checktest.Must(s.assignment("web.demo"))(t)
		return r.version
	}
	s.handle(slice("one", "1", "10.0.0.1", "10.0.0.2"), false)
	other.handle(slice("b", "7", "10.0.0.2"), false)
	other.handle(slice("a", "8", "10.0.0.1"), false)
	before := version(s)
	checktest.Same(t, "the version of another replica", before, version(other))
	s.handle(slice("one", "2", "10.0.0.1"), false)
	if version(s) == before {
		t.Error("an endpoint is gone, and the version is the same")
	}
}

// TestAwaitServed waits for what a list has and the store lacks.
func TestAwaitServed(t *testing.T) {
	one, two := slice("one", "10", "10.0.0.1"), slice("two", "20", "10.0.0.2")
	for name, test := range map[string]struct {
		list    *discoveryv1.EndpointSliceList
		missing string
		events  func(s *Store)
	}{
		"all is known":            {list("20", one, two), "", nil},
		"a newer slice is known":  {list("15", one), "", nil},
		"a new slice":             {list("30", one, two, slice("three", "30")), "three", func(s *Store) { s.handle(slice("three", "30"), false) }},
		"a new slice, gone again": {list("30", one, two, slice("three", "30")), "three", func(s *Store) { s.handle(slice("three", "31"), true) }},
		"a changed slice":         {list("30", one, slice("two", "30")), "two", func(s *Store) { s.handle(slice("two", "30"), false) }},
		"the end of a slice":      {list("30", one), "two", func(s *Store) { s.handle(slice("two", "25"), true) }},
		"no slice is left":        {list("31", two), "one", func(s *Store) { s.handle(slice("one", "31"), true) }},
	} {
		s := NewStore()
		s.handle(one, false)
		s.handle(two, false)
		checktest.Same(t, name+": missing", test.missing, checktest.Must(s.missing("web.demo", test.list))(t))
		done := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		go func() { done <- s.awaitServed(ctx, "demo", "web", test.list) }()
		if test.events != nil {
			test.events(s)
		}
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

func TestAwaitServedEnds(t *testing.T) {
	s := NewStore()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.awaitServed(ctx, "demo", "web", list("10", slice("one", "10")))
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "EndpointSlice one") {
		t.Errorf("a change that nobody serves: %v", err)
	}
	s.handle(slice("one", "10"), false)
	if err := s.awaitServed(t.Context(), "demo", "web", list("x", slice("two", "x"))); err == nil {
		t.Error("a version that is no number is compared")
	}
}

// caller is the client end of a stream.
type caller struct {
	*testing.T
	*stream
	answers []*discoveryv3.DiscoveryResponse
	logs    strings.Builder
}

func newCaller(t *testing.T, store *Store) *caller {
	t.Helper()
	m := checktest.Must(newMetrics(prometheus.NewRegistry()))(t)
	c := &caller{T: t}
	log := funcr.New(func(_, args string) { c.logs.WriteString(args + "\n") }, funcr.Options{})
	c.stream = &stream{
		adsServer: newADS(store, m, log), ctx: t.Context(), wants: map[string]*want{}, allowed: map[string]bool{},
	}
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
	checktest.NoError(c.T, err)
}

func (c *caller) changed() {
	c.Helper()
	checktest.NoError(c.T, c.push(typeAssignment))
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
		checktest.Same(c, "the type of a resource", typeURL, r.GetTypeUrl())
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
	checktest.NoError(t, c.take(refusal))
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
	checktest.Says(t, "the log", c.logs.String(), "<service>.<namespace>")
	c.ask(typeListener, "", "web.demo", "nobody.demo", "web.demo")
	c.receives(typeListener, 2)
	c.ask(typeCluster, "")
	c.silence("no name")
	c.ask("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "", "web.demo")
	c.silence("another type")
	err := c.take(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, ResourceNames: make([]string, maxNames+1)})
	checktest.Same(t, "too many names", codes.InvalidArgument, status.Code(err))
}

// TestStreamAccess checks that a client gets the names that its certificate allows, and no
// answer for others; without an answer of the API server it is to come back.
func TestStreamAccess(t *testing.T) {
	c := newCaller(t, NewStore())
	c.mayRead = func(_ context.Context, client *x509.Certificate, namespace string) (bool, error) {
		if namespace == "down" {
			return false, errors.New("no answer")
		}
		return client.Subject.CommonName == "web" && namespace == "demo", nil
	}
	c.ask(typeListener, "", "web.demo")
	c.silence("a client without a certificate")
	certificate := &x509.Certificate{Subject: pkix.Name{CommonName: "web"}}
	c.ctx = peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}}})
	c.ask(typeListener, "", "web.demo", "web.other")
	c.receives(typeListener, 1)
	checktest.Says(t, "the log", c.logs.String(), "no certificate", "CN=web may not get endpointslices.discovery.k8s.io in namespace other")
	checktest.Same(t, "no answer of the API server", codes.Unavailable, status.Code(c.take(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, ResourceNames: []string{"web.down"}})))
}

func newServer(t *testing.T, address string, synced func() bool) *server {
	t.Helper()
	m := checktest.Must(newMetrics(prometheus.NewRegistry()))(t)
	return &server{
		address: address, creds: insecure.NewCredentials(), log: logr.Discard(), synced: synced,
		ads: newADS(NewStore(), m, logr.Discard()),
	}
}

// free returns an address on which nothing listens.
func free(t *testing.T) string {
	t.Helper()
	listener := checktest.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// answers reports whether the server listens or claims to be ready.
func (s *server) answers(t *testing.T) bool {
	t.Helper()
	ready := s.ready(nil) == nil
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
	if err == nil {
		_ = conn.Close()
	}
	if ready && err != nil {
		t.Errorf("it is ready, and does not listen: %v", err)
	}
	return ready || err == nil
}

// TestServerWaits checks that the server does not listen before it knows the full
// state.
func TestServerWaits(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan bool)
	s := newServer(t, free(t), func() bool {
		asked <- struct{}{}
		return <-answer
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	for range 2 {
		<-asked
		if s.answers(t) {
			t.Error("it answers before it knows what there is")
		}
		answer <- false
	}
	<-asked
	answer <- true
	for end := time.Now().Add(10 * time.Second); !s.answers(t); {
		if time.Now().After(end) {
			t.Fatal("it does not answer")
		}
	}
	const maxConcurrentStreams = 3 // its identifier
	checktest.Same(t, "how many streams a connection may have", maxStreamsPerClient, settings(t, s.address)[maxConcurrentStreams])
	cancel()
	checktest.NoError(t, <-done)
	if s.answers(t) {
		t.Error("it answers after its end")
	}
}

// settings are what a server tells a new HTTP/2 connection, by identifier (RFC 9113, section 6.5).
func settings(t *testing.T, address string) map[uint16]uint32 {
	t.Helper()
	conn := checktest.Must((&net.Dialer{}).DialContext(t.Context(), "tcp", address))(t)
	defer func() { _ = conn.Close() }()
	_ = checktest.Must(io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))(t)
	header := make([]byte, 9)
	_ = checktest.Must(io.ReadFull(conn, header))(t)
	payload := make([]byte, int(header[1])<<8|int(header[2]))
	_ = checktest.Must(io.ReadFull(conn, payload))(t)
	told := map[uint16]uint32{}
	for one := range slices.Chunk(payload, 6) {
		told[binary.BigEndian.Uint16(one)] = binary.BigEndian.Uint32(one[2:])
	}
	return told
}

func TestServerAddress(t *testing.T) {
	s := newServer(t, "no address", func() bool { return true })
	checktest.Says(t, "an address that is none", s.Start(t.Context()), "--xds-bind-address")
	if s.NeedLeaderElection() {
		t.Error("it waits to be the leader")
	}
}

func TestServerFiles(t *testing.T) {
	nothing := filepath.Join(t.TempDir(), "nothing.pem")
	checktest.NoError(t, os.WriteFile(nothing, []byte("nothing"), 0o600))
	for name, test := range map[string]struct {
		files TLSFiles
		says  string
	}{
		"no key":         {TLSFiles{Certificate: nothing}, "set both"},
		"no certificate": {TLSFiles{ClientCA: nothing}, "set both"},
		"no pair":        {TLSFiles{Certificate: nothing, Key: nothing}, "--xds-tls-cert"},
		"no such file":   {TLSFiles{Certificate: nothing + "x", Key: nothing}, "no such file"},
	} {
		_, err := test.files.credentials()
		checktest.Says(t, name, err, test.says)
	}
	if creds, err := (TLSFiles{}).credentials(); err != nil || creds.Info().SecurityProtocol != "insecure" {
		t.Errorf("no files: %v", err)
	}
}

// FuzzRequest takes whatever a client may send.
func FuzzRequest(f *testing.F) {
	for _, request := range []*discoveryv3.DiscoveryRequest{
		{Node: &corev3.Node{Id: "me"}, TypeUrl: typeAssignment, ResourceNames: []string{"web.demo", "web", "web.demo"}},
		{TypeUrl: typeListener, ResponseNonce: "1", ErrorDetail: &rpcstatus.Status{Message: "no"}, ResourceNames: []string{"a.b"}},
	} {
		data := checktest.Must(proto.Marshal(request))(f)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var request discoveryv3.DiscoveryRequest
		if proto.Unmarshal(data, &request) != nil {
			return
		}
		store := NewStore()
		store.handle(slice("one", "1", "10.0.0.1"), false)
		c := newCaller(t, store)
		for range 2 {
			if err := c.take(&request); err != nil && status.Code(err) != codes.InvalidArgument {
				t.Error(err)
			}
		}
	})
}

// TestExhaustion: clients have bounds together, for streams, names and log lines.
func TestExhaustion(t *testing.T) {
	c := newCaller(t, NewStore())
	ask := func(names ...string) codes.Code {
		return status.Code(c.take(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, ResourceNames: names, ResponseNonce: strconv.Itoa(c.nonces)}))
	}
	c.names = semaphore.NewWeighted(3)
	if got := []codes.Code{ask("a.demo"), ask("a.demo", "b.demo"), ask("c.demo", "d.demo"), ask("a.demo")}; !slices.Equal(got,
		[]codes.Code{codes.OK, codes.OK, codes.ResourceExhausted, codes.OK}) {
		t.Errorf("names are answered with %v", got)
	}
	if c.forget(); !c.names.TryAcquire(3) {
		t.Error("the names of a stream that has ended take room")
	}
	c.streams = semaphore.NewWeighted(0)
	checktest.Same(t, "a stream too many", codes.ResourceExhausted, status.Code(c.StreamAggregatedResources(nil)))
	for range 100 {
		c.note("a client does something odd")
	}
	if lines := strings.Count(c.logs.String(), "something odd"); lines < 1 || lines > 2*lineBurst {
		t.Errorf("100 oddities make %d lines", lines)
	}
}
