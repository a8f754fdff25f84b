// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/notice"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// readOwners reads the owners and nodes of the Pods that carry requests for their deletion, and the owners of
// those that leave Services by a label.
func (r *Reconciler) readOwners(ctx context.Context, o *observation) (*observation, results, error) {
	began := r.clock.Now()
	nodes, err := r.urgentNodes(ctx)
	if err != nil {
		return nil, results{}, err
	}
	owners := r.newOwners(ownerSource{r.owners, false}, nil)
	for _, pod := range o.snapshot.Pods {
		_, asked := pod.Annotations[usherv1alpha1.AnnotationDeletionRequest]
		if pod.DeletionTimestamp != nil || !asked && !labelled(pod, o.snapshot.Registries) {
			continue
		}
		if owners.add(ctx, pod); !asked {
			continue
		}
		node, err := read[corev1.Node](ctx, r.owners, "Node", types.NamespacedName{Name: pod.Spec.NodeName})
		if err != nil {
			return nil, results{}, err
		}
		nodes[pod.Spec.NodeName] = r.heeded(nodeOf(node))
	}
	done := owners.and(results{spent: r.clock.Now().Sub(began)})
	return o.with(o.snapshot.WithOwners(owners.found, nodes)), done, nil
}

// labelled reports whether a Pod has the label by which Pods enter and leave the Services of a Registry.
func labelled(pod *corev1.Pod, registries map[string]plan.RegistryState) bool {
	for _, state := range registries {
		if _, has := pod.Labels[state.Label.Key]; has && state.Label.Key != "" {
			return true
		}
	}
	return false
}

// nodeOf is what plans read of a node; there may be none.
func nodeOf(node *corev1.Node) plan.Node {
	if node == nil {
		return plan.Node{}
	}
	evicts := func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }
	out := plan.Node{Evicts: slices.ContainsFunc(node.Spec.Taints, evicts), Cordoned: node.Spec.Unschedulable}
	if n, urgent := notice.Urgent(node); urgent {
		out.Goes, out.Within = notice.Text(n.Name), n.Within
	}
	return out
}

// heeded is a node without what its Pods are not to heed.
func (r *Reconciler) heeded(node plan.Node) plan.Node {
	if r.options.StayOnNodes {
		node.Goes, node.Within = "", 0
	}
	return node
}

// indexUrgent selects the nodes that go within a short time, whoever objects; urgentKey is its one key.
const indexUrgent, urgentKey = "usher.dev/urgent", "true"

// urgentKeys is the index of nodes that go within a short time.
func urgentKeys(object client.Object) []string {
	if node, ok := object.(*corev1.Node); ok && nodeOf(node).Goes != "" {
		return []string{urgentKey}
	}
	return nil
}

// urgentNodes are the nodes that go within a short time, unless their Pods are to stay.
func (r *Reconciler) urgentNodes(ctx context.Context) (map[string]plan.Node, error) {
	nodes := map[string]plan.Node{}
	if r.options.StayOnNodes {
		return nodes, nil
	}
	all, err := kube.List[*corev1.Node](ctx, r.owners, "nodes", &corev1.NodeList{}, r.urgent...)
	for _, node := range all {
		if one := nodeOf(node); one.Goes != "" {
			nodes[node.Name] = one
		}
	}
	return nodes, err
}

// readOwner is an owner that was read: its object is nil if it is gone, or of a kind that says nothing.
type readOwner struct {
	wants  plan.Owner
	object client.Object
}

// ownersOfPods reads each owner that Pods name once.
type ownersOfPods struct {
	*Reconciler
	from ownerSource
	read map[plan.OwnerRef]readOwner
	// found are what the owners want.
	found map[plan.OwnerRef]plan.Owner
	results
}

// newOwners reads owners in addition to those that are known.
func (r *Reconciler) newOwners(from ownerSource, known map[plan.OwnerRef]plan.Owner) *ownersOfPods {
	found := map[plan.OwnerRef]plan.Owner{}
	maps.Copy(found, known)
	return &ownersOfPods{Reconciler: r, from: from, read: map[plan.OwnerRef]readOwner{}, found: found}
}

// add finds what the Pod's owner wants. An owner that cannot be read is unknown in this
// pass, and another pass follows: whoever names it must hold up no other Pod.
func (o *ownersOfPods) add(ctx context.Context, pod *corev1.Pod) {
	ref := plan.OwnerOf(pod)
	if ref == nil {
		return
	}
	one, known := o.read[*ref]
	if !known {
		from := o.from
		if !from.live && ref.Kind == appsv1alpha1.KindCloneSet.Kind {
			from.Reader = o.client // which has them for other reasons
		}
		var err error
		if one, err = wantsOf(ctx, from, pod.Namespace, ref); err != nil {
			one.wants = plan.Owner{Unknown: true}
			o.results = o.and(o.setBack(refused)).and(results{troubles: []trouble{{pod: pod, message: "Cannot read the owner of a Pod", err: err}}})
		}
		o.read[*ref], o.found[*ref] = one, one.wants
	}
	if set, ok := one.object.(*appsv1.DaemonSet); ok {
		o.addUnfit(ctx, *ref, set, pod.Spec.NodeName)
	}
}

// addUnfit finds out whether a DaemonSet is to have no Pod on a node.
func (o *ownersOfPods) addUnfit(ctx context.Context, ref plan.OwnerRef, set *appsv1.DaemonSet, name string) {
	node, err := read[corev1.Node](ctx, o.owners, "Node", types.NamespacedName{Name: name})
	if err != nil || node == nil || fits(set, node) {
		return
	}
	owner := o.found[ref]
	unfit := map[string]bool{name: true}
	maps.Copy(unfit, owner.Unfit)
	owner.Unfit = unfit
	o.found[ref] = owner
}

// wantsOf reads an owner, and what it wants. A name that no object can have is that of none.
func wantsOf(ctx context.Context, from ownerSource, namespace string, ref *plan.OwnerRef) (one readOwner, err error) {
	kind, readable := ownerKinds[schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)]
	if !readable {
		return readOwner{wants: plan.Owner{Unknown: true, Foreign: true}}, nil
	}
	gone := readOwner{wants: plan.Owner{Gone: true}}
	if !plan.IsName(ref.Name) {
		return gone, nil
	}
	object := kind.empty()
	err = from.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, object)
	switch {
	case apierrors.IsNotFound(err), err == nil && object.GetUID() != ref.UID:
		return gone, nil
	case err != nil:
		return one, fmt.Errorf("read %s %s: %w", ref.Kind, ref.Name, err)
	}
	if set, ok := object.(*appsv1.DaemonSet); ok {
		keepSmall(&set.Spec.Template.Spec)
	}
	one.object = object
	one.wants, err = kind.wants(ctx, from, object)
	one.wants.Selects = selects(object)
	if takesPods(object) {
		one.wants.Gone, one.wants.Unknown = true, false // its controller may not look at it any more
	}
	return one, err
}
