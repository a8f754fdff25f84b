// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/kube"
)

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch

// indexGoing selects the nodes that Pods are to leave; goingKey is its one key.
const indexGoing, goingKey = "usher.dev/going", "true"

// goingKeys returns the index of nodes that Pods are to leave.
func (o Options) goingKeys(object client.Object) []string {
	if len(o.LeaveNodes.Taints(object.(*corev1.Node))) > 0 {
		return []string{goingKey}
	}
	return nil
}

// watchNodes watches the nodes that Pods are to leave.
func (r *Reconciler) watchNodes(ctx context.Context, mgr manager.Manager, b *builder.Builder) error {
	if r.Options.LeaveNodes == plan.LeaveNever {
		return nil
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Node{}, indexGoing, r.Options.goingKeys); err != nil {
		return fmt.Errorf("index nodes that go: %w", err)
	}
	b.Watches(&corev1.Node{}, r.NodeEvents())
	return nil
}

// NodeEvents returns the handler that enqueues the sets with Pods on a node when Pods are to leave it,
// or may stay after all. A kubelet's heartbeat changes neither.
func (r *Reconciler) NodeEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			r.nodeChanged(ctx, &corev1.Node{}, e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			r.nodeChanged(ctx, e.ObjectOld, e.ObjectNew, q)
		},
	}
}

func (r *Reconciler) nodeChanged(ctx context.Context, before, after client.Object, q queue) {
	was, is := before.(*corev1.Node), after.(*corev1.Node)
	if slices.Equal(r.Options.LeaveNodes.Taints(was), r.Options.LeaveNodes.Taints(is)) {
		return
	}
	for _, pod := range r.roster.on(is.Name) {
		r.enqueue(ctx, pod, q.Add)
	}
}

// nodesWithin bounds the wait for the nodes: without the right to list them, the wait
// would never end.
const nodesWithin = 10 * time.Second

// goingNodes reads the nodes that Pods are to leave.
func (r *Reconciler) goingNodes(ctx context.Context, spec *plan.Spec) (map[string][]corev1.Taint, error) {
	if r.Options.LeaveNodes == plan.LeaveNever || spec.Hooks.PreDelete.Empty() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, nodesWithin)
	defer cancel()
	nodes, err := kube.List[*corev1.Node](ctx, r.Client, "nodes", &corev1.NodeList{}, client.MatchingFields{indexGoing: goingKey})
	if err != nil {
		return nil, fmt.Errorf("%w; the controller needs to get, list and watch nodes, or --leave-nodes=%s", err, plan.LeaveNever)
	}
	out := make(map[string][]corev1.Taint, len(nodes))
	for _, node := range nodes {
		out[node.Name] = r.Options.LeaveNodes.Taints(node)
	}
	return out, nil
}

// nodeLabels reads the labels of the Pods' nodes, if a constraint names one. A node that does not exist
// (yet) is in no domain. A change of labels causes no pass: they only decide which Pod to remove first.
func (r *Reconciler) nodeLabels(ctx context.Context, terms []plan.SpreadTerm, pods []*corev1.Pod) (map[string]map[string]string, error) {
	// The host name need not be read: it is the node's name.
	if !slices.ContainsFunc(terms, func(t plan.SpreadTerm) bool { return t.TopologyKey != corev1.LabelHostname }) {
		return nil, nil
	}
	labels := map[string]map[string]string{}
	err := r.readNodes(ctx, pods, " for spec.template.spec.topologySpreadConstraints", "", func(node *corev1.Node) { labels[node.Name] = node.Labels })
	return labels, err
}

// readNodes reads each of the Pods' nodes once, except those that do not exist (yet). An error names
// the purpose of reading, and the remedy.
func (r *Reconciler) readNodes(ctx context.Context, pods []*corev1.Pod, purpose, remedy string, read func(*corev1.Node)) error {
	ctx, cancel := context.WithTimeout(ctx, nodesWithin)
	defer cancel()
	known := sets.Set[string]{}
	for _, pod := range pods {
		name := pod.Spec.NodeName
		if name == "" || known.Has(name) {
			continue
		}
		known.Insert(name)
		var node corev1.Node
		err := r.Client.Get(ctx, client.ObjectKey{Name: name}, &node, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read node %s%s: %w; the controller needs to get, list and watch nodes%s", name, purpose, err, remedy)
		}
		if err == nil {
			read(&node)
		}
	}
	return nil
}
