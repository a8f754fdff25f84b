// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/cloneset/plan"
)

const zoneKey = corev1.LabelTopologyZone

// nodeReader is a client that knows nodes by their metadata, and counts the requests.
type nodeReader struct {
	client.Client
	nodes map[string]map[string]string
	fails error
	asked int
}

func (r *nodeReader) Get(_ context.Context, key client.ObjectKey, out client.Object, _ ...client.GetOption) error {
	r.asked++
	node, ok := out.(*metav1.PartialObjectMetadata)
	switch {
	case !ok || node.Kind != "Node" || node.APIVersion != "v1":
		return errors.New("only the metadata of nodes are to be read")
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
