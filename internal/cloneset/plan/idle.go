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

// GateScheduler stands for a gate where a Pod waits for a node, GateReadiness for one where its
// containers are ready, and it waits for readiness gates of others.
const (
	GateScheduler = "scheduler"
	GateReadiness = "readinessGate"
)

// idleFor is how long a Pod waits for a node or a readiness gate before that is reported: most wait for
// a moment.
const idleFor = 10 * time.Second

// Idle is what a Pod waits for that neither its set nor its containers can do.
type Idle struct {
	gate  string
	keys  []string
	since time.Time
	// Message is the scheduler's; "" for a readiness gate.
	Message string
}

// readIdle reads for what a Pod waits that neither its set nor its containers can do; nil if for nothing.
func readIdle(f *PodInfo) *Idle {
	if f.ended() || f.terminate || f.ready {
		return nil
	}
	if c := podread.Condition(f.pod, corev1.PodScheduled); !f.scheduled {
		if c == nil || c.Status != corev1.ConditionFalse {
			return nil
		}
		return &Idle{gate: GateScheduler, keys: []string{c.Reason}, since: f.created, Message: c.Message}
	}
	keys := unsetGates(f.pod)
	if !f.able || len(keys) == 0 {
		return nil
	}
	return &Idle{gate: GateReadiness, keys: keys, since: podread.Since(f.pod, corev1.ContainersReady)}
}

// unsetGates are the Pod's readiness gates that others have not set, sorted.
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

// life is what of it makes another pass necessary.
func (i *Idle) life() string {
	if i == nil {
		return ""
	}
	return fmt.Sprint(i.gate, i.keys, i.since.Unix())
}

// reportAt is when a Pod's wait is to be reported; zero if it waits for nothing.
func (i *Idle) reportAt() time.Time {
	if i == nil {
		return time.Time{}
	}
	return i.since.Add(idleFor)
}

// waitsIdle is the wait for a node or a readiness gate, if it lasts. Nobody waits for Pods that leave.
func (s *Snapshot) waitsIdle(v *podState) []Blocked {
	if v.idle == nil || s.Now.Before(v.idle.reportAt()) || v.state == apps.StatePreparingDelete || v.state == apps.StatePreparingUpdate {
		return nil
	}
	return []Blocked{{Pod: v.pod.Name, Gate: v.idle.gate, State: v.state, Keys: v.idle.keys, Since: v.idle.since, Idle: v.idle}}
}

func (i *Idle) text(pod string) string {
	if i.gate == GateScheduler {
		why := strings.Trim(strings.Join(i.keys, "")+": "+strings.TrimSuffix(i.Message, "."), ": ")
		return fmt.Sprintf("Pod %s has no node%s (%s); make room for it, or change spec.template", pod, since(",", i.since), why)
	}
	return fmt.Sprintf("the containers of Pod %s are ready, and it waits for somebody to set its readiness gates %s%s", pod, strings.Join(i.keys, ", "), since(",", i.since))
}
