// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// AnnotationDeletionRequest records on a Pod that someone wants to delete it, and
	// asks Usher to take it out of its registries before. Its value is a
	// DeletionRequest in JSON.
	AnnotationDeletionRequest = "usher.dev/deletion-request"
	// AnnotationSkipDrain with the value "true" lets a Pod be deleted at once, without a
	// drain. Requests may be lost.
	AnnotationSkipDrain = "usher.dev/skip-drain"
)

// DeletionRequest is the value of AnnotationDeletionRequest. While a Pod carries a
// request that is not Named, no registry is to list the Pod, and Usher takes its
// finalizer off the Pod when callers have had time to notice.
//
// A request lasts as long as its reason. The reason of a Kubernetes controller shows in the Pod's
// owner, node and namespace. An eviction needs none: a PodDisruptionBudget has allowed it while the
// Pod was in service, so Usher carries it out. For all others the timer
// spec.drain.requestTimeout of the Pod's Registrations begins when the drain is over.
type DeletionRequest struct {
	// Since is when the deletion was first asked for, At when it last was.
	Since metav1.MicroTime `json:"since"`
	At    metav1.MicroTime `json:"at"`
	// By is the user who asked first.
	By string `json:"by"`
	// Controller reports whether a controller of Kubernetes, or of CloneSets, has asked.
	Controller bool `json:"controller,omitempty"`
	// Drained is when Usher took its finalizer off the Pod; nil before.
	Drained *metav1.MicroTime `json:"drained,omitempty"`
	// GracePeriodSeconds is what the requester asked for; nil if the Pod's own is to hold.
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"`
	// Deadline is when the Pod is to have ended: whoever deletes it gives it a shorter grace period than its own.
	// Of several deadlines the earliest holds; nil if there is none.
	Deadline *metav1.MicroTime `json:"deadline,omitempty"`
	// LetGo is from when on the guard lets the Pod be deleted, drained or not, so that its containers get the
	// rest of the time until Deadline; nil without one.
	LetGo *metav1.MicroTime `json:"letGo,omitempty"`
	// Eviction reports whether the request is an eviction: PodDisruptionBudgets limit how
	// many of those drain at a time.
	Eviction bool `json:"eviction,omitempty"`
	// Named reports whether the Pod's CloneSet deletes it, with its hooks and budgets:
	// then the hook of the set starts the drain, not this request.
	Named bool `json:"named,omitempty"`
	// DeletionCost is the Pod's annotation controller.kubernetes.io/pod-deletion-cost
	// before the request; nil if it had none. While the request lasts, that annotation
	// makes a ReplicaSet choose this Pod again.
	DeletionCost *string `json:"deletionCost,omitempty"`
	// Seal proves to the guard that it has written the request for the controller of
	// DaemonSets, and nobody else has.
	Seal string `json:"seal,omitempty"`
}

// DeletionRequestOf returns the deletion request that a Pod carries, nil if it carries
// none. One that cannot be read is an error.
func DeletionRequestOf(pod *corev1.Pod) (*DeletionRequest, error) {
	text, ok := pod.Annotations[AnnotationDeletionRequest]
	if !ok {
		return nil, nil
	}
	var request DeletionRequest
	if err := json.Unmarshal([]byte(text), &request); err != nil {
		return nil, fmt.Errorf("annotation %s of Pod %s: %w; remove it", AnnotationDeletionRequest, pod.Name, err)
	}
	return &request, nil
}
