// SPDX-License-Identifier: Apache-2.0

package exits

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/stage"
)

// way is a way out.
type way struct {
	// Name is for the table and the command line, Does what it does, as people would type it.
	Name, Does string
	// needs is why the way cannot be played; empty if it can.
	needs func(*run) string
	play  func(context.Context, *run) error
}

func nothing(*run) string { return "" }

// severalPods: of one Pod alone, any way out leaves callers without one for a while.
func severalPods(r *run) string {
	return stage.Unless(r.replicas > 1, "%s has one replica: callers would have none meanwhile", r.Workload)
}

// Ways are all ways, in the order in which they are played.
var ways = []way{
	{"rollout", "kubectl rollout restart WORKLOAD", nothing, func(ctx context.Context, r *run) error { return r.restart(ctx) }},
	{"scale in", "kubectl scale WORKLOAD, to half of its replicas", severalPods, func(ctx context.Context, r *run) error {
		return r.scale(ctx, r.replicas/2)
	}},
	{"scale out", "kubectl scale WORKLOAD, to what it had", severalPods, func(ctx context.Context, r *run) error {
		return r.scale(ctx, r.initial)
	}},
	{"delete", "kubectl delete pod, of one Pod", severalPods, func(ctx context.Context, r *run) error {
		return r.onePod(ctx, func(pod *corev1.Pod) error { return r.Kube.Delete(ctx, pod.DeepCopy()) })
	}},
	{"evict", "an eviction of one Pod, as autoscalers and the descheduler ask for it", severalPods, func(ctx context.Context, r *run) error {
		return r.onePod(ctx, func(pod *corev1.Pod) error { return r.evict(ctx, pod) })
	}},
	{"drain", "kubectl drain of the node with most of its Pods, of these Pods alone", otherNodes, func(ctx context.Context, r *run) error {
		return r.drain(ctx)
	}},
}

// WayNames describes the ways, one on a line.
func WayNames() string {
	return strings.Join(list.Map(ways, func(w way) string { return fmt.Sprintf("  %-10s %s", w.Name, w.Does) }), "\n")
}

// chosenWays are the ways of these names, all if there are none.
func chosenWays(names []string) ([]way, error) {
	if len(names) == 0 {
		return ways, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(ways, func(w way) bool { return w.Name == name }) {
			return nil, fmt.Errorf("%w: there is no way %q; the ways are\n%s", stage.ErrUsage, name, WayNames())
		}
	}
	return list.Only(ways, func(w way) bool { return slices.Contains(names, w.Name) }), nil
}

// restart changes the template's annotation that "kubectl rollout restart" changes.
func (r *run) restart(ctx context.Context) error {
	const restarted = `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`
	patch := fmt.Appendf(nil, restarted, time.Now().Format(time.RFC3339Nano))
	return r.Kube.Patch(ctx, r.object.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
}

func (r *run) scale(ctx context.Context, replicas int) error {
	_, err := stage.Scale(ctx, r.Kube, r.object.DeepCopy(), replicas)
	if err == nil {
		r.replicas = replicas
	}
	return err
}

// onePod ends the oldest Pod, and waits until it is gone.
func (r *run) onePod(ctx context.Context, end func(*corev1.Pod) error) error {
	pods, err := r.pods(ctx)
	if err != nil {
		return err
	}
	return r.endPod(ctx, &pods[0], end)
}

// endPod asks until the Pod is gone, as often as the API server says: it answers 429 to whoever has to wait.
func (r *run) endPod(ctx context.Context, pod *corev1.Pod, end func(*corev1.Pod) error) error {
	deadline := time.Now().Add(r.Limit)
	for {
		var now corev1.Pod
		err := r.Kube.Get(ctx, client.ObjectKeyFromObject(pod), &now)
		if apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
			return nil
		}
		if err == nil && now.DeletionTimestamp == nil {
			err = client.IgnoreNotFound(end(pod))
		}
		switch {
		case err != nil && !apierrors.IsTooManyRequests(err):
			return err
		case time.Now().After(deadline):
			return errors.Join(fmt.Errorf("pod %s is there after %s", pod.Name, r.Limit), err)
		}
		seconds, _ := apierrors.SuggestsClientDelay(err)
		if err := stage.Pause(ctx, max(time.Duration(seconds)*time.Second, pollEvery)); err != nil {
			return err
		}
	}
}

const pollEvery = 200 * time.Millisecond

func (r *run) evict(ctx context.Context, pod *corev1.Pod) error {
	return r.Kube.SubResource("eviction").Create(ctx, pod.DeepCopy(), &policyv1.Eviction{})
}

// otherNodes: the Pods of a node that is drained need another one.
func otherNodes(r *run) string {
	if why := severalPods(r); why != "" {
		return why
	}
	return stage.Unless(r.schedulable > 1, "the cluster has no second node that takes Pods")
}

// drain cordons the node with most of the workload's Pods, evicts them side by side, and ends the cordon.
func (r *run) drain(ctx context.Context) (err error) {
	pods, err := r.pods(ctx)
	if err != nil {
		return err
	}
	node, there := busiestNode(pods)
	if err := stage.Cordon(ctx, r.Kube, node, true); err != nil {
		return err
	}
	defer func() { // also when the measurement is interrupted
		err = errors.Join(err, stage.Cordon(context.WithoutCancel(ctx), r.Kube, node, false))
	}()
	evictions, evicting := errgroup.WithContext(ctx)
	for i := range there {
		evictions.Go(func() error {
			return r.endPod(evicting, &there[i], func(pod *corev1.Pod) error { return r.evict(evicting, pod) })
		})
	}
	return evictions.Wait()
}

// busiestNode is the node with most of these Pods, the first by name of several, and its Pods.
func busiestNode(pods []corev1.Pod) (node string, there []corev1.Pod) {
	at := map[string][]corev1.Pod{}
	for _, pod := range pods {
		at[pod.Spec.NodeName] = append(at[pod.Spec.NodeName], pod)
	}
	for _, name := range slices.Sorted(maps.Keys(at)) {
		if len(at[name]) > len(there) {
			node, there = name, at[name]
		}
	}
	return node, there
}
