// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/go-logr/logr"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// maxNames limits the services that one client requests of one type, and allNames those of
	// all clients together.
	maxNames = 10000
	allNames = 500000
	// maxStreams limits the clients of a replica.
	maxStreams = 10000
	// maxRequest limits a request, in bytes: enough for maxNames of usual length.
	maxRequest = 1 << 20
	// maxFields limits what a request has in it: maxNames, and several times as much about the
	// client as Envoy tells of itself. In memory each takes some 100 bytes, however short it was.
	maxFields = 50000
	// maxHeaders limits a stream's headers, in bytes, which gRPC keeps as long as the stream. By
	// default it takes 16 MiB.
	maxHeaders = 64 << 10
	// linesPerSecond and lineBurst limit what clients add to the log.
	linesPerSecond = 1
	lineBurst      = 20
)

// adsServer implements the service that clients call. Each client requests names in one
// stream, and accepts or refuses each answer.
type adsServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	store   *Store
	metrics *metrics
	log     logr.Logger
	mayRead func(ctx context.Context, client *x509.Certificate, namespace string) (bool, error)
	// streams and names have room for those of all clients; lines for what they add to the log.
	streams, names *semaphore.Weighted
	lines          *rate.Limiter
}

func newADS(store *Store, m *metrics, log logr.Logger) *adsServer {
	return &adsServer{store: store, metrics: m, log: log, streams: semaphore.NewWeighted(maxStreams),
		names: semaphore.NewWeighted(allNames), lines: rate.NewLimiter(linesPerSecond, lineBurst)}
}

// note logs what a client has done, unless clients do too much of it.
func (a *adsServer) note(message string, keysAndValues ...any) {
	if a.lines.Allow() {
		a.log.Info(message, keysAndValues...)
	}
}

// StreamAggregatedResources implements discoveryv3.AggregatedDiscoveryServiceServer.
func (a *adsServer) StreamAggregatedResources(server discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) (failed error) {
	if !a.streams.TryAcquire(1) {
		return status.Errorf(codes.ResourceExhausted, "this replica serves %d clients, and no more: run more replicas", maxStreams)
	}
	defer a.streams.Release(1)
	ctx := logr.NewContext(server.Context(), a.log)
	defer registry.Recover(ctx, &failed)
	a.metrics.streams.Inc()
	defer a.metrics.streams.Dec()
	changed := a.store.next()
	s := &stream{adsServer: a, ctx: server.Context(), send: server.Send, wants: map[string]*want{}, allowed: map[string]bool{}}
	defer s.forget()
	requests := receive(ctx, server)
	for {
		select {
		case <-server.Context().Done():
			return status.FromContextError(server.Context().Err()).Err()
		case <-changed:
			changed = a.store.next() // What changes from now on is pushed later.
			if err := s.push(typeAssignment); err != nil {
				return err
			}
		case next := <-requests:
			switch err := next.err; {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err // What the client sent cannot be decoded.
			}
			if err := s.take(next.request); err != nil {
				return err
			}
		}
	}
}

// received is a request, or why there are no more.
type received struct {
	request *discoveryv3.DiscoveryRequest
	err     error
}

// receive passes on requests until the stream ends.
func receive(ctx context.Context, server discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) <-chan received {
	requests := make(chan received)
	go func() {
		for {
			next := receiveOne(ctx, server)
			select {
			case requests <- next:
			case <-ctx.Done():
				return
			}
			if next.err != nil {
				return
			}
		}
	}()
	return requests
}

func receiveOne(ctx context.Context, server discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) (next received) {
	defer registry.Recover(ctx, &next.err)
	next.request, next.err = server.Recv()
	return next
}

// stream is one client's stream.
type stream struct {
	*adsServer
	ctx    context.Context
	send   func(*discoveryv3.DiscoveryResponse) error
	node   string
	nonces int
	// wants holds what the client requests, by type.
	wants map[string]*want
	// allowed are the namespaces that the client may read, as far as it has asked for them.
	allowed map[string]bool
}

// want is what a client requests of one type.
type want struct {
	names []string
	// sent holds the versions sent to the client, by name. It includes refused ones,
	// because the client would refuse them again.
	sent map[string]string
	// nonce is the nonce of the last answer.
	nonce string
}

// take processes a request, and answers it if there is something new.
func (s *stream) take(request *discoveryv3.DiscoveryRequest) error {
	if id := request.GetNode().GetId(); id != "" {
		s.node = registry.Excerpt(id)
	}
	typeURL := request.GetTypeUrl()
	if !slices.Contains([]string{typeListener, typeRoute, typeCluster, typeAssignment}, typeURL) {
		return nil // There is no such resource, so there is no answer.
	}
	if len(request.GetResourceNames()) > maxNames {
		return status.Errorf(codes.InvalidArgument, "a client may request at most %d names", maxNames)
	}
	w := s.wants[typeURL]
	if w == nil {
		// On a new stream the client gets everything, whatever another replica sent it
		// before: that replica's versions mean nothing here.
		w = &want{sent: map[string]string{}}
		s.wants[typeURL] = w
	}
	if w.nonce != "" && request.GetResponseNonce() != w.nonce {
		return nil // The client sent it before the last answer arrived, and repeats it with that answer's nonce.
	}
	if refusal := request.GetErrorDetail(); refusal != nil {
		s.metrics.refusals.Inc()
		s.note("A client refuses what it was sent, and goes on with what it had", "node", s.node,
			"type", typeURL, "says", registry.Excerpt(refusal.GetMessage()))
	}
	if err := s.rename(w, request.GetResourceNames()); err != nil {
		return err
	}
	return s.push(typeURL)
}

// rename records the requested names. A name that is dropped and requested again is
// sent again, because clients forget it in between. There is no answer for a name that the
// client may not read.
func (s *stream) rename(w *want, names []string) error {
	before := w.names
	if !s.names.TryAcquire(int64(len(names))) {
		return status.Errorf(codes.ResourceExhausted, "all clients of this replica together request more than %d names: run more replicas", allNames)
	}
	w.names = nil
	defer func() { s.names.Release(int64(len(names) + len(before) - len(w.names))) }()
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		wrong, err := s.wrong(name)
		switch {
		case err != nil:
			return status.Error(codes.Unavailable, err.Error())
		case wrong == "":
			w.names = append(w.names, name)
		case len(before) == 0:
			s.note("A client requests a name that it does not get: "+wrong, "node", s.node, "name", registry.Excerpt(name))
		}
	}
	for name := range w.sent {
		if _, asked := slices.BinarySearch(w.names, name); !asked {
			delete(w.sent, name)
		}
	}
	return nil
}

// forget makes room for the names of others, when the stream ends.
func (s *stream) forget() {
	for _, w := range s.wants {
		s.names.Release(int64(len(w.names)))
	}
}

// wrong says why the client does not get a name; empty if it does.
func (s *stream) wrong(name string) (string, error) {
	service, namespace, _ := strings.Cut(name, ".")
	if len(validation.IsDNS1123Label(service))+len(validation.IsDNS1123Label(namespace)) > 0 {
		return "no service can have it, use <service>.<namespace>", nil
	}
	if s.mayRead == nil || s.allowed[namespace] {
		return "", nil
	}
	client := certificateOf(s.ctx)
	if client == nil {
		return "it shows no certificate", nil
	}
	allowed, err := s.mayRead(s.ctx, client, namespace)
	if err != nil || !allowed {
		return fmt.Sprintf("%s may not get endpointslices.discovery.k8s.io in namespace %s", client.Subject, namespace), err
	}
	s.allowed[namespace] = true
	return "", nil
}

// certificateOf is the certificate of a stream's client; nil if it has shown none.
func certificateOf(ctx context.Context) *x509.Certificate {
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	secured, ok := caller.AuthInfo.(credentials.TLSInfo)
	if !ok || len(secured.State.PeerCertificates) == 0 {
		return nil
	}
	return secured.State.PeerCertificates[0]
}

// push sends everything that the client requests of a type, if any of it differs from
// what was sent.
func (s *stream) push(typeURL string) error {
	w := s.wants[typeURL]
	if w == nil {
		return nil
	}
	response := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, ControlPlane: &corev3.ControlPlane{Identifier: "usher"}}
	var versions strings.Builder
	changed := false
	for _, name := range w.names {
		r, err := s.resource(typeURL, name)
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		changed = changed || w.sent[name] != r.version
		w.sent[name] = r.version
		versions.WriteString(name + "\x00" + r.version + "\x00")
		response.Resources = append(response.Resources, r.data)
	}
	if !changed {
		return nil
	}
	s.nonces++
	w.nonce = strconv.Itoa(s.nonces)
	response.Nonce, response.VersionInfo = w.nonce, registry.Digest([]byte(versions.String()))
	s.metrics.responses.Inc()
	return s.send(response)
}

func (s *stream) resource(typeURL, name string) (resource, error) {
	if typeURL == typeAssignment {
		return s.store.assignment(name)
	}
	return fixed(typeURL, name)
}
