// SPDX-License-Identifier: Apache-2.0

package awstargetgroup

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
)

// bindings are the objects by which AWS Load Balancer Controller notes the target groups of a Service.
var bindings = schema.GroupVersionKind{Group: "elbv2.k8s.aws", Version: "v1beta1", Kind: "TargetGroupBindingList"}

// +kubebuilder:rbac:groups=elbv2.k8s.aws,resources=targetgroupbindings,verbs=list

// bound are the ARNs of the target groups that TargetGroupBindings of the namespace name for a Service.
func (r *Registry) bound(ctx context.Context, service string) (arns []string, err error) {
	empty := &unstructured.UnstructuredList{}
	empty.SetGroupVersionKind(bindings)
	without := 0
	note := func(b *unstructured.Unstructured) (*unstructured.Unstructured, bool) {
		// Fields that are missing, or no texts, are empty: the kind's own controller refuses them.
		name, _, _ := unstructured.NestedString(b.Object, "spec", "serviceRef", "name")
		arn, _, _ := unstructured.NestedString(b.Object, "spec", "targetGroupARN")
		switch {
		case name != service:
		case arn == "":
			without++
		default:
			arns = append(arns, arn)
		}
		return nil, false
	}
	_, err = kube.ListKept(ctx, r.reader, "TargetGroupBindings", empty, note, client.InNamespace(r.namespace))
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return nil, noGroups("the cluster has no TargetGroupBindings (elbv2.k8s.aws/v1beta1) for Service %s: install AWS Load Balancer "+
			"Controller, or name the target groups in spec.awsTargetGroup.targetGroups of the Registry", service)
	case apierrors.IsForbidden(err):
		return nil, oneService("Usher may not list TargetGroupBindings: set rbac.targetGroupBindings=true in its chart, "+
			"or name the target groups of Service %s in spec.awsTargetGroup.targetGroups of the Registry", service)
	case err != nil:
		return nil, registry.OneService(endpointslice.Typed(ctx, err))
	case len(arns) == 0 && without > 0:
		return nil, registry.OneService(registry.Transient(fmt.Errorf("the TargetGroupBinding of Service %s has no spec.targetGroupARN yet: "+
			"see what AWS Load Balancer Controller says of it", service)))
	case len(arns) == 0:
		return nil, noGroups("no TargetGroupBinding of namespace %s names Service %s: an Ingress with the class alb, or a Service of the type "+
			"LoadBalancer, has AWS Load Balancer Controller make one; or name the target groups in spec.awsTargetGroup.targetGroups "+
			"of the Registry", r.namespace, service)
	}
	return arns, nil
}

// noGroups means that a Service has no target groups: nobody is called through them.
func noGroups(format string, args ...any) error {
	return registry.NoService(registry.Permanent(fmt.Errorf(format, args...)))
}

// unbound reports that no TargetGroupBinding of any namespace names a group: a controller would undo what Usher writes.
func (r *Registry) unbound(ctx context.Context, g group) error {
	empty := &unstructured.UnstructuredList{}
	empty.SetGroupVersionKind(bindings)
	by := ""
	note := func(b *unstructured.Unstructured) (*unstructured.Unstructured, bool) {
		if arn, _, _ := unstructured.NestedString(b.Object, "spec", "targetGroupARN"); arn == g.arn {
			by = b.GetNamespace() + "/" + b.GetName()
		}
		return nil, false
	}
	_, err := kube.ListKept(ctx, r.reader, "TargetGroupBindings", empty, note)
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err):
		return oneService("Usher may not list TargetGroupBindings, and so cannot see whether a controller writes target group %s: "+
			"set rbac.targetGroupBindings=true in its chart", g.name)
	case err != nil:
		return registry.OneService(endpointslice.Typed(ctx, err))
	case by != "":
		return oneService("TargetGroupBinding %s names target group %s, so that a controller writes it: take manage out of the Registry, "+
			"or use a group of your own", by, g.name)
	}
	return nil
}
