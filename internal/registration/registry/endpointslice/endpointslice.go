// SPDX-License-Identifier: Apache-2.0

// Package endpointslice keeps entries in the EndpointSlices (discovery.k8s.io/v1) of a
// Service without a selector, for kube-proxy, DNS, gateways and every other consumer of
// the Service's endpoints.
//
// The slices have the label endpointslice.kubernetes.io/managed-by: usher.dev, so that
// no Kubernetes controller touches them. Endpoints have no fields for an owner, a
// weight or metadata, so an annotation of the slice holds them, where callers do not
// look. If a Service has no other endpoint, Kubernetes sends requests to a terminating
// one. Therefore an entry of weight 0, which is written as terminating, is held back only
// from other consumers (package xds).
package endpointslice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

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
	// AnnotationEntries holds the owners of a slice's endpoints, as JSON.
	AnnotationEntries = "usher.dev/entries"
	// MetaPortName is the metadata key for the name of the slice's port. It must equal
	// the name of the Service's port; without the key the port has no name.
	MetaPortName = "portName"
	// MetaAppProtocol is the metadata key for the port's application protocol.
	MetaAppProtocol = "appProtocol"
)

// Options say where slices are kept.
type Options struct {
	// Reader reads from the API server, not from a cache.
	Reader client.Reader
	// Writer writes to the API server.
	Writer client.Writer
	// Namespace is the namespace of the slices and their Services. If empty, only Ping
	// works.
	Namespace string
	// ServiceLabel is the label that names a slice's service. Default: Kubernetes' own
	// label. With another label, no Kubernetes component follows the slices.
	ServiceLabel string
	// AwaitServed returns when the slices that callers know are as new as the list, or an
	// error that tells why they are not. It is nil if callers follow the API server
	// themselves.
	AwaitServed func(ctx context.Context, namespace, service string, list *discoveryv1.EndpointSliceList) error
}

// FromSpec says how the kind's field of a Registry is to be carried out for Registrations of a
// namespace. The clients become Options.
func FromSpec(reader client.Reader, writer client.Writer, namespace string) func(*usherv1alpha1.EndpointSliceRegistry) *registry.Settings {
	return func(s *usherv1alpha1.EndpointSliceRegistry) *registry.Settings {
		root := cmp.Or(s.Namespace, namespace)
		return &registry.Settings{
			Root: root, Own: root == namespace,
			Connect: func(root string, _ map[string][]byte) (registry.Connector, error) {
				return New(Options{Reader: reader, Writer: writer, Namespace: root}), nil
			},
		}
	}
}

// Registry implements registry.Connector.
type Registry struct{ options Options }

// New returns a connector.
func New(options Options) *Registry {
	options.ServiceLabel = cmp.Or(options.ServiceLabel, discoveryv1.LabelServiceName)
	return &Registry{options}
}

// Ping implements registry.Connector. Without a namespace it asks for any slice in the
// cluster.
func (r *Registry) Ping(ctx context.Context) error {
	var list discoveryv1.EndpointSliceList
	return Typed(ctx, r.options.Reader.List(ctx, &list, client.InNamespace(r.options.Namespace), client.Limit(1)))
}

// List implements registry.Connector. The read is consistent. An endpoint that is not
// ready has the weight 0, because callers do not use it. So does an endpoint in two
// slices, which a crash during a move can leave. Endpoints that Usher did not write are
// named <slice>.<number>.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	list, err := r.slices(ctx, service)
	if err != nil {
		return nil, err
	}
	if r.options.AwaitServed != nil {
		if err := r.options.AwaitServed(ctx, r.options.Namespace, service, list); err != nil {
			return nil, Typed(ctx, err)
		}
	}
	return r.layout(service, list).entries(), nil
}

func (r *Registry) layout(service string, list *discoveryv1.EndpointSliceList) *layout {
	return newLayout(discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.options.Namespace, GenerateName: service + "-usher-",
		Labels: map[string]string{r.options.ServiceLabel: service, discoveryv1.LabelManagedBy: Manager},
	}}, list.Items)
}

// Close implements registry.Connector. The connector does not own the client.
func (r *Registry) Close() error { return nil }

// slices returns the service's slices.
func (r *Registry) slices(ctx context.Context, service string) (*discoveryv1.EndpointSliceList, error) {
	if why := validation.IsDNS1123Label(service); len(why) > 0 || r.options.Namespace == "" {
		return nil, registry.Permanent(fmt.Errorf(
			"service %q in namespace %q cannot be a Service: set instance.service to the name of one in an existing namespace", service, r.options.Namespace))
	}
	var list discoveryv1.EndpointSliceList
	err := r.options.Reader.List(ctx, &list, client.InNamespace(r.options.Namespace),
		client.MatchingLabels{r.options.ServiceLabel: service})
	return &list, Typed(ctx, err)
}

// Typed marks an error of the API server. An error not known to be permanent is
// transient, because a needless retry is the safer mistake.
func Typed(ctx context.Context, err error) error {
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

// Apply implements registry.Connector. It compares the changes with slices that it
// reads first. It writes each changed slice as a whole, with the version it read as a
// precondition, so that all changes to a slice go into one write.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	return registry.Rounds(changes, func(changes []registry.Change) (again []registry.Change, err error) {
		list, err := r.slices(ctx, service)
		if err != nil {
			return nil, err
		}
		l := r.layout(service, list)
		outdated := l.change(changes)
		stale, err := r.write(ctx, l.writes())
		err = errors.Join(outdated, err)
		if !stale {
			return nil, err
		}
		// What was written is done, as the next round finds.
		refused, _ := registry.ChangeErrors(err)
		return slices.DeleteFunc(slices.Clone(changes), func(c registry.Change) bool { return refused[c.Entry.ID] != nil }), err
	})
}

// write writes the slices, and reports whether one of them had changed since it was
// read.
func (r *Registry) write(ctx context.Context, shelves []*shelf) (stale bool, err error) {
	var refused []error
	for _, s := range shelves {
		err := r.send(ctx, s)
		switch {
		case err == nil:
		case apierrors.IsConflict(err), apierrors.IsNotFound(err) && s.object.UID != "": // unless a new one lacks its namespace
			stale = true
		case apierrors.IsInvalid(err):
			for _, id := range slices.Compact(slices.Sorted(slices.Values(s.changed))) {
				refused = append(refused, &registry.ChangeError{ID: id, Err: Typed(ctx, err)})
			}
		default:
			return false, errors.Join(append(refused, Typed(ctx, err))...)
		}
		if err != nil && s.gains {
			// An entry that was to move here may be about to leave another slice. It
			// must never be in neither.
			return true, errors.Join(refused...)
		}
	}
	return stale, errors.Join(refused...)
}

// OpenShift's API server asks for the right to create endpointslices/restricted before it accepts
// addresses of Pods.
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch;create;update;delete
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices/restricted,verbs=create

func (r *Registry) send(ctx context.Context, s *shelf) (err error) {
	switch version := s.object.ResourceVersion; {
	case len(s.items) == 0:
		err = r.options.Writer.Delete(ctx, s.object, client.Preconditions{UID: &s.object.UID, ResourceVersion: &version})
	case s.object.UID != "":
		err = r.options.Writer.Update(ctx, s.render())
	default:
		if err = r.options.Writer.Create(ctx, s.render()); apierrors.IsNotFound(err) {
			err = fmt.Errorf("%w: create the namespace, or correct endpointSlice.namespace", err)
		}
	}
	return withRemedy(err)
}

// withRemedy adds to a refusal for a missing right how Usher gets that right. A quota or a policy,
// which refuses with the same status, says itself what it objects to.
func withRemedy(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	switch text := err.Error(); {
	case strings.Contains(text, `cannot `) && strings.Contains(text, ` resource "endpointslices"`): // RBAC
		return fmt.Errorf("%w: if the chart has installed Usher, set its rbac.endpointSlices to true", err)
	case strings.Contains(text, "endpoint address ") && strings.Contains(text, " is not allowed"): // OpenShift
		return fmt.Errorf("%w: grant Usher's account the right to create endpointslices/restricted, as config/rbac/endpointslices does", err)
	}
	return err
}
