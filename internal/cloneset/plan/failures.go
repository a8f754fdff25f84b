// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/podread"
)

// This file is about Pods that fail early: the kubelet rejects them, or they end soon after their
// creation. The next Pod will most likely fail in the same way, so the wait before each next one
// doubles. The number of failures in a row is kept on the Pods themselves, so another process knows it
// too: a new Pod is created with the number before it, and the last Pod that failed is kept as
// evidence.

const (
	// servedFor is how long a Pod must have lived so that its end is no early failure.
	servedFor = time.Minute
	// firstPause is the wait of the next Pod after the first failure, longestPause the longest wait.
	firstPause, longestPause = time.Second, 15 * time.Minute
)

// Failure describes the Pods of a revision that failed early, one after another.
type Failure struct {
	// Count is how many attempts have failed in a row, At when the last of these Pods was created.
	Count int
	At    time.Time
	// Began means that containers of that Pod ran.
	Began bool
	// Pod is the name of that Pod, Node its node; Reason and Message say why it ended.
	Pod, Node, Reason, Message string
}

// until returns when the next Pod may be created. A creation is recorded in whole seconds.
func (f *Failure) until() time.Time {
	pause := firstPause << min(f.Count-1, 10)
	return f.At.Truncate(time.Second).Add(time.Second + min(pause, longestPause))
}

// failsEarly reports whether a Pod failed early, and whether containers of it ran. The times from which
// it computes how long the Pod lived are all of the kubelet's clock.
func (f *PodInfo) failsEarly() (yes, began bool) {
	if !f.ended() || f.phase == corev1.PodSucceeded {
		return false, false
	}
	ran := func(s corev1.ContainerStatus) bool { return s.ContainerID != "" }
	status := &f.pod.Status
	if !slices.ContainsFunc(status.ContainerStatuses, ran) && !slices.ContainsFunc(status.InitContainerStatuses, ran) {
		return true, false
	}
	from, to := podread.Condition(f.pod, corev1.PodInitialized), podread.Condition(f.pod, corev1.PodReady)
	return from != nil && to != nil && to.LastTransitionTime.Sub(from.LastTransitionTime.Time) < servedFor, true
}

// failuresBefore returns how many attempts had failed when the Pod was created.
func failuresBefore(pod *corev1.Pod) int {
	n, _ := strconv.Atoi(pod.Annotations[apps.AnnotationFailuresBefore]) // an unreadable number counts as 0
	return max(n, 0)
}

// findFailures finds the revisions whose Pods fail early, and keeps one such Pod of each as evidence. A
// failure is over once a later Pod has succeeded, or none is missing any more.
func (p *pass) findFailures() {
	for _, r := range []*revision.Revision{p.Update, p.Current} {
		hash := revision.Short(r.Name)
		if _, found := p.plan.Failures[hash]; found || r != p.Update && !p.createsOld() {
			continue
		}
		last, evidence := p.lastFailure(hash)
		if last.Count == 0 || p.overcome(hash, &last) {
			continue
		}
		if p.plan.Failures == nil {
			p.plan.Failures = map[string]Failure{}
		}
		p.plan.Failures[hash] = last
		p.noteFailure(&last)
		if evidence != nil && !evidence.specified {
			// The next Pod takes over its claims, and with them its name: the evidence is deleted in
			// time for that.
			evidence.evidence = p.byID[InstanceOf(p.Set, evidence.pod)] == nil || p.Now.Before(last.until())
		}
	}
}

// createsOld reports whether Pods of the current revision may be created.
func (p *pass) createsOld() bool { return p.Spec.partition() > 0 || p.refused(p.Update) }

// lastFailure returns the last early failure of a revision's Pods; evidence is that Pod, nil if it is
// gone.
func (p *pass) lastFailure(hash string) (last Failure, evidence *podState) {
	last = p.Failures[hash]
	for i := range p.states {
		v := &p.states[i]
		yes, began := v.failsEarly()
		if !yes || v.hash != hash {
			continue
		}
		count := max(last.Count, failuresBefore(v.pod)+1)
		if last.Count == 0 || v.created.After(last.At) || (evidence == nil && v.created.Equal(last.At)) {
			status := &v.pod.Status
			last = Failure{At: v.created, Began: began, Pod: v.pod.Name, Node: v.node, Reason: status.Reason, Message: status.Message}
			if evidence = v; v.terminate {
				evidence = nil
			}
		}
		last.Count = count
	}
	return last, evidence
}

// overcome reports whether a failure no longer counts: a later Pod has succeeded, or no Pod is missing.
func (p *pass) overcome(hash string, last *Failure) bool {
	tried := false
	for _, v := range p.pods {
		if v.hash != hash || !v.created.After(last.At) {
			continue
		}
		tried = true
		switch stood := v.created.Add(servedFor); {
		case !last.Began && v.phase == corev1.PodRunning, last.Began && v.ready && !p.Now.Before(stood):
			return true
		case last.Began && v.ready:
			p.wakeAt(stood)
		}
	}
	return !tried && p.desired() <= p.ledger.pods
}

func (p *pass) noteFailure(last *Failure) {
	others, next := "", "the next one is on its way"
	if last.Count > 1 {
		others = fmt.Sprintf(", after %d before it in a row", last.Count-1)
	}
	if at := last.until(); p.Now.Before(at) {
		p.wakeAt(at)
		next = fmt.Sprintf("the next one is created at %s, or at once if spec.template changes", at.UTC().Format(time.RFC3339))
	}
	p.problem(ProblemPodsFail, "Pod %s %s%s; %s", last.Pod, last.Fault(), others, next)
}

// why says where a Pod failed, and why.
func (f *Failure) why() string {
	out := ""
	if f.Node != "" {
		out = " on node " + f.Node
	}
	if cause := strings.Trim(f.Reason+": "+strings.TrimSuffix(f.Message, "."), ": "); cause != "" {
		out += " (" + cause + ")"
	}
	return out
}

// holdsBack reports whether the next Pod of a revision has to wait, and how many have failed before it.
func (p *pass) holdsBack(r *revision.Revision) (wait bool, before int) {
	last, failing := p.plan.Failures[revision.Short(r.Name)]
	if !failing {
		return false, 0
	}
	return p.Now.Before(last.until()), last.Count
}

// GateFailed stands for a gate where a Pod that failed early stays until another one succeeds.
const GateFailed = "failed"

// failed describes a Pod that failed early; nil for any other.
func (f *PodInfo) failed() *Blocked {
	if yes, _ := f.failsEarly(); !yes || f.terminate {
		return nil
	}
	status := &f.pod.Status
	last := &Failure{Count: failuresBefore(f.pod) + 1, At: f.created, Pod: f.pod.Name, Node: f.node, Reason: status.Reason, Message: status.Message}
	return &Blocked{Pod: f.pod.Name, Gate: GateFailed, State: f.state, Keys: []string{status.Reason}, Since: f.created, Failed: last}
}

// Fault says what went wrong with the Pod.
func (f *Failure) Fault() string { return "has failed as soon as it was created" + f.why() }

func (f *Failure) text() string {
	return fmt.Sprintf("Pod %s %s%s; it stays to be looked at, and others follow more and more rarely until one succeeds: mend what its reason names, or change spec.template",
		f.Pod, f.Fault(), since(",", f.At))
}
