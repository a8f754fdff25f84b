// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/json"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// disruptedFor is how long the disruption controller waits for the deletion of a Pod whose
// eviction was granted.
const disruptedFor = 2 * time.Minute

// admit asks the webhook, if there is one, about the deletion or the eviction of a Pod.
func (s *Server) admit(actor string, at types.NamespacedName, r admissionv1.AdmissionRequest, old, object, options any) error {
	if s.Admit == nil {
		return nil
	}
	r.Namespace, r.Name, r.UserInfo = at.Namespace, at.Name, authenticationv1.UserInfo{Username: actor}
	for into, from := range map[*runtime.RawExtension]any{&r.OldObject: old, &r.Object: object, &r.Options: options} {
		data, err := json.Marshal(from)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		into.Raw = data
	}
	return s.Admit(&r)
}

// deleteOptions are the options as the API has them.
func (d Deletion) deleteOptions() *metav1.DeleteOptions {
	out := &metav1.DeleteOptions{}
	if d.Now {
		out.GracePeriodSeconds = new(int64)
	}
	return out
}

// Evict deletes a Pod, unless a PodDisruptionBudget refuses.
func (s *Server) Evict(actor string, at types.NamespacedName, eviction *policyv1.Eviction, dryRun bool) error {
	request := admissionv1.AdmissionRequest{Operation: admissionv1.Create, SubResource: "eviction", DryRun: &dryRun}
	if err := s.admit(actor, at, request, nil, eviction, &metav1.CreateOptions{}); err != nil {
		return err
	}
	object, err := s.Get(Pods, at)
	if err != nil {
		return err
	}
	pod, _ := object.(*corev1.Pod) // objects are kept by their kind
	if o := eviction.DeleteOptions; o != nil && o.Preconditions != nil {
		if err := preconditions(Pods, pod, ptr.Deref(o.Preconditions.UID, ""), ""); err != nil {
			return err
		}
	}
	if Active(pod) && pod.Status.Phase != corev1.PodPending {
		err = s.disrupt(pod, dryRun)
	}
	if err != nil || dryRun {
		return err
	}
	return s.delete(actor, Pods, pod, Deletion{})
}

// disrupt takes an eviction out of the budget of the Pod.
func (s *Server) disrupt(pod *corev1.Pod, dryRun bool) error {
	for _, budget := range List[*policyv1.PodDisruptionBudget](s.Objects) {
		status := budget.Status
		switch {
		case !Covers(budget, pod):
		case !ready(pod) && status.DesiredHealthy > 0 && status.CurrentHealthy >= status.DesiredHealthy:
		case status.DisruptionsAllowed <= 0:
			return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		case !dryRun:
			Change(s, "apiserver", client.ObjectKeyFromObject(budget), "status", func(b *policyv1.PodDisruptionBudget) {
				b.Status.DisruptionsAllowed--
				if b.Status.DisruptedPods == nil {
					b.Status.DisruptedPods = map[string]metav1.Time{}
				}
				b.Status.DisruptedPods[pod.Name] = metav1.NewTime(s.now())
			})
		}
	}
	return nil
}

// Covers reports whether the budget is one for the Pod.
func Covers(budget *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	return err == nil && budget.Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels))
}

func ready(pod *corev1.Pod) bool {
	return Condition(pod, corev1.PodReady).Status == corev1.ConditionTrue
}

// CountBudgets is a pass of the disruption controller over budgets with spec.minAvailable.
func (s *Server) CountBudgets() {
	for _, budget := range List[*policyv1.PodDisruptionBudget](s.Objects) {
		next := policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: budget.Generation, DesiredHealthy: budget.Spec.MinAvailable.IntVal, DisruptedPods: map[string]metav1.Time{},
		}
		for _, pod := range List[*corev1.Pod](s.Objects) {
			if !Covers(budget, pod) {
				continue
			}
			next.ExpectedPods++
			granted, disrupted := budget.Status.DisruptedPods[pod.Name]
			switch disrupted = disrupted && s.now().Sub(granted.Time) < disruptedFor; {
			case pod.DeletionTimestamp != nil:
			case disrupted:
				next.DisruptedPods[pod.Name] = granted
			case ready(pod):
				next.CurrentHealthy++
			}
		}
		next.DisruptionsAllowed = max(next.CurrentHealthy-next.DesiredHealthy, 0)
		Change(s, "disruption-controller", client.ObjectKeyFromObject(budget), "status", func(b *policyv1.PodDisruptionBudget) {
			b.Status = next
		})
	}
}
