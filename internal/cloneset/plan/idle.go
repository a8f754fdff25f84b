// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/podread"
)

// Gates where a Pod waits for somebody other than its hooks.
const (
	// GateScheduler: it waits for a node.
	GateScheduler = "scheduler"
	// GateReadiness: its containers are ready, and it waits for readiness gates of others.
	GateReadiness = "readinessGate"
	// GateStart: it waits for its kubelet to make its containers ready.
	GateStart = "start"
	// GateEnd: it is terminating, and its containers have yet to end, or finalizers hold it.
	GateEnd = "end"
)

// idleFor is how long a Pod waits for a node or a readiness gate before that is reported: most Pods
// wait for a moment only. slowFor is the same for a start and for an end, which take longer.
const (
	idleFor = 10 * time.Second
	slowFor = time.Minute
)

// Idle is a wait of a Pod that its set cannot end.
type Idle struct {
	// Gate, Keys and Since are those of Blocked.
	Gate  string
	Keys  []string
	Since time.Time
	// After is how long the wait lasts before it is reported.
	After time.Duration
	// Message is the scheduler's, or says how far the Pod is; "" for a readiness gate.
	Message string
}

// readIdle reads the wait of a Pod that its set cannot end; nil if there is none.
func readIdle(f *PodInfo) *Idle {
	switch {
	case f.terminate:
		return readEnd(f.pod)
	case f.ended() || f.ready:
		return nil
	case !f.scheduled:
		return readUnscheduled(f)
	}
	if keys := unsetGates(f.pod); f.able && len(keys) > 0 {
		return &Idle{Gate: GateReadiness, Keys: keys, Since: podread.Since(f.pod, corev1.ContainersReady), After: idleFor}
	}
	return readStart(f)
}

func readUnscheduled(f *PodInfo) *Idle {
	c := podread.Condition(f.pod, corev1.PodScheduled)
	if c == nil || c.Status != corev1.ConditionFalse {
		return &Idle{
			Gate: GateScheduler, Keys: []string{"NoScheduler"}, Since: f.created, After: slowFor,
			Message: "none has looked at it",
		}
	}
	return &Idle{Gate: GateScheduler, Keys: []string{c.Reason}, Since: f.created, After: idleFor, Message: c.Message}
}

// readStart reads since when a Pod with a node is not ready. It does not say what the containers do
// meanwhile: that changes often, and the plugin shows it.
func readStart(f *PodInfo) *Idle {
	i := &Idle{
		Gate: GateStart, Keys: []string{"NotReady"}, Since: f.created, After: slowFor,
		Message: "its containers on node " + f.node + " are not",
	}
	if c := podread.Condition(f.pod, corev1.ContainersReady); c != nil {
		i.Since = c.LastTransitionTime.Time
	}
	if f.launch != nil {
		i.Message = "it " + f.launch.String()
	}
	if f.able {
		i.Since = podread.Since(f.pod, corev1.PodReady)
		i.Message = "its containers are, so node " + f.node + " may be silent"
	}
	return i
}

// readEnd reads what a terminating Pod waits for.
func readEnd(pod *corev1.Pod) *Idle {
	i := &Idle{Gate: GateEnd, Keys: pod.Finalizers, Since: podread.DeletedSince(pod), After: slowFor}
	if len(i.Keys) > 0 {
		i.Message = "the finalizers " + strings.Join(i.Keys, ", ") + " hold it"
		return i
	}
	until := pod.DeletionTimestamp.UTC().Format(time.RFC3339)
	i.Keys = []string{"GracePeriod"}
	i.Message = fmt.Sprintf("node %s has until %s to end its containers", pod.Spec.NodeName, until)
	return i
}

// unsetGates returns the Pod's readiness gates that others have not set, sorted.
func unsetGates(pod *corev1.Pod) (keys []string) {
	for _, gate := range pod.Spec.ReadinessGates {
		own := gate.ConditionType == apps.ConditionInPlaceUpdateReady || gate.ConditionType == apps.ConditionPodReady
		if !own && !podread.IsTrue(pod, gate.ConditionType) {
			keys = append(keys, string(gate.ConditionType))
		}
	}
	slices.Sort(keys)
	return keys
}

// life returns the part of the wait whose change needs another pass.
func (i *Idle) life() string {
	if i == nil {
		return ""
	}
	return fmt.Sprint(i.Gate, i.Keys, i.Since.Unix())
}

// reportAt returns when the wait is to be reported; zero if there is none, or its beginning is unknown.
func (i *Idle) reportAt() time.Time {
	if i == nil || i.Since.IsZero() {
		return time.Time{}
	}
	return i.Since.Add(i.After)
}

// waitsIdle returns the wait that the set cannot end, once it has lasted long enough to be reported.
// Pods that leave service need not get ready, so theirs is not reported.
func (s *Snapshot) waitsIdle(v *podState) []Blocked {
	leaves := !v.terminate && (v.state == apps.StatePreparingDelete || v.state == apps.StatePreparingUpdate)
	if at := v.idle.reportAt(); at.IsZero() || s.Now.Before(at) || leaves {
		return nil
	}
	i := v.idle
	return []Blocked{{Pod: v.pod.Name, Gate: i.Gate, State: v.state, Keys: i.Keys, Since: i.Since, Idle: i}}
}

func (i *Idle) text(pod string) string {
	switch i.Gate {
	case GateScheduler:
		why := strings.Trim(strings.Join(i.Keys, "")+": "+strings.TrimSuffix(i.Message, "."), ": ")
		return fmt.Sprintf("Pod %s has no node%s (%s); make room for it, or change spec.template", pod, since(",", i.Since), why)
	case GateStart:
		return fmt.Sprintf("Pod %s is not ready%s: %s", pod, since(",", i.Since), i.Message)
	case GateEnd:
		return fmt.Sprintf("Pod %s is terminating%s: %s", pod, since(",", i.Since), i.Message)
	}
	return fmt.Sprintf("the containers of Pod %s are ready, and it waits for somebody to set its readiness gates %s%s",
		pod, strings.Join(i.Keys, ", "), since(",", i.Since))
}
