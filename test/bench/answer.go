// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// The labels of the hooks.
const (
	updateHook = "measure.usher.dev/update"
	deleteHook = "measure.usher.dev/delete"
	hooked     = "true"
)

// answerWorkers is how many hooks are answered concurrently.
const answerWorkers = 16

// answerer confirms every hook at once, and marks Pods again after an update, like a
// hook operator that has nothing to wait for.
type answerer struct {
	client kubernetes.Interface
	queue  workqueue.TypedInterface[answer]
	count  atomic.Int64
	failed func(error)
}

// answer is one write to a Pod.
type answer struct {
	pod   string
	patch string
}

// newAnswerer creates an answerer; failed is called for a refused answer.
func newAnswerer(client kubernetes.Interface, failed func(error)) *answerer {
	return &answerer{client: client, queue: workqueue.NewTyped[answer](), failed: failed}
}

// saw answers the hook of a Pod that has just reached a gate. Each hook is answered
// once: later events of the Pod may be older than the answer.
func (a *answerer) saw(pod *corev1.Pod, before apps.LifecycleState) {
	if patch := answerTo(pod, before); patch != "" {
		a.queue.Add(answer{pod: pod.Name, patch: patch})
	}
}

// answerTo is the patch that answers a Pod's hook; "" if there is nothing new.
func answerTo(pod *corev1.Pod, before apps.LifecycleState) string {
	state := stateOf(pod)
	if pod.DeletionTimestamp != nil || state == before {
		return ""
	}
	switch {
	case state == apps.StatePreparingUpdate && pod.Labels[updateHook] != "":
		return labelPatch(updateHook, "null")
	case state == apps.StateUpdated && pod.Labels[updateHook] == "":
		return labelPatch(updateHook, `"`+hooked+`"`)
	case state == apps.StatePreparingDelete && pod.Labels[deleteHook] != "":
		return labelPatch(deleteHook, "null")
	}
	return ""
}

func labelPatch(label, value string) string {
	return fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, label, value)
}

// run answers until ctx ends.
func (a *answerer) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, a.queue.ShutDown)
	defer stop()
	var working sync.WaitGroup
	for range answerWorkers {
		working.Go(func() {
			for a.next(ctx) {
			}
		})
	}
	working.Wait()
}

func (a *answerer) next(ctx context.Context) bool {
	one, end := a.queue.Get()
	if end {
		return false
	}
	defer a.queue.Done(one)
	_, err := a.client.CoreV1().Pods(namespace).Patch(ctx, one.pod, types.MergePatchType, []byte(one.patch), metav1.PatchOptions{})
	switch {
	case err == nil:
		a.count.Add(1)
	case ctx.Err() == nil && !apierrors.IsNotFound(err):
		a.failed(fmt.Errorf("answer the hook of Pod %s: %w", one.pod, err))
	}
	return true
}
