// SPDX-License-Identifier: Apache-2.0

// Package endpointslice keeps entries in EndpointSlices (discovery.k8s.io/v1) of
// a Service without a selector, for kube-proxy, DNS, gateways and whoever else
// finds the Service's endpoints.
//
// The slices carry the label endpointslice.kubernetes.io/managed-by: usher.dev,
// so that no controller of Kubernetes touches them. Endpoints have no room for
// an owner, a weight or metadata: those are in an annotation of the slice, where
// callers do not look. Kubernetes sends requests to an endpoint that is terminating
// where a Service has no other, so that an entry can be held back from other
// followers alone (Options.Holds).
package endpointslice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// Manager is the value of the label endpointslice.kubernetes.io/managed-by.
	Manager = "usher.dev"
	// AnnotationEntries says whose the endpoints of a slice are, as JSON.
	AnnotationEntries = "usher.dev/entries"
	// MetaPortName is the key of an entry's metadata for the name of the slice's
	// port. It has to be that of the Service's port: none if the key is absent.
	MetaPortName = "portName"
	// MetaAppProtocol is the key for the port's application protocol.
	MetaAppProtocol = "appProtocol"
)

// Options say where slices are kept.
type Options struct {
	// Reader reads from the API server, past any cache.
	Reader client.Reader
	// Writer writes to it.
	Writer client.Writer
	// Namespace is that of the slices and of their Services. Empty allows Ping
	// alone.
	Namespace string
	// ServiceLabel is the label that names a slice's service, Kubernetes' own if
	// empty. With another one nobody in Kubernetes follows the slices.
	ServiceLabel string
	// Holds says that those who follow the slices give an endpoint nothing new that
	// is terminating, even if there is no other: one of weight 0 is written as such.
	Holds bool
	// Heard returns when the slices that callers know are as new as the list, or
	// the error that says why they are not; nil where callers follow the API
	// server themselves.
	Heard func(ctx context.Context, namespace, service string, list *discoveryv1.EndpointSliceList) error
}

// FromSpec returns what reads the kind's field of a Registry; what it is given is
// for Options.
func FromSpec(reader client.Reader, writer client.Writer) func(*usherv1alpha1.RegistrySpec, string) *registry.Settings {
	return func(spec *usherv1alpha1.RegistrySpec, namespace string) *registry.Settings {
		s := spec.EndpointSlice
		if s == nil {
			return nil
		}
		return &registry.Settings{
			Root: cmp.Or(s.Namespace, namespace),
			Connect: func(root string, _ map[string][]byte) (registry.Connector, error) {
				return New(Options{Reader: reader, Writer: writer, Namespace: root})
			},
		}
	}
}

// Registry implements registry.Connector.
type Registry struct {
	reader    client.Reader
	writer    client.Writer
	namespace string
	label     string
	holds     bool
	heard     func(context.Context, string, string, *discoveryv1.EndpointSliceList) error
}

var _ registry.Connector = (*Registry)(nil)

// New returns a connector. Errors are permanent.
func New(options Options) (*Registry, error) {
	if options.Reader == nil || options.Writer == nil {
		return nil, registry.Permanent(errors.New("endpointSlice needs a client of the cluster's API server"))
	}
	return &Registry{
		reader: options.Reader, writer: options.Writer, namespace: options.Namespace,
		label: cmp.Or(options.ServiceLabel, discoveryv1.LabelServiceName), holds: options.Holds,
		heard: options.Heard,
	}, nil
}

// Ping implements registry.Connector. Without a namespace it asks for any slice
// of the cluster.
func (r *Registry) Ping(ctx context.Context) error {
	var list discoveryv1.EndpointSliceList
	return typed(ctx, r.reader.List(ctx, &list, client.InNamespace(r.namespace), client.Limit(1)))
}

// List implements registry.Connector. The read is consistent. An endpoint that
// is not ready, so that callers do not use it, has the weight 0; so has one that
// is in two slices, as a crash in the middle of a move leaves it. Endpoints that
// Usher did not write are named <slice>.<number>.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	list, err := r.slices(ctx, service)
	if err != nil {
		return nil, err
	}
	if r.heard != nil {
		if err := r.heard(ctx, r.namespace, service, list); err != nil {
			return nil, typed(ctx, err)
		}
	}
	return r.layout(service, list).entries(), nil
}

func (r *Registry) layout(service string, list *discoveryv1.EndpointSliceList) *layout {
	return newLayout(discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.namespace, GenerateName: service + "-usher-",
		Labels: map[string]string{r.label: service, discoveryv1.LabelManagedBy: Manager},
	}}, list.Items)
}

// Close implements registry.Connector. The client is not the connector's own.
func (r *Registry) Close() error { return nil }

// slices are those of the service.
func (r *Registry) slices(ctx context.Context, service string) (*discoveryv1.EndpointSliceList, error) {
	if why := validation.IsDNS1123Label(service); len(why) > 0 || r.namespace == "" {
		return nil, registry.Permanent(fmt.Errorf(
			"service %q in namespace %q is none of Kubernetes: set instance.service to the name of a Service", service, r.namespace))
	}
	var list discoveryv1.EndpointSliceList
	err := r.reader.List(ctx, &list, client.InNamespace(r.namespace),
		client.MatchingLabels{r.label: service})
	if err != nil {
		return nil, typed(ctx, err)
	}
	return &list, nil
}

// typed marks an error of the API server. What is not known to be permanent is
// transient: trying again later is the safer mistake.
func typed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return registry.Transient(err)
	}
	switch status.Status().Code {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
		http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return registry.Permanent(err)
	}
	return registry.Transient(err)
}
