// SPDX-License-Identifier: Apache-2.0

// Package xds serves entries to xDS clients such as gRPC. Usher itself is their server.
//
// Entries are kept in EndpointSlices. Nothing in Kubernetes follows them, because they
// have a label of Usher's instead of Kubernetes' own. So every replica serves the same
// state, and a new replica knows all of it before it answers anyone.
package xds

import (
	"cmp"
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
)

// LabelService is the label that names the service of a slice.
const LabelService = "usher.dev/xds-service"

// Options say where entries are kept.
type Options struct {
	// Reader reads from the API server, not from a cache.
	Reader client.Reader
	// Writer writes to the API server.
	Writer client.Writer
	// Namespace is the namespace of the slices. Clients ask for <service>.<namespace>.
	// If empty, only Ping works.
	Namespace string
	// Store is what this process serves.
	Store *Store
}

// FromSpec returns the function that reads the kind's field from a Registry's spec. Its
// arguments become Options.
func FromSpec(reader client.Reader, writer client.Writer, store *Store) func(*usherv1alpha1.RegistrySpec, string) *registry.Settings {
	return func(spec *usherv1alpha1.RegistrySpec, namespace string) *registry.Settings {
		s := spec.XDS
		if s == nil {
			return nil
		}
		root := cmp.Or(s.Namespace, namespace)
		return &registry.Settings{
			Root: root, Own: root == namespace,
			Connect: func(root string, _ map[string][]byte) (registry.Connector, error) {
				return New(Options{Reader: reader, Writer: writer, Namespace: root, Store: store})
			},
		}
	}
}

// New returns a connector. A List returns once this process serves what the API server
// has. Clients of other replicas are updated when those replicas receive the change.
// Errors are permanent.
func New(options Options) (registry.Connector, error) {
	if options.Store == nil {
		return nil, registry.Permanent(errors.New("no xDS server runs: start usher with --xds-bind-address"))
	}
	return endpointslice.New(endpointslice.Options{
		Reader: options.Reader, Writer: options.Writer, Namespace: options.Namespace,
		ServiceLabel: LabelService, AwaitServed: options.Store.awaitServed,
	})
}

// nameOf returns the name that clients ask for.
func nameOf(namespace, service string) string { return service + "." + namespace }

// validName reports whether a service can have the name.
func validName(name string) bool {
	service, namespace, two := strings.Cut(name, ".")
	return two && len(validation.IsDNS1123Label(service)) == 0 && len(validation.IsDNS1123Label(namespace)) == 0
}
