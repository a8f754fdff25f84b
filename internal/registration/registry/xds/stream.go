// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/go-logr/logr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// maxNames limits the services that one client requests.
const maxNames = 10000

// adsServer implements the service that clients call. Each client requests names in one
// stream, and accepts or refuses each answer.
type adsServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	store   *Store
	metrics *metrics
	log     logr.Logger
}

// StreamAggregatedResources implements discoveryv3.AggregatedDiscoveryServiceServer.
func (a *adsServer) StreamAggregatedResources(
	server discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	a.metrics.streams.Inc()
	defer a.metrics.streams.Dec()
	changed, stop := a.store.watch()
	defer stop()
	s := &stream{adsServer: a, send: server.Send, wants: map[string]*want{}}
	requests := receive(server)
	for {
		select {
		case <-server.Context().Done():
			return status.FromContextError(server.Context().Err()).Err()
		case <-changed:
			if err := s.push(typeAssignment); err != nil {
				return err
			}
		case request, more := <-requests:
			if !more {
				return nil
			}
			if err := s.take(request); err != nil {
				return err
			}
		}
	}
}

// receive passes on requests until the stream ends.
func receive(server discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) <-chan *discoveryv3.DiscoveryRequest {
	requests := make(chan *discoveryv3.DiscoveryRequest)
	go func() {
		defer close(requests)
		for {
			request, err := server.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- request:
			case <-server.Context().Done():
				return
			}
		}
	}()
	return requests
}

// stream is one client's stream.
type stream struct {
	*adsServer
	send   func(*discoveryv3.DiscoveryResponse) error
	node   string
	nonces int
	// wants holds what the client requests, by type.
	wants map[string]*want
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
		s.log.Info("A client refuses what it was sent, and goes on with what it had", "node", s.node,
			"type", typeURL, "says", registry.Excerpt(refusal.GetMessage()))
	}
	s.rename(w, request.GetResourceNames())
	return s.push(typeURL)
}

// rename records the requested names. A name that is dropped and requested again is
// sent again, because clients forget it in between.
func (s *stream) rename(w *want, names []string) {
	before := w.names
	w.names = nil
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		switch {
		case validName(name):
			w.names = append(w.names, name)
		case len(before) == 0:
			s.log.Info("A client requests a name that no service can have: use <service>.<namespace>",
				"node", s.node, "name", registry.Excerpt(name))
		}
	}
	for name := range w.sent {
		if _, asked := slices.BinarySearch(w.names, name); !asked {
			delete(w.sent, name)
		}
	}
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
