// SPDX-License-Identifier: Apache-2.0

// Package xds serves entries to clients that speak xDS, as gRPC does: Usher
// itself is the server that they ask.
//
// Entries are kept in EndpointSlices, which nobody in Kubernetes follows since
// they carry a label of Usher's own instead of Kubernetes'. So every replica
// serves the same, and one that starts knows all before it answers anybody.
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
	// Reader reads from the API server, past any cache.
	Reader client.Reader
	// Writer writes to it.
	Writer client.Writer
	// Namespace is that of the slices; clients ask for <service>.<namespace>.
	// Empty allows Ping alone.
	Namespace string
	// Store is what this process serves.
	Store *Store
}

// FromSpec returns what reads the kind's field of a Registry; what it is given is
// for Options.
func FromSpec(reader client.Reader, writer client.Writer, store *Store) func(*usherv1alpha1.RegistrySpec, string) *registry.Settings {
	return func(spec *usherv1alpha1.RegistrySpec, namespace string) *registry.Settings {
		s := spec.XDS
		if s == nil {
			return nil
		}
		return &registry.Settings{
			Root: cmp.Or(s.Namespace, namespace),
			Connect: func(root string, _ map[string][]byte) (registry.Connector, error) {
				return New(Options{Reader: reader, Writer: writer, Namespace: root, Store: store})
			},
		}
	}
}

// New returns a connector. A List returns when this process serves what the API
// server has; the clients of other replicas are told as soon as those hear of
// it. Errors are permanent.
func New(options Options) (registry.Connector, error) {
	if options.Store == nil {
		return nil, registry.Permanent(errors.New("nobody serves xDS: start usher with --xds-bind-address"))
	}
	return endpointslice.New(endpointslice.Options{
		Reader: options.Reader, Writer: options.Writer, Namespace: options.Namespace,
		ServiceLabel: LabelService, Holds: true, Heard: options.Store.heard,
	})
}

// nameOf is what clients ask for.
func nameOf(namespace, service string) string { return service + "." + namespace }

// validName says whether a service can have the name.
func validName(name string) bool {
	service, namespace, two := strings.Cut(name, ".")
	return two && len(validation.IsDNS1123Label(service)) == 0 && len(validation.IsDNS1123Label(namespace)) == 0
}
