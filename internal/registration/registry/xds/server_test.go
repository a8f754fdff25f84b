// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"cmp"
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
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// slice returns a slice of the service web in the namespace demo. An endpoint has the conditions
// that follow its address, or none.
func slice(name, version string, endpoints ...string) *discoveryv1.EndpointSlice {
	made := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "demo", Name: name, ResourceVersion: version, Labels: map[string]string{LabelService: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(80))}},
	}
	for _, text := range endpoints {
		address, conditions, given := strings.Cut(text, " ")
		e := discoveryv1.Endpoint{Addresses: []string{address}}
		if is := func(what string) *bool { return new(strings.Contains(conditions, what)) }; given {
			e.Conditions = discoveryv1.EndpointConditions{Ready: is("ready"), Serving: is("serving"), Terminating: is("terminating")}
		}
		made.Endpoints = append(made.Endpoints, e)
	}
	return made
}

// talk is a store, and what one client hears of its server.
type talk struct {
	*testing.T
	*stream
	known map[string]*discoveryv1.EndpointSlice
	// served has what came of a list once the store serves it.
	served chan error
	lines  []string
}

func newTalk(t *testing.T) *talk {
	t.Helper()
	w := &talk{T: t, known: map[string]*discoveryv1.EndpointSlice{}, served: make(chan error, 1)}
	log := funcr.New(func(_, args string) { w.tell("log %s", strings.TrimPrefix(args, `"level"=0 `)) }, funcr.Options{})
	w.stream = &stream{
		adsServer: newADS(NewStore(), checktest.Must(newMetrics(prometheus.NewRegistry()))(t), log),
		ctx:       t.Context(), send: w.receive, wants: map[string]*want{}, allowed: map[string]bool{},
	}
	return w
}

func (w *talk) tell(format string, args ...any) {
	w.lines = append(w.lines, fmt.Sprintf(format, args...))
}

// receive tells of an answer.
func (w *talk) receive(r *discoveryv3.DiscoveryResponse) error {
	for _, resource := range r.GetResources() {
		checktest.Same(w, "the type of a resource", r.GetTypeUrl(), resource.GetTypeUrl())
	}
	if r.GetVersionInfo() == "" {
		w.Errorf("%v has no version", r)
	}
	w.tell("answer %s: %d of %s", r.GetNonce(), len(r.GetResources()), r.GetTypeUrl()[strings.LastIndex(r.GetTypeUrl(), ".")+1:])
	return nil
}

// hear makes a call for the client, and tells if nothing comes of it.
func (w *talk) hear(err error, told int) {
	if err != nil {
		w.tell("error %s", status.Code(err))
	}
	if len(w.lines) == told {
		w.tell("no answer")
	}
}

// ask sends a request, such as "Listener 1: web.demo, shop.demo" with the nonce 1. What is refused
// is the answer with that nonce.
func (w *talk) ask(text string, refusal *rpcstatus.Status) {
	head, list, some := strings.Cut(text, ": ")
	var names []string
	if some {
		names = strings.Split(list, ", ")
	}
	typeURL, nonce, _ := strings.Cut(head, " ")
	for _, known := range []string{typeListener, typeRoute, typeCluster, typeAssignment} {
		if strings.HasSuffix(known, "."+typeURL) {
			typeURL = known
		}
	}
	told := len(w.lines)
	w.hear(w.take(&discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "me"}, TypeUrl: typeURL, ResponseNonce: nonce, ErrorDetail: refusal, ResourceNames: names,
	}), told)
}

// list is what the API server lists of the service, such as "30: one 10, two 20" at the version 30.
func (w *talk) list(text string) {
	version, names, _ := strings.Cut(text, ": ")
	made := &discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
	for one := range strings.SplitSeq(names, ", ") {
		name, version, _ := strings.Cut(one, " ")
		made.Items = append(made.Items, *slice(name, version))
	}
	w.tell("%s is missing", cmp.Or(checktest.Must(w.store.missing("web.demo", made))(w), "nothing"))
	ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
	w.Cleanup(cancel)
	go func() { w.served <- w.store.awaitServed(ctx, "demo", "web", made) }()
}

// change lets the API server tell of a slice, such as "one 1: 10.0.0.1, 10.0.0.2 serving": one of the
// service web, unless something else follows the version.
func (w *talk) change(text string) {
	head, endpoints, _ := strings.Cut(text, ": ")
	name, version, _ := strings.Cut(head, " ")
	version, of, other := strings.Cut(version, " of ")
	next := slice(name, version, strings.Split(endpoints, ", ")...)
	switch {
	case of == "names":
		next.AddressType = discoveryv1.AddressTypeFQDN
	case of == "no port":
		next.Ports = nil
	case of == "no service":
		next.Labels = nil
	case other:
		next.Labels[LabelService] = of
	}
	if before := w.known[name]; before != nil {
		w.store.handler().OnUpdate(before, next)
	} else {
		w.store.handler().OnAdd(next, false)
	}
	w.known[name] = next
}

// words are what happens in testdata/talk.txt.
var words = map[string]func(w *talk, text string){
	"Slice": (*talk).change,
	"Gone": func(w *talk, text string) {
		name, version, _ := strings.Cut(text, " ")
		w.store.handler().OnDelete(cache.DeletedFinalStateUnknown{Key: "demo/" + name, Obj: slice(name, version)})
	},
	"Access": func(w *talk, _ string) {
		w.mayRead = func(_ context.Context, client *x509.Certificate, namespace string) (bool, error) {
			if namespace == "down" {
				return false, errors.New("no answer")
			}
			return client.Subject.CommonName == "web" && namespace == "demo", nil
		}
	},
	"Certificate": func(w *talk, name string) {
		shown := []*x509.Certificate{{Subject: pkix.Name{CommonName: name}}}
		w.ctx = peer.NewContext(w.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: shown}}})
	},
	"asks": func(w *talk, text string) { w.ask(text, nil) },
	"refuses": func(w *talk, text string) {
		w.ask(text, &rpcstatus.Status{Message: "no\nsuch thing"})
		w.tell("refusals: %v", testutil.ToFloat64(w.metrics.refusals))
	},
	"changed": func(w *talk, _ string) { told := len(w.lines); w.hear(w.push(typeAssignment), told) },
	"served":  (*talk).shows,
	"kept":    func(w *talk, _ string) { w.tell("%d slices, %d services", len(w.store.parts), len(w.store.encoded)) },
	"listed":  (*talk).list,
	"awaited": func(w *talk, _ string) {
		checktest.NoError(w, <-w.served)
		w.tell("all is served")
	},
}

// shows tells which endpoints clients receive, with ! for a draining one.
func (w *talk) shows(name string) {
	r := checktest.Must(w.store.assignment(name))(w)
	var made endpointv3.ClusterLoadAssignment
	checktest.NoError(w, r.data.UnmarshalTo(&made))
	checktest.Same(w, "the name", name, made.GetClusterName())
	var all []string
	for _, locality := range made.GetEndpoints() {
		if locality.GetLocality() == nil || locality.GetLoadBalancingWeight().GetValue() == 0 {
			w.Errorf("gRPC refuses or skips %v", locality)
		}
		for _, e := range locality.GetLbEndpoints() {
			socket := e.GetEndpoint().GetAddress().GetSocketAddress()
			text := fmt.Sprintf("%s:%d", socket.GetAddress(), socket.GetPortValue())
			if e.GetHealthStatus() == corev3.HealthStatus_DRAINING {
				text += "!"
			}
			all = append(all, text)
		}
	}
	w.tell("%s at %s", name, cmp.Or(strings.Join(all, " "), "no address"))
}

// TestTalk plays testdata/talk.txt: what the store serves, and what a client is told of it.
func TestTalk(t *testing.T) {
	scenariotest.Run(t, "testdata/talk.txt", func(t *testing.T, lines []string) []string {
		w := newTalk(t)
		for _, line := range lines {
			word, text, _ := strings.Cut(line, " ")
			words[word](w, text)
		}
		return w.lines
	})
}

// TestStoreVersions checks that a version changes exactly when the served state does.
func TestStoreVersions(t *testing.T) {
	s, other := NewStore(), NewStore()
	version := func(s *Store) string {
		t.Helper()
		return checktest.Must(s.assignment("web.demo"))(t).version
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

func TestAwaitServedEnds(t *testing.T) {
	s := NewStore()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	one := discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{*slice("one", "10")}}
	err := s.awaitServed(ctx, "demo", "web", &one)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "EndpointSlice one") {
		t.Errorf("a change that nobody serves: %v", err)
	}
	s.handle(slice("one", "10"), false)
	one.Items[0].ResourceVersion = "x"
	if err := s.awaitServed(t.Context(), "demo", "web", &one); err == nil {
		t.Error("a version that is no number is compared")
	}
}

func newServer(t *testing.T, address string, synced func() bool) *server {
	t.Helper()
	m := checktest.Must(newMetrics(prometheus.NewRegistry()))(t)
	return &server{adsServer: newADS(NewStore(), m, logr.Discard()), address: address, creds: insecure.NewCredentials(), synced: synced}
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
		w := newTalk(t)
		w.store.handle(slice("one", "1", "10.0.0.1"), false)
		for range 2 {
			if err := w.take(&request); err != nil && status.Code(err) != codes.InvalidArgument {
				t.Error(err)
			}
		}
	})
}

// TestExhaustion: clients have bounds, each and together, for streams, names and log lines.
func TestExhaustion(t *testing.T) {
	w := newTalk(t)
	ask := func(names ...string) codes.Code {
		return status.Code(w.take(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, ResourceNames: names, ResponseNonce: strconv.Itoa(w.nonces)}))
	}
	checktest.Same(t, "too many names of one client", codes.InvalidArgument, ask(make([]string, maxNames+1)...))
	w.names = semaphore.NewWeighted(3)
	have := []codes.Code{ask("a.demo"), ask("a.demo", "b.demo"), ask("c.demo", "d.demo"), ask("a.demo")}
	checktest.Same(t, "how names are answered", []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted, codes.OK}, have)
	if w.forget(); !w.names.TryAcquire(3) {
		t.Error("the names of a stream that has ended take room")
	}
	w.streams = semaphore.NewWeighted(0)
	checktest.Same(t, "a stream too many", codes.ResourceExhausted, status.Code(w.StreamAggregatedResources(nil)))
	w.lines = nil
	for range 100 {
		w.note("a client does something odd")
	}
	if lines := len(w.lines); lines < 1 || lines > 2*lineBurst {
		t.Errorf("100 oddities make %d lines", lines)
	}
}

// TestRequestsAreBounded: gRPC bounds a request's bytes, but not what they become in memory.
func TestRequestsAreBounded(t *testing.T) {
	s := newServer(t, free(t), func() bool { return true })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	defer func() { cancel(); checktest.NoError(t, <-done) }()
	conn := checktest.Must(grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer func() { _ = conn.Close() }()
	ask := func(ctx context.Context, request *discoveryv3.DiscoveryRequest) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx, grpc.WaitForReady(true))
		if err != nil {
			return err // The client knows already that the server would refuse its headers.
		}
		_ = stream.Send(request) // Receive returns why it failed.
		_ = stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, ResourceNames: []string{"web.demo"}})
		_ = stream.CloseSend()
		_, err = stream.Recv()
		return err
	}
	nulls := slices.Repeat([]*structpb.Value{{}}, 200000)
	for name, test := range map[string]struct {
		header  string
		request *discoveryv3.DiscoveryRequest
		says    string
	}{
		"many values": {"", &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"a": structpb.NewListValue(&structpb.ListValue{Values: nulls}),
		}}}}, "too many fields"},
		"long headers": {strings.Repeat("x", 1<<20), &discoveryv3.DiscoveryRequest{}, "header"},
		"a real one":   {"", &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "me", UserAgentName: "envoy"}}, ""},
	} {
		err := ask(metadata.AppendToOutgoingContext(t.Context(), "more", test.header), test.request)
		if (err == nil) != (test.says == "") || !strings.Contains(fmt.Sprint(err), test.says) {
			t.Errorf("%s: %v, want it to mention %q", name, err, test.says)
		}
	}
}

// TestPanicsAreErrors: what one client sends does not end the process, which all share.
func TestPanicsAreErrors(t *testing.T) {
	s := newServer(t, "", nil)
	s.mayRead = func(context.Context, *x509.Certificate, string) (bool, error) { panic("a bug") }
	for _, fake := range []*talker{{t: t, panics: true}, {t: t}} {
		if err := s.StreamAggregatedResources(fake); err == nil || !strings.Contains(err.Error(), "this is a bug in Usher") {
			t.Errorf("a stream that panics: %v", err)
		}
	}
}

// talker is a stream that requests a service, or panics on its own.
type talker struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	t      *testing.T
	panics bool
}

func (s *talker) Context() context.Context {
	return peer.NewContext(s.t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{
		VerifiedChains: [][]*x509.Certificate{{{}}}, PeerCertificates: []*x509.Certificate{{}},
	}}})
}

func (s *talker) Recv() (*discoveryv3.DiscoveryRequest, error) {
	if s.panics {
		panic("a bug of the library")
	}
	return &discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, ResourceNames: []string{"web.demo"}}, nil
}

func (s *talker) Send(*discoveryv3.DiscoveryResponse) error { return nil }
