// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// workload is what a CloneSet or a Deployment says of itself.
type workload struct {
	observed                              int64 // the generation
	desired, replicas, updated, available int32
	// complaints are the conditions that say what is wrong.
	complaints []string
}

func ofCloneSet(set *appsv1alpha1.CloneSet) *workload {
	s := set.Status
	w := &workload{observed: s.ObservedGeneration, desired: *set.Spec.Replicas, replicas: s.Replicas, updated: s.UpdatedReplicas, available: s.AvailableReplicas}
	for _, c := range s.Conditions {
		if c.Type != appsv1alpha1.ConditionProgressing && c.Status == corev1.ConditionTrue {
			w.complaints = append(w.complaints, fmt.Sprintf("CloneSet %s: %s: %s", set.Name, c.Type, c.Message))
		}
	}
	return w
}

func ofDeployment(d *appsv1.Deployment) *workload {
	s := d.Status
	w := &workload{observed: s.ObservedGeneration, desired: *d.Spec.Replicas, replicas: s.Replicas, updated: s.UpdatedReplicas, available: s.AvailableReplicas}
	for _, c := range s.Conditions {
		if c.Type != appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionFalse || c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			w.complaints = append(w.complaints, fmt.Sprintf("Deployment %s: %s: %s", d.Name, c.Type, c.Message))
		}
	}
	return w
}

func (b *board) workloadIs(name string, w *workload) {
	b.Change(func() { b.workloads[name] = w })
}

func (b *board) workloadGone(name string) {
	b.Change(func() { delete(b.workloads, name) })
}

// drainNode does to the Pods of a workload what "kubectl drain" does to all Pods of a node:
// it marks the node that has most of them unschedulable and evicts those that are there. The
// API server asks to wait as long as a Pod has to drain, and client-go does.
func (r *run) drainNode(ctx context.Context, a *actor) error {
	node, pods := r.board.busiestNode(a.name)
	if err := r.cordon(ctx, node, true); err != nil {
		return err
	}
	r.board.say("   %s is drained of %d Pods", node, len(pods))
	evictions, evicting := errgroup.WithContext(ctx)
	for _, name := range pods {
		evictions.Go(func() error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			return client.IgnoreNotFound(r.Kube.SubResource("eviction").Create(evicting, pod, &policyv1.Eviction{}))
		})
	}
	if err := evictions.Wait(); err != nil {
		return fmt.Errorf("evict the Pods of %s: %w", node, err)
	}
	err := r.board.await(ctx, r.options.pace.bound, "the Pods of "+node+" to be gone", func() bool {
		for _, name := range pods {
			if r.board.pods[name] != nil {
				return false
			}
		}
		return true
	})
	return errors.Join(err, r.cordon(ctx, node, false))
}

// busiestNode is the node with most Pods of a workload, and those.
func (b *board) busiestNode(workload string) (node string, pods []string) {
	at := map[string][]string{}
	b.Read(func() {
		for _, r := range b.rowsOf(workload) {
			name := b.pods[r.name].Spec.NodeName
			at[name] = append(at[name], r.name)
		}
	})
	for _, name := range slices.Sorted(maps.Keys(at)) {
		if len(at[name]) > len(pods) {
			node, pods = name, at[name]
		}
	}
	return node, pods
}

func (r *run) cordon(ctx context.Context, node string, unschedulable bool) error {
	patch := fmt.Appendf(nil, `{"spec": {"unschedulable": %t}}`, unschedulable)
	err := r.Kube.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, patch))
	if err != nil {
		return fmt.Errorf("mark node %s (un)schedulable: %w", node, err)
	}
	return nil
}
