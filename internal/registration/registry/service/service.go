// SPDX-License-Identifier: Apache-2.0

// Package service reads which Pods a Kubernetes Service with a selector lists as ready.
//
// Nothing is written there. Kubernetes lists the Pods that the Service selects, and does so
// as ready while they are Ready. Usher turns the Pods' readiness gate usher.dev/registered
// instead: the kubelet answers with the condition Ready, the EndpointSlice controller answers
// that, and List shows when it has.
package service

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
)

// FromSpec says how the kind's field of a Registry is to be carried out for Registrations of a
// namespace. reader reads from the API server, not from a cache: a cache could show a Pod as not
// ready that is ready again.
func FromSpec(reader client.Reader, namespace string) func(*usherv1alpha1.ServiceRegistry) *registry.Settings {
	return func(*usherv1alpha1.ServiceRegistry) *registry.Settings {
		return &registry.Settings{
			Root: namespace,
			Connect: func(root string, _ map[string][]byte) (registry.Connector, error) {
				return New(reader, root), nil
			},
		}
	}
}

// Registry implements registry.Connector. Ping and Close are those of the EndpointSlices.
type Registry struct {
	*endpointslice.Registry
	reader    client.Reader
	namespace string
}

// New returns a connector for the Services of a namespace. Without a namespace only Ping
// works.
func New(reader client.Reader, namespace string) *Registry {
	slices := endpointslice.New(endpointslice.Options{Reader: reader, Namespace: namespace})
	return &Registry{Registry: slices, reader: reader, namespace: namespace}
}

// List implements registry.Connector. Every endpoint of a Pod is an entry that belongs to the
// Pod, of weight 0 if it is not ready. The read is consistent.
func (r *Registry) List(ctx context.Context, name string) ([]registry.Entry, error) {
	_, entries, err := r.Choose(ctx, name)
	return entries, err
}

// Choose implements registry.Selecting.
func (r *Registry) Choose(ctx context.Context, name string) (map[string]string, []registry.Entry, error) {
	var object corev1.Service
	err := r.reader.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: name}, &object)
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("there is no Service %s in namespace %s: create it, or correct spec.instance.service", name, r.namespace)
		return nil, nil, registry.NoService(registry.Permanent(err))
	}
	if err != nil {
		return nil, nil, endpointslice.Typed(ctx, err)
	}
	if why := unusable(&object); why != "" {
		return nil, nil, registry.OneService(registry.Permanent(fmt.Errorf("Service %s %s", name, why))) //nolint:staticcheck // A kind.
	}
	var list discoveryv1.EndpointSliceList
	err = r.reader.List(ctx, &list, client.InNamespace(r.namespace), client.MatchingLabels{discoveryv1.LabelServiceName: name})
	if err != nil {
		return nil, nil, endpointslice.Typed(ctx, err)
	}
	all := []registry.Entry{}
	for i := range list.Items {
		for n := range list.Items[i].Endpoints {
			all = append(all, entry(&list.Items[i], n))
		}
	}
	registry.Sort(all)
	return object.Spec.Selector, all, nil
}

// unusable is why the readiness of Pods does not decide whether the Service lists them; empty
// if it does.
func unusable(object *corev1.Service) string {
	switch {
	case object.Spec.Type == corev1.ServiceTypeExternalName:
		return "is of the type ExternalName, and lists no Pods: name the Service that selects the Pods in spec.instance.service"
	case len(object.Spec.Selector) == 0:
		return "has no selector, so Kubernetes does not list Pods for it: set its spec.selector, or use a Registry of the kind endpointSlice"
	case object.Spec.PublishNotReadyAddresses:
		return "has publishNotReadyAddresses, so callers get Pods that are not ready, and no drain can end: set it to false"
	}
	return ""
}

// entry is an endpoint of a slice. A missing condition means ready, as the API says.
func entry(s *discoveryv1.EndpointSlice, n int) registry.Entry {
	endpoint := &s.Endpoints[n]
	e := registry.Entry{ID: fmt.Sprintf("%s.%d", s.Name, n), NoMetadata: true, Version: "not ready"}
	if ptr.Deref(endpoint.Conditions.Ready, true) {
		e.Weight, e.Version = 1, "ready"
	}
	if len(endpoint.Addresses) > 0 {
		e.Address = endpoint.Addresses[0]
	}
	if len(s.Ports) > 0 && s.Ports[0].Port != nil {
		e.Port = *s.Ports[0].Port
	}
	if ref := endpoint.TargetRef; ref != nil && ref.Kind == "Pod" {
		e.Owner = registry.Owner{Namespace: ref.Namespace, Pod: ref.Name, PodUID: string(ref.UID)}
	}
	return e
}

// Apply implements registry.Connector. Nobody writes here.
func (r *Registry) Apply(_ context.Context, name string, changes []registry.Change) error {
	if len(changes) == 0 {
		return nil
	}
	return registry.Permanent(fmt.Errorf("only Kubernetes writes the EndpointSlices of Service %s", name))
}
