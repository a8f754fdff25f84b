// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	// The types of templates.json.
	_ "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Resource types, as requests name them.
const (
	typeListener   = "type.googleapis.com/envoy.config.listener.v3.Listener"
	typeRoute      = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	typeCluster    = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	typeAssignment = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

const (
	// maxWeight is the maximum of spec.instance.weight. Clients refuse a service whose
	// weights add up to more than 32 bits.
	maxWeight = 65535
	// lbMetadata is where Envoy and gRPC's ring hash look for metadata.
	lbMetadata = "envoy.lb"
)

// resource is what clients receive, with its digest.
type resource struct {
	data    *anypb.Any
	version string
}

func encode(message proto.Message) (resource, error) {
	data := &anypb.Any{}
	// The same state must always encode the same, or clients would get needless
	// updates.
	if err := anypb.MarshalFrom(data, message, proto.MarshalOptions{Deterministic: true}); err != nil {
		return resource{}, fmt.Errorf("encode %s: %w", message.ProtoReflect().Descriptor().Name(), err)
	}
	return resource{data: data, version: registry.Digest(data.Value)}, nil
}

// endpoint is an entry that clients may know.
type endpoint struct {
	registry.Entry
	health corev3.HealthStatus
}

// healthOf converts conditions. An absent condition is true, except for terminating. An
// endpoint that is neither in service nor terminating is not served.
func healthOf(c discoveryv1.EndpointConditions) (health corev3.HealthStatus, served bool) {
	switch {
	case ptr.Deref(c.Ready, true):
		return corev3.HealthStatus_HEALTHY, true
	case ptr.Deref(c.Serving, true) && ptr.Deref(c.Terminating, false):
		return corev3.HealthStatus_DRAINING, true
	}
	return corev3.HealthStatus_UNKNOWN, false
}

// assignment puts all endpoints into one locality, because Usher knows no zones.
// Without endpoints there is no locality.
func assignment(name string, endpoints []endpoint) *endpointv3.ClusterLoadAssignment {
	made := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	if len(endpoints) == 0 {
		return made
	}
	// gRPC skips localities without a weight, and refuses those without a name.
	made.Endpoints = []*endpointv3.LocalityLbEndpoints{{
		Locality: &corev3.Locality{}, LoadBalancingWeight: wrapperspb.UInt32(1), LbEndpoints: list.Map(endpoints, lbEndpoint),
	}}
	return made
}

func lbEndpoint(e endpoint) *endpointv3.LbEndpoint {
	made := &endpointv3.LbEndpoint{
		HealthStatus:        e.health,
		LoadBalancingWeight: wrapperspb.UInt32(uint32(min(max(e.Weight, 1), maxWeight))),
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address:       e.Address,
				PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(e.Port)},
			}}},
		}},
	}
	if len(e.Metadata) == 0 {
		return made
	}
	fields := make(map[string]*structpb.Value, len(e.Metadata))
	for key, value := range e.Metadata {
		fields[key] = structpb.NewStringValue(value)
	}
	made.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{lbMetadata: {Fields: fields}}}
	return made
}

// templates are the resources of each service except its endpoints, by type, for a service
// that is called NAME.
//
//go:embed templates.json
var templates []byte

var templateOf = sync.OnceValues(func() (byType map[string]json.RawMessage, err error) {
	return byType, json.Unmarshal(templates, &byType)
})

// fixed makes a resource of any type except endpoints. It follows from the name alone,
// so a client can ask for a service before it has an instance.
func fixed(typeURL, name string) (resource, error) {
	byType, err := templateOf()
	if err != nil {
		return resource{}, fmt.Errorf("read the templates: %w", err)
	}
	data := &anypb.Any{}
	if err := protojson.Unmarshal(bytes.ReplaceAll(byType[typeURL], []byte("NAME"), []byte(name)), data); err != nil {
		return resource{}, fmt.Errorf("encode %s of %s: %w", typeURL, name, err)
	}
	return resource{data: data, version: registry.Digest(data.Value)}, nil
}
