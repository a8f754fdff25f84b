// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// answerWorkers is how many hooks are answered concurrently.
const answerWorkers = 16

// answerHooks returns a function that confirms the hook of a Pod that has just reached a
// gate, and marks the Pod again after an update, like a hook operator that has nothing to
// wait for. Each hook is answered once: later events of the Pod may be older than the
// answer.
func answerHooks(ctx context.Context, kube client.Client, fail func(error)) func(*corev1.Pod, apps.LifecycleState) {
	free := make(chan struct{}, answerWorkers)
	return func(pod *corev1.Pod, before apps.LifecycleState) {
		patch := answerTo(pod, before)
		if patch == "" {
			return
		}
		go func() {
			free <- struct{}{}
			defer func() { <-free }()
			err := kube.Patch(ctx, barePod(pod.Name), client.RawPatch(types.MergePatchType, []byte(patch)))
			if client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
				fail(fmt.Errorf("answer the hook of Pod %s: %w", pod.Name, err))
			}
		}()
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
