// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/stage"
)

// listing is the registry's state of an address.
type listing struct {
	listed bool
	since  time.Time // when that last changed; zero if it never was listed
}

// row is what a person sees of a Pod.
type row struct {
	name, set string
	plain     bool   // whether no CloneSet controls it
	state     string // of its lifecycle, or leaving its registries; empty while it has none
	version   string // that it runs; empty if none yet
	address   string // empty if none yet
	restarts  int
	// leaving reports whether the Pod is being deleted.
	ready, leaving bool
	listing
	// waits is what the Pod waits for, empty if nothing; waitsSince is zero if unknown.
	waits      string
	waitsSince time.Time
}

// describe is the row of a Pod.
func describe(pod *corev1.Pod, entry listing) row {
	r := row{
		name: pod.Name, state: pod.Labels[appsv1alpha1.LabelLifecycleState], version: stage.Version(pod), address: address(pod),
		ready: stage.Ready(pod), restarts: stage.Restarts(pod), leaving: pod.DeletionTimestamp != nil, listing: entry,
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		r.set, r.plain = owner.Name, owner.Kind == "ReplicaSet"
	}
	if r.plain {
		r.set = strings.TrimSuffix(r.set, "-"+pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey])
		if pod.Annotations[usherv1alpha1.AnnotationDeletionRequest] != "" {
			r.state = stateRequested
		}
	}
	r.waits, r.waitsSince = waits(pod, r)
	return r
}

// address is the Pod's address; empty until it has one.
func address(pod *corev1.Pod) string {
	if pod.Status.PodIP == "" {
		return ""
	}
	return net.JoinHostPort(pod.Status.PodIP, port)
}

// stateRequested is shown for a Pod of a Deployment that drains because someone wants to
// delete it.
const stateRequested = "Draining"

// settled reports whether no operation is in progress on the Pod.
func (r row) settled() bool {
	return !r.leaving && r.ready && r.listed && (r.state == string(appsv1alpha1.StateNormal) || r.plain && r.state == "")
}

// waitCallers is the one wait that belongs to every drain.
const waitCallers = "callers' caches"

// waits returns what a Pod waits for, and since when if that is known.
func waits(pod *corev1.Pod, r row) (what string, since time.Time) {
	state := appsv1alpha1.LifecycleState(r.state)
	switch {
	case r.leaving:
		if r.listed && slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer) {
			what = "its etcd entry to go"
		}
	case state == appsv1alpha1.StatePreparingUpdate || state == appsv1alpha1.StatePreparingDelete || r.state == stateRequested:
		return waitsForDrain(pod, r)
	case state == appsv1alpha1.StateUpdating:
		what = "its new container"
	default:
		what = waitsToServe(pod, r)
	}
	return what, time.Time{}
}

func waitsToServe(pod *corev1.Pod, r row) string {
	switch {
	case pod.Spec.NodeName == "":
		return "a node"
	case !r.ready:
		return "its container"
	case !r.listed:
		return "its etcd entry"
	case r.state != string(appsv1alpha1.StateNormal) && r.state != "":
		return "its hook"
	}
	return ""
}

// waitsForDrain reads the progress of the drain from the record that Usher keeps on the
// Pod.
func waitsForDrain(pod *corev1.Pod, r row) (what string, since time.Time) {
	var record struct {
		Gone map[string]time.Time `json:"gone"`
	}
	if r.listed {
		return "its etcd entry to go", time.Time{}
	}
	if json.Unmarshal([]byte(pod.Annotations[usherv1alpha1.AnnotationDrain]), &record) != nil || len(record.Gone) == 0 {
		return "Usher's read-back", time.Time{}
	}
	for _, at := range record.Gone {
		if at.After(since) {
			since = at
		}
	}
	return waitCallers, since
}

// recent is how recent a registry change must be to be mentioned with another change.
const recent = time.Minute

// registryNote says when the Pod last joined or left the registry.
func (r row) registryNote(now time.Time) string {
	ago := now.Sub(r.since)
	switch {
	case r.since.IsZero() || ago > recent:
		return ""
	case r.listed:
		return fmt.Sprintf("  (in etcd for %s)", seconds(ago))
	}
	return fmt.Sprintf("  (left etcd %s ago)", seconds(ago))
}

// changes describes what happened to a Pod between two observations; nil for before
// means that the Pod is new, nil for after that it is gone.
func changes(before, after *row, now time.Time) string {
	if after == nil {
		if before.listed {
			return "is gone"
		}
		return "is gone" + before.registryNote(now)
	}
	sentences := []string{}
	if before == nil {
		sentences = append(sentences, strings.TrimSuffix("is created in "+after.state, " in "))
		before = &row{state: after.state}
	}
	sentences = append(sentences, stateChange(before, after, now), changed("has the address %s", before.address, after.address),
		either(before.ready, after.ready, "is ready", "is not ready"), changed("runs %s", before.version, after.version))
	if before.restarts < after.restarts {
		sentences = append(sentences, fmt.Sprintf("has restarted its container (restarts: %d)", after.restarts))
	}
	sentences = append(sentences, either(before.listed, after.listed, "joined etcd", "left etcd"))
	if !before.leaving && after.leaving {
		note := "  (still in etcd)"
		if !after.listed {
			note = after.registryNote(now)
		}
		sentences = append(sentences, "is deleted"+note)
	}
	if before.waits != after.waits && after.waits == waitCallers {
		sentences = append(sentences, "waits for "+after.waits) // The other waits of a drain are short.
	}
	return strings.Join(slices.DeleteFunc(sentences, func(s string) bool { return s == "" }), "; ")
}

func stateChange(before, after *row, now time.Time) string {
	switch {
	case before.state == after.state || after.state == "":
		return ""
	case before.state == "":
		return "→ " + after.state
	}
	return before.state + " → " + after.state + after.registryNote(now)
}

// changed says what a value is now, if it has changed.
func changed(format, was, is string) string {
	if was == is || is == "" {
		return ""
	}
	return fmt.Sprintf(format, is)
}

// either says which of two it is now, if that has changed.
func either(was, is bool, yes, no string) string {
	switch {
	case was == is:
		return ""
	case is:
		return yes
	}
	return no
}

// seconds formats a duration like a stopwatch.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", max(d, 0).Seconds()) }
