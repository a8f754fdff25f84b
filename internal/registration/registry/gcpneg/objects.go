// SPDX-License-Identifier: Apache-2.0

package gcpneg

import (
	"context"
	"regexp"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
)

// objects are those in which GKE notes the groups of one port of a Service, one for each zone.
var objects = schema.GroupVersionKind{Group: "networking.gke.io", Version: "v1beta1", Kind: "ServiceNetworkEndpointGroupList"}

const (
	// labelService is the label of such an object that names its Service.
	labelService = "networking.gke.io/service-name"
	// portType is the type of groups that have Pods as endpoints; those of internal passthrough load balancers have
	// nodes.
	portType = "GCE_VM_IP_PORT"
)

// links are what links to zonal groups look like.
var links = regexp.MustCompile(`^https://[a-z0-9.-]+/compute/[a-z0-9]+/projects/([a-z0-9.:-]+)/zones/([a-z0-9-]+)/networkEndpointGroups/([a-z0-9-]+)$`)

// +kubebuilder:rbac:groups=networking.gke.io,resources=servicenetworkendpointgroups,verbs=list

// inObjects are the groups that ServiceNetworkEndpointGroups of the namespace have for a Service, without error if
// there are none, or no such kind, or if Usher may not list them. Links are checked, like the annotation.
func (r *Registry) inObjects(ctx context.Context, service string) (groups []group, err error) {
	empty := &unstructured.UnstructuredList{}
	empty.SetGroupVersionKind(objects)
	var wrong error
	note := func(object *unstructured.Unstructured) (*unstructured.Unstructured, bool) {
		// What is missing, or of another form, is no group: the kind is GKE's.
		all, _, _ := unstructured.NestedSlice(object.Object, "status", "networkEndpointGroups")
		for _, one := range all {
			of, _ := one.(map[string]any)
			link, _, _ := unstructured.NestedString(of, "selfLink")
			if kind, _, _ := unstructured.NestedString(of, "networkEndpointType"); kind != "" && kind != portType {
				continue
			}
			g, err := r.linked(object.GetName(), link)
			if err != nil {
				wrong = err
				continue
			}
			groups = append(groups, g)
		}
		return nil, false
	}
	_, err = kube.ListKept(ctx, r.reader, "ServiceNetworkEndpointGroups", empty, note,
		client.InNamespace(r.namespace), client.MatchingLabels{labelService: service})
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, registry.OneService(endpointslice.Typed(ctx, err))
	case wrong != nil:
		return nil, wrong
	}
	return groups, nil
}

// linked is the group of a link in an object.
func (r *Registry) linked(object, link string) (group, error) {
	parts := links.FindStringSubmatch(link)
	switch {
	case parts == nil || len(parts[3]) > 63 || !zones.MatchString(parts[2]) || !names.MatchString(parts[3]):
		return group{}, oneService("ServiceNetworkEndpointGroup %s has %q, which is no link to a zonal network endpoint group: see what GKE says of it",
			object, registry.Excerpt(link))
	case parts[1] != r.spec.Project:
		return group{}, oneService("ServiceNetworkEndpointGroup %s has a group of project %s, and spec.gcpNEG.project of the Registry is %s: "+
			"use a Registry for that project", object, parts[1], r.spec.Project)
	}
	return group{parts[2], parts[3]}, nil
}
