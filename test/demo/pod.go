// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/demo/view"
)

// listing is the registry's state of an address.
type listing struct {
	listed bool
	since  time.Time
}

// describe is the row of a Pod.
func describe(pod *corev1.Pod, entry listing) view.Pod {
	row := view.Pod{
		Name:            pod.Name,
		State:           pod.Labels[appsv1alpha1.LabelLifecycleState],
		Ready:           isReady(pod),
		Leaving:         pod.DeletionTimestamp != nil,
		Version:         version(pod),
		Address:         address(pod),
		Registered:      entry.listed,
		RegisteredSince: entry.since,
	}
	for _, container := range pod.Status.ContainerStatuses {
		row.Restarts += int(container.RestartCount)
	}
	row.Waits, row.WaitsSince = waits(pod, entry)
	return row
}

// address is the Pod's address; empty until it has one.
func address(pod *corev1.Pod) string {
	if pod.Status.PodIP == "" {
		return ""
	}
	return net.JoinHostPort(pod.Status.PodIP, port)
}

// version is the tag of the running image, which differs from the spec during an
// in-place update.
func version(pod *corev1.Pod) string {
	for _, container := range pod.Status.ContainerStatuses {
		if container.State.Running == nil {
			continue
		}
		if _, tag, ok := strings.Cut(container.Image[strings.LastIndexByte(container.Image, '/')+1:], ":"); ok {
			return tag
		}
	}
	return ""
}

func isReady(pod *corev1.Pod) bool {
	return hasCondition(pod, corev1.PodReady)
}

func hasCondition(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

// owner is the name of the Pod's CloneSet.
func owner(pod *corev1.Pod) string {
	if ref := metav1.GetControllerOf(pod); ref != nil {
		return ref.Name
	}
	return ""
}

// settled reports whether no operation is in progress on the Pod.
func settled(pod *corev1.Pod, entry listing) bool {
	return pod.DeletionTimestamp == nil && isReady(pod) && entry.listed &&
		pod.Labels[appsv1alpha1.LabelLifecycleState] == string(appsv1alpha1.StateNormal)
}

// What Pods wait for, as the panel and the log show it.
const (
	waitNode       = "a node"
	waitContainer  = "its container"
	waitListed     = "its etcd entry"
	waitUnlisted   = "its etcd entry to go"
	waitConfirm    = "Usher's read-back"
	waitCallers    = "callers' caches"
	waitHook       = "its hook"
	waitNewVersion = "its new container"
)

// waits returns what a Pod waits for, and since when if that is known.
func waits(pod *corev1.Pod, entry listing) (what string, since time.Time) {
	if pod.DeletionTimestamp != nil {
		return waitsToEnd(pod, entry), time.Time{}
	}
	switch appsv1alpha1.LifecycleState(pod.Labels[appsv1alpha1.LabelLifecycleState]) {
	case appsv1alpha1.StatePreparingUpdate, appsv1alpha1.StatePreparingDelete:
		return waitsForDrain(pod, entry)
	case appsv1alpha1.StateUpdating:
		return waitNewVersion, time.Time{}
	case appsv1alpha1.StatePreparingNormal, appsv1alpha1.StateUpdated:
		if what := waitsToServe(pod, entry); what != "" {
			return what, time.Time{}
		}
		return waitHook, time.Time{}
	}
	return waitsToServe(pod, entry), time.Time{}
}

func waitsToServe(pod *corev1.Pod, entry listing) string {
	switch {
	case pod.Spec.NodeName == "":
		return waitNode
	case !isReady(pod):
		return waitContainer
	case !entry.listed:
		return waitListed
	default:
		return ""
	}
}

func waitsToEnd(pod *corev1.Pod, entry listing) string {
	if entry.listed && slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer) {
		return waitUnlisted
	}
	return ""
}

// waitsForDrain reads the progress of the drain from the record that Usher keeps on the
// Pod.
func waitsForDrain(pod *corev1.Pod, entry listing) (what string, since time.Time) {
	var record struct {
		Gone map[string]time.Time `json:"gone"`
	}
	text := pod.Annotations[usherv1alpha1.AnnotationDrain]
	if entry.listed {
		return waitUnlisted, time.Time{}
	}
	if json.Unmarshal([]byte(text), &record) != nil || len(record.Gone) == 0 {
		return waitConfirm, time.Time{}
	}
	for _, at := range record.Gone {
		if at.After(since) {
			since = at
		}
	}
	return waitCallers, since
}
