// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

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
	state     string // of its lifecycle; empty while it has none
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
		r.set = owner.Name
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

// settled reports whether no operation is in progress on the Pod.
func (r row) settled() bool {
	return !r.leaving && r.ready && r.listed && r.state == string(appsv1alpha1.StateNormal)
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
	case state == appsv1alpha1.StatePreparingUpdate || state == appsv1alpha1.StatePreparingDelete:
		return waitsForDrain(pod, r)
	case state == appsv1alpha1.StateUpdating:
		what = "its new container"
	case pod.Spec.NodeName == "":
		what = "a node"
	case !r.ready:
		what = "its container"
	case !r.listed:
		what = "its etcd entry"
	case state == appsv1alpha1.StatePreparingNormal || state == appsv1alpha1.StateUpdated:
		what = "its hook"
	}
	return what, time.Time{}
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
	switch {
	case after == nil && (before == nil || before.listed):
		return "is gone"
	case after == nil:
		return "is gone" + before.registryNote(now)
	}
	sentences := []string{}
	say := func(holds bool, format string, args ...any) {
		if holds {
			sentences = append(sentences, fmt.Sprintf(format, args...))
		}
	}
	if before == nil {
		say(after.state == "", "is created")
		say(after.state != "", "is created in %s", after.state)
		before = &row{state: after.state}
	}
	if before.state != after.state && after.state != "" {
		say(before.state == "", "→ %s", after.state)
		say(before.state != "", "%s → %s%s", before.state, after.state, after.registryNote(now))
	}
	say(before.address != after.address && after.address != "", "has the address %s", after.address)
	say(!before.ready && after.ready, "is ready")
	say(before.ready && !after.ready, "is not ready")
	say(before.version != after.version && after.version != "", "runs %s", after.version)
	say(before.restarts != after.restarts && after.restarts > 0, "has restarted its container (restarts: %d)", after.restarts)
	say(!before.listed && after.listed, "joined etcd")
	say(before.listed && !after.listed, "left etcd")
	if !before.leaving && after.leaving {
		say(after.listed, "is deleted  (still in etcd)")
		say(!after.listed, "is deleted%s", after.registryNote(now))
	}
	// Every step involves short waits, which need no mention.
	say(before.waits != after.waits && after.waits == waitCallers, "waits for %s", after.waits)
	return strings.Join(sentences, "; ")
}

// seconds formats a duration like a stopwatch.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", max(d, 0).Seconds()) }
