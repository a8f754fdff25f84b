// SPDX-License-Identifier: Apache-2.0

// Package xds serves entries to xDS clients such as gRPC. Usher itself is their server.
//
// Entries are kept in EndpointSlices. Nothing in Kubernetes follows them, because they
// have a label of Usher's instead of Kubernetes' own. So every replica serves the same
// state, and a new replica knows all of it before it answers anyone.
package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
)

// LabelService is the label that names the service of a slice.
const LabelService = "usher.dev/xds-service"

// FromSpec says how the kind's field of a Registry is to be carried out for Registrations of a
// namespace. store is what this process serves, nil if it serves nothing.
func FromSpec(reader client.Reader, writer client.Writer, store *Store, namespace string) func(*usherv1alpha1.XDSRegistry) *registry.Settings {
	return func(s *usherv1alpha1.XDSRegistry) *registry.Settings {
		root := cmp.Or(s.Namespace, namespace)
		return &registry.Settings{
			Root: root, Own: root == namespace,
			Connect: func(root string, _ map[string][]byte) (registry.Connector, error) {
				return store.Connector(endpointslice.Options{Reader: reader, Writer: writer, Namespace: root})
			},
		}
	}
}

// Connector returns a connector. A List returns once this process serves what the API server
// has. Clients of other replicas are updated when those replicas receive the change. Clients
// ask for <service>.<namespace>. Errors are permanent.
func (s *Store) Connector(options endpointslice.Options) (registry.Connector, error) {
	if s == nil {
		return nil, registry.Permanent(errors.New("no xDS server runs: start usher with --xds-bind-address"))
	}
	options.ServiceLabel, options.AwaitServed = LabelService, s.awaitServed
	return endpointslice.New(options), nil
}

// nameOf returns the name that clients ask for.
func nameOf(namespace, service string) string { return service + "." + namespace }

// Store is the served state. An informer fills it; everything in it is also in the API
// server.
type Store struct {
	mu    sync.Mutex
	parts map[types.NamespacedName]part
	// newest is the highest version received, empty for none.
	newest string
	// encoded holds the assignments requested since they last changed.
	encoded map[string]resource
	// changed is closed at the next change.
	changed chan struct{}
}

// part is one slice's part of a service.
type part struct {
	// service is the name that clients ask for, version the slice's last received one.
	service, version string
	endpoints        []endpoint
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{parts: map[types.NamespacedName]part{}, encoded: map[string]resource{}, changed: make(chan struct{})}
}

// handler follows an informer of EndpointSlices.
func (s *Store) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { s.handle(object, false) },
		UpdateFunc: func(_, object any) { s.handle(object, false) },
		DeleteFunc: func(object any) { s.handle(object, true) },
	}
}

// handle processes a watch event.
func (s *Store) handle(object any, gone bool) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if newer, err := later(slice.ResourceVersion, s.newest); err != nil || newer {
		s.newest = slice.ResourceVersion
	}
	key := client.ObjectKeyFromObject(slice)
	delete(s.encoded, s.parts[key].service)
	delete(s.parts, key)
	if service := slice.Labels[LabelService]; service != "" && !gone {
		name := nameOf(slice.Namespace, service)
		s.parts[key] = part{service: name, version: slice.ResourceVersion, endpoints: endpoints(slice)}
		delete(s.encoded, name)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// next returns a channel that is closed at the next change.
func (s *Store) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// assignment returns the service for clients, without endpoints if the service is
// unknown.
func (s *Store) assignment(name string) (resource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if have, ok := s.encoded[name]; ok {
		return have, nil
	}
	found, known := s.merged(name)
	made, err := encode(assignment(name, found))
	// Names requested by mistake are not remembered.
	if err == nil && known {
		s.encoded[name] = made
	}
	return made, err
}

// endpoints returns the slice's endpoints that clients may know.
func endpoints(slice *discoveryv1.EndpointSlice) []endpoint {
	var all []endpoint
	for _, e := range endpointslice.Endpoints(slice) {
		if health, served := healthOf(e.Conditions); served {
			all = append(all, endpoint{Entry: e.Entry, health: health})
		}
	}
	return all
}

// merged returns the endpoints of a service, sorted, with each address once. Clients
// refuse a duplicate address, and an entry that moves is briefly in two slices. The
// endpoint in service wins.
func (s *Store) merged(service string) (all []endpoint, known bool) {
	for _, p := range s.parts {
		if p.service == service {
			all, known = append(all, p.endpoints...), true
		}
	}
	slices.SortFunc(all, compareEndpoints)
	return slices.CompactFunc(all, func(a, b endpoint) bool { return a.Address == b.Address && a.Port == b.Port }), known
}

// awaitServed returns when the served state is as new as a list of the service's slices.
func (s *Store) awaitServed(ctx context.Context, namespace, service string, list *discoveryv1.EndpointSliceList) error {
	for {
		changed := s.next()
		missing, err := s.missing(nameOf(namespace, service), list)
		if err != nil || missing == "" {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("the xDS server of this replica does not serve the change of EndpointSlice %s yet: %w",
				missing, context.Cause(ctx))
		}
	}
}

// missing names a slice whose change has not been received, or is empty. Changes arrive
// in the order of their versions.
func (s *Store) missing(name string, list *discoveryv1.EndpointSliceList) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	listed := make(map[types.NamespacedName]bool, len(list.Items))
	for i := range list.Items {
		slice := &list.Items[i]
		listed[client.ObjectKeyFromObject(slice)] = true
		if newer, err := later(slice.ResourceVersion, s.newest); err != nil || newer {
			return slice.Name, err
		}
	}
	for key, p := range s.parts {
		if p.service != name || listed[key] {
			continue
		}
		// The slice was created after the list, or its deletion has not been received
		// yet.
		if after, err := later(p.version, list.ResourceVersion); err != nil || !after {
			return key.Name, err
		}
	}
	return "", nil
}

// later reports whether a is a later version than b, which may be empty.
func later(a, b string) (bool, error) {
	if b == "" {
		return true, nil
	}
	order, err := resourceversion.CompareResourceVersion(a, b)
	return order > 0, err
}

func compareEndpoints(a, b endpoint) int {
	return cmp.Or(strings.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.health, b.health), // HEALTHY sorts before DRAINING.
		strings.Compare(a.ID, b.ID))
}
