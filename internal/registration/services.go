// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/source"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/kinds"
)

// BuiltIn is the name of the Registry of the kind service that Usher makes.
const BuiltIn = "service"

// services are the sources of events about Services and their EndpointSlices. A pass reads
// those that it needs from the API server, so the events' objects are names and labels only.
// They have a cache of their own: the manager's may select other slices.
func (r *Reconciler) services(mgr ctrl.Manager) ([]source.Source, error) {
	names, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), DefaultTransform: onlyService,
	})
	if err != nil {
		return nil, fmt.Errorf("make the cache of Services: %w", err)
	}
	if err := mgr.Add(names); err != nil {
		return nil, fmt.Errorf("start the cache of Services: %w", err)
	}
	return []source.Source{
		source.Kind[client.Object](names, metadataOf(corev1.SchemeGroupVersion.WithKind("Service")), r.ofService(client.Object.GetName)),
		source.Kind[client.Object](names, metadataOf(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice")), r.ofService(serviceOf)),
	}, nil
}

func metadataOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}

// serviceOf is the Service of an EndpointSlice.
func serviceOf(slice client.Object) string { return slice.GetLabels()[discoveryv1.LabelServiceName] }

// onlyService strips what nothing reads.
func onlyService(object any) (any, error) {
	if full, ok := object.(*metav1.PartialObjectMetadata); ok {
		kept := metav1.ObjectMeta{Namespace: full.Namespace, Name: full.Name, UID: full.UID, ResourceVersion: full.ResourceVersion}
		if service := serviceOf(full); service != "" {
			kept.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		}
		full.ObjectMeta = kept
	}
	return object, nil
}

// ofService lets through what concerns a Service that a Registration of its namespace follows.
func (r *Reconciler) ofService(name func(client.Object) string) handler.EventHandler {
	return each(func(ctx context.Context, object client.Object, q queue) {
		namespace, service := object.GetNamespace(), name(object)
		gated := sync.OnceValue(func() map[string]bool { return r.gated(ctx) })
		if r.concerns(ctx, namespace, func(registration *usherv1alpha1.Registration) bool {
			return registration.Spec.Instance.Service == service &&
				slices.ContainsFunc(registration.Spec.Registries, func(name string) bool { return gated()[name] })
		}) {
			r.gather(q, namespace)
		}
	})
}

// gated has the names of the Registries of the kind service. One that appears causes a pass itself.
func (r *Reconciler) gated(ctx context.Context) map[string]bool {
	objects, err := r.registries(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot list Registries: the next repair follows")
	}
	names := map[string]bool{}
	for _, object := range objects {
		names[object.Name] = isGated(object)
	}
	return names
}

// isGated reports whether the Registry is of the kind service.
func isGated(object *usherv1alpha1.Registry) bool {
	kind, _ := kinds.Of(object, "")
	return kind.Gated
}

// makeBuiltIn makes the Registry of the kind service once in the life of a process, unless
// there is one of that kind, whatever its name.
func (r *Reconciler) makeBuiltIn(ctx context.Context) error {
	if r.builtIn {
		return nil
	}
	objects, err := r.registries(ctx)
	if err != nil {
		return err
	}
	if r.builtIn = slices.ContainsFunc(objects, isGated); r.builtIn {
		return nil
	}
	made := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: BuiltIn}}
	made.Spec.Service = &usherv1alpha1.ServiceRegistry{}
	switch err = r.client.Create(ctx, made); {
	case apierrors.IsAlreadyExists(err):
		log.FromContext(ctx).Info("A Registry of another kind has the name of the built-in one: make one of the kind service yourself", keyRegistry, BuiltIn)
	case err != nil:
		return fmt.Errorf("make the built-in Registry %s: %w", BuiltIn, err)
	}
	r.builtIn = true
	return nil
}
