// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

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

// fixed makes a resource of any type except endpoints. It follows from the name alone,
// so a client can ask for a service before it has an instance.
func fixed(typeURL, name string) (resource, error) {
	switch typeURL {
	case typeListener:
		return listener(name)
	case typeRoute:
		return encode(route(name))
	default:
		return encode(cluster(name))
	}
}

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

func listener(name string) (resource, error) {
	router, err := encode(&routerv3.Router{})
	if err != nil {
		return resource{}, err
	}
	manager, err := encode(&managerv3.HttpConnectionManager{
		RouteSpecifier: &managerv3.HttpConnectionManager_Rds{
			Rds: &managerv3.Rds{RouteConfigName: name, ConfigSource: ads()},
		},
		HttpFilters: []*managerv3.HttpFilter{{
			Name:       "router",
			ConfigType: &managerv3.HttpFilter_TypedConfig{TypedConfig: router.data},
		}},
	})
	if err != nil {
		return resource{}, err
	}
	return encode(&listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: manager.data}})
}

func route(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{{
		Name: name, Domains: []string{"*"},
		Routes: []*routev3.Route{{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: ""}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: name},
			}},
		}},
	}}}
}

func cluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads(), ServiceName: name},
		LbPolicy:             clusterv3.Cluster_ROUND_ROBIN,
	}
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
	locality := &endpointv3.LocalityLbEndpoints{Locality: &corev3.Locality{}, LoadBalancingWeight: wrapperspb.UInt32(1)}
	for _, e := range endpoints {
		locality.LbEndpoints = append(locality.LbEndpoints, lbEndpoint(e))
	}
	made.Endpoints = []*endpointv3.LocalityLbEndpoints{locality}
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
