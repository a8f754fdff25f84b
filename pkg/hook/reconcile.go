// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// Reasons of events and of the Pod condition.
const (
	// ReasonWaiting: a Handler has asked for more time.
	ReasonWaiting = "HookWaiting"
	// ReasonFailed: a Handler has returned an error.
	ReasonFailed = "HookFailed"
	// ReasonOverdue: the deadline has passed and the Pod still waits.
	ReasonOverdue = "HookOverdue"
	// ReasonForced: the deadline has passed and the Pod was released.
	ReasonForced = "HookForced"
	// ReasonPassed: no gate holds the Pod.
	ReasonPassed = "HookPassed"
)

type reconciler struct {
	*Operator
	client client.Client
	events events.EventRecorder
}

// Reconcile handles the gate where one Pod is. If the Pod changes meanwhile, it runs again;
// that is no error.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, request)
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: retryMin}, nil
	}
	return result, err
}

func (r *reconciler) reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var pod corev1.Pod
	if err := r.client.Get(ctx, request.NamespacedName, &pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	h, waits := r.pending(&pod)
	if !waits {
		return ctrl.Result{}, r.report(ctx, &pod, nil, ReasonPassed)
	}
	if r.needsGuard(&pod, h) {
		if err := r.change(ctx, &pod, func(pod *corev1.Pod) { controllerutil.AddFinalizer(pod, r.guard) }); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	failure := r.call(ctx, h, pod.DeepCopy())
	if failure == nil || r.overdue(&pod, h) && h.then == Proceed {
		return ctrl.Result{}, r.release(ctx, &pod, h, failure)
	}
	return r.hold(ctx, &pod, h, failure)
}

// needsGuard reports whether the Pod could vanish while its Handler makes something.
func (r *reconciler) needsGuard(pod *corev1.Pod, h hook) bool {
	return r.guard != "" && pod.DeletionTimestamp == nil && h.gate.joinsReady() && !r.guards(pod)
}

func (r *reconciler) call(ctx context.Context, h hook, pod *corev1.Pod) error {
	if h.handle == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	return h.handle(ctx, pod)
}

func (r *reconciler) overdue(pod *corev1.Pod, h hook) bool {
	return h.deadline > 0 && !r.Clock.Now().Before(since(pod).Add(h.deadline))
}

// release lets the Pod continue, unless it has changed since it was read.
func (r *reconciler) release(ctx context.Context, pod *corev1.Pod, h hook, failure error) error {
	if failure != nil {
		r.events.Eventf(pod, nil, corev1.EventTypeWarning, ReasonForced, string(h.gate),
			"%s was let through gate %s after %s although its hook has not succeeded: %v", pod.Name, h.gate, h.deadline, failure)
	}
	if err := r.change(ctx, pod, func(pod *corev1.Pod) { r.pass(pod, h) }); err != nil {
		return client.IgnoreNotFound(err)
	}
	return r.report(ctx, pod, nil, ReasonPassed)
}

// hold reports what the Pod waits for, and requeues it.
func (r *reconciler) hold(ctx context.Context, pod *corev1.Pod, h hook, failure error) (ctrl.Result, error) {
	text := fmt.Sprintf("gate %s (%s) since %s: %v", h.gate, h.key, since(pod).UTC().Format(time.RFC3339), failure)
	reason := ReasonFailed
	early, ok := errors.AsType[*wait](failure)
	if ok {
		reason = ReasonWaiting
	}
	if r.overdue(pod, h) {
		reason = ReasonOverdue
	}
	if reason != ReasonWaiting {
		r.events.Eventf(pod, nil, corev1.EventTypeWarning, reason, string(h.gate), "%s", text)
	}
	if err := r.report(ctx, pod, errors.New(text), reason); err != nil {
		return ctrl.Result{}, err
	}
	if early != nil {
		return ctrl.Result{RequeueAfter: max(early.after, retryMin)}, nil
	}
	return ctrl.Result{}, fmt.Errorf("gate %s of Pod %s: %w", h.gate, pod.Name, failure)
}

// report writes the condition if it has changed; nil means that nothing waits.
func (r *reconciler) report(ctx context.Context, pod *corev1.Pod, waits error, reason string) error {
	if r.Condition == "" {
		return nil
	}
	next := corev1.PodCondition{
		Type: r.Condition, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	}
	if waits != nil {
		next.Status, next.Message = corev1.ConditionFalse, waits.Error()
	}
	now := condition(pod, r.Condition)
	if now == nil && waits == nil || now != nil && sameCondition(*now, next) {
		return nil
	}
	base := pod.DeepCopy()
	if now == nil {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{})
		now = &pod.Status.Conditions[len(pod.Status.Conditions)-1]
	} else if now.Status == next.Status {
		next.LastTransitionTime = now.LastTransitionTime
	}
	*now = next
	// A strategic merge patch leaves the other conditions to their owners.
	if err := r.client.Status().Patch(ctx, pod, client.StrategicMergeFrom(base)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write condition %s of Pod %s: %w", r.Condition, pod.Name, err))
	}
	return nil
}

func sameCondition(a, b corev1.PodCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// change patches the Pod, provided that it has not changed since it was read.
func (r *reconciler) change(ctx context.Context, pod *corev1.Pod, do func(*corev1.Pod)) error {
	base := pod.DeepCopy()
	do(pod)
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := r.client.Patch(ctx, pod, patch); err != nil {
		return fmt.Errorf("patch Pod %s: %w", pod.Name, err)
	}
	return nil
}
