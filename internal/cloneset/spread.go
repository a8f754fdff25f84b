// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch

// nodesWithin bounds the wait for the nodes, which are read on first use: without the
// right to list nodes, the wait would never end.
const nodesWithin = 10 * time.Second

// nodeLabels reads the node labels that the constraints name, for the nodes of the set's
// Pods. A node that does not exist (yet) is in no domain. Nothing watches nodes for their
// own sake: they only decide which Pod is missed least when one has to go.
func (r *Reconciler) nodeLabels(ctx context.Context, terms []plan.SpreadTerm, pods []*corev1.Pod) (map[string]map[string]string, error) {
	keys := nodeKeys(terms)
	if len(keys) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, nodesWithin)
	defer cancel()
	out := map[string]map[string]string{}
	for _, pod := range pods {
		name := pod.Spec.NodeName
		if _, known := out[name]; known || name == "" {
			continue
		}
		node := &metav1.PartialObjectMetadata{}
		node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		err := r.Client.Get(ctx, client.ObjectKey{Name: name}, node, client.UnsafeDisableDeepCopy)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read node %s for spec.template.spec.topologySpreadConstraints: %w; the controller needs to get, list and watch nodes", name, err)
		}
		out[name] = map[string]string{}
		for _, key := range keys {
			if value, ok := node.Labels[key]; ok {
				out[name][key] = value
			}
		}
	}
	return out, nil
}

// nodeKeys are the node labels to read. The host name is not among them: it is the node's
// name.
func nodeKeys(terms []plan.SpreadTerm) []string {
	var keys []string
	for i := range terms {
		if terms[i].TopologyKey != corev1.LabelHostname {
			keys = append(keys, terms[i].TopologyKey)
		}
	}
	return keys
}
