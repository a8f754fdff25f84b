// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// TestNodesThatGo: a pass knows the nodes that go within a short time, as the cache keeps nodes, unless Pods are to
// stay.
func TestNodesThatGo(t *testing.T) {
	tainted := func(name, key string) client.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: key, Effect: "NoSchedule"}}}}
	}
	ends := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ends"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "[a, node is shutting down]"},
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
	}}}
	nodes := []client.Object{
		tainted("spot", "aws-node-termination-handler/spot-itn"), tainted("paced", "karpenter.sh/disrupted"), ends,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "steady"}},
	}
	for i := range nodes {
		kept := checktest.Must(onlyWants(nodes[i]))(t)
		nodes[i] = kept.(client.Object)
	}
	indexed := fake.NewClientBuilder().WithIndex(&corev1.Node{}, indexUrgent, urgentKeys).WithObjects(nodes...).Build()
	r := &Reconciler{owners: indexed, urgent: []client.ListOption{client.MatchingFields{indexUrgent: urgentKey}}}
	found := checktest.Must(r.urgentNodes(t.Context()))(t)
	checktest.Same(t, "the nodes that go", []string{"ends", "spot"}, slices.Sorted(maps.Keys(found)))
	checktest.Same(t, "what the kubelet says", plan.Node{Goes: "is shutting down", Within: 30 * time.Second}, found["ends"])

	r.options.StayOnNodes = true
	found = checktest.Must(r.urgentNodes(t.Context()))(t)
	checktest.Same(t, "the nodes that go, if Pods are to stay", 0, len(found))
	checktest.Same(t, "what a node says then", plan.Node{Cordoned: true}, r.heeded(plan.Node{Cordoned: true, Goes: "goes", Within: time.Second}))
}
