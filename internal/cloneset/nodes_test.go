// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

const zoneKey = corev1.LabelTopologyZone

// nodeReader is a client that knows labels of nodes, and counts the requests.
type nodeReader struct {
	client.Client
	nodes map[string]map[string]string
	fails error
	asked int
}

func (r *nodeReader) Get(_ context.Context, key client.ObjectKey, out client.Object, _ ...client.GetOption) error {
	r.asked++
	node, ok := out.(*corev1.Node)
	switch {
	case !ok:
		return errors.New("only nodes are to be read")
	case r.fails != nil:
		return r.fails
	case r.nodes[key.Name] == nil:
		return apierrors.NewNotFound(corev1.Resource("nodes"), key.Name)
	}
	node.Labels = r.nodes[key.Name]
	return nil
}

func onNode(name string) *corev1.Pod { return &corev1.Pod{Spec: corev1.PodSpec{NodeName: name}} }

// TestNodeLabels: each node is read once, only what the constraints name is kept, and
// without a need no node is read.
func TestNodeLabels(t *testing.T) {
	pods := []*corev1.Pod{onNode("n1"), onNode("n1"), onNode("n2"), onNode("gone"), onNode("")}
	reader := &nodeReader{nodes: map[string]map[string]string{
		"n1": {zoneKey: "a", "other": "x", corev1.LabelHostname: "n1"}, "n2": {"other": "y"},
	}}
	r := &Reconciler{Client: reader}
	byZone := []plan.SpreadTerm{{TopologyKey: zoneKey, Selector: labels.Everything()}, {TopologyKey: corev1.LabelHostname, Selector: labels.Everything()}}
	got, err := r.nodeLabels(t.Context(), byZone, pods)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]map[string]string{"n1": {zoneKey: "a"}, "n2": {}, "gone": {}}, got); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if reader.asked != 3 {
		t.Errorf("asked %d times for 3 nodes", reader.asked)
	}
	for name, terms := range map[string][]plan.SpreadTerm{"no constraint": nil, "host names only": byZone[1:]} {
		if got, err := r.nodeLabels(t.Context(), terms, pods); err != nil || got != nil || reader.asked != 3 {
			t.Errorf("%s: %v, %v after %d reads", name, got, err, reader.asked)
		}
	}
	reader.fails = apierrors.NewForbidden(corev1.Resource("nodes"), "n1", errors.New("no"))
	if _, err := r.nodeLabels(t.Context(), byZone, pods); !apierrors.IsForbidden(err) {
		t.Errorf("error = %v, want what the API server said", err)
	}
}

// TestNodeCache: the cache keeps of a node only what is read.
func TestNodeCache(t *testing.T) {
	transform := NodeCache().Transform
	kept := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", ResourceVersion: "1", Labels: map[string]string{"zone": "a"}},
		Spec:       corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{Key: "k"}}},
	}
	whole := kept.DeepCopy()
	whole.Annotations, whole.ManagedFields = map[string]string{"note": "long"}, []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	whole.Spec.PodCIDR, whole.Status.Images = "10.0.0.0/24", []corev1.ContainerImage{{Names: []string{"a"}}}
	got, err := transform(whole)
	if diff := cmp.Diff(any(kept), got); err != nil || diff != "" {
		t.Errorf("kept (-want +got):\n%s, %v", diff, err)
	}
	if other, err := transform("other"); err != nil || other != "other" {
		t.Errorf("what is no node becomes %v, %v", other, err)
	}
}

// TestNodeEvents: a node that goes, or stays after all, wakes the sets with Pods there, and
// nothing else does.
func TestNodeEvents(t *testing.T) {
	node := func(edits ...func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		for _, edit := range edits {
			edit(n)
		}
		return n
	}
	cordon := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	taint := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
	}
	known := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule, TimeAdded: deletedNow()}}
	}
	heartbeat := func(n *corev1.Node) { n.ResourceVersion, n.Labels = "2", map[string]string{"a": "b"} }
	for _, test := range []struct {
		name          string
		leave         plan.LeaveNodes
		before, after *corev1.Node
		want          bool
	}{
		{"it was cordoned when Usher started", plan.LeaveCordoned, nil, node(cordon), true},
		{"it was not", plan.LeaveCordoned, nil, node(), false},
		{"a heartbeat", plan.LeaveCordoned, node(), node(heartbeat), false},
		{"a heartbeat of a cordoned one", plan.LeaveCordoned, node(cordon), node(cordon, heartbeat), false},
		{"cordoned", plan.LeaveCordoned, node(), node(cordon), true},
		{"the node controller knows of it", plan.LeaveCordoned, node(cordon), node(cordon, known), false},
		{"uncordoned", plan.LeaveCordoned, node(cordon, known), node(known), true},
		{"tainted", plan.LeaveCordoned, node(), node(taint), true},
		{"cordoned, and that does not count", plan.LeaveTainted, node(), node(cordon), false},
		{"tainted, and that counts", plan.LeaveTainted, node(), node(taint), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			onN1 := func(p *corev1.Pod) { p.Spec.NodeName = "n1" }
			bare := podOf(nil, "bare", onN1)
			r, _ := reconcilerOn(server(t, web(), podOf(web(), "web-a", onN1), podOf(web(), "web-b", onN1), podOf(web(), "web-c"), bare))
			r.Options.LeaveNodes = test.leave
			q, events := &queued{}, r.NodeEvents()
			if test.before == nil {
				events.Create(t.Context(), event.CreateEvent{Object: test.after}, q)
			} else {
				events.Update(t.Context(), event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.after}, q)
			}
			web := reconcile.Request{NamespacedName: keyOf(web())}
			if woken := slices.Contains(q.requests, web); woken != test.want || len(slices.Compact(q.requests)) > 1 {
				t.Errorf("woke %v, want the set: %v", q.requests, test.want)
			}
		})
	}
}

// TestGoingNodes: only the nodes that Pods leave are read, and only for sets whose Pods a
// hook protects.
func TestGoingNodes(t *testing.T) {
	cordoned := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	r, _ := reconcilerOn(server(t, cordoned, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}))
	hooked := plan.Spec{Hooks: lifecycle.Hooks{PreDelete: lifecycle.Hook{Finalizers: []string{"example.com/f"}}}}
	for _, test := range []struct {
		leave plan.LeaveNodes
		spec  plan.Spec
		want  int
	}{
		{plan.LeaveCordoned, hooked, 1}, {plan.LeaveCordoned, plan.Spec{}, 0}, {plan.LeaveNever, hooked, 0},
	} {
		r.Options.LeaveNodes = test.leave
		got, err := r.goingNodes(t.Context(), &test.spec)
		if err != nil || len(got) != test.want || (test.want > 0 && got["n1"] == nil) {
			t.Errorf("%s: %v, %v", test.leave, got, err)
		}
	}
}
