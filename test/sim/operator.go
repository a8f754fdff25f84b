// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/test/model"
)

// OperatorConfig configures the hook operator. Durations are the longest that a draw
// can give; the shortest is a tenth.
type OperatorConfig struct {
	// Notice is how long the operator takes to see a change, Answer how long it takes to act on it.
	Notice, Answer time.Duration
	// Silent is the probability that it does not answer until the run ends.
	Silent float64
	// Twice is the probability that it repeats an answer later.
	Twice float64
	// Careless answers ignore the version of the Pod.
	Careless bool
}

// operator registers Pods: it answers the hooks of every gate.
type operator struct{ *Simulation }

// hookPrefix marks the operator's labels and finalizers.
const hookPrefix = "hook/"

// observe receives every commit.
func (o operator) observe(c *model.Commit) {
	switch {
	case c.Kind == model.Pods && c.New != nil:
		o.notice(client.ObjectKeyFromObject(c.New))
	case c.Kind == model.CloneSets && c.New != nil && c.Old != nil && c.Old.GetGeneration() != c.New.GetGeneration():
		o.noticeAll()
	}
}

func (o operator) noticeAll() {
	for _, object := range model.List[*corev1.Pod](o.Server.Objects) {
		o.notice(client.ObjectKeyFromObject(object))
	}
}

func (o operator) notice(at types.NamespacedName) {
	o.World.after(o.span(o.config.Operator.Notice), func() { o.look(at) })
}

// finish makes the operator prompt and careful; it answers the hooks that it has not answered.
func (o operator) finish() {
	o.config.Operator = OperatorConfig{Notice: 10 * time.Millisecond, Answer: 100 * time.Millisecond}
	o.noticeAll()
}

// look reads a Pod and decides on an answer, which it gives later.
func (o operator) look(at types.NamespacedName) {
	pod := model.Get[*corev1.Pod](o.Server.Objects, at)
	if pod == nil {
		return
	}
	change := o.answer(pod)
	if change == nil || (!o.closing && o.World.roll(o.config.Operator.Silent)) {
		return
	}
	times := 1
	if o.World.roll(o.config.Operator.Twice) {
		times = 2
	}
	version := pod.ResourceVersion
	if o.config.Operator.Careless {
		version = ""
	}
	for i := range times {
		o.World.after(o.span(o.config.Operator.Answer)*time.Duration(1+4*i), func() { o.give(at, pod.UID, version, change) })
	}
}

// give writes an answer. If the Pod has a newer version, the answer is dropped: the commit of that
// version has triggered a new decision.
func (o operator) give(at types.NamespacedName, uid types.UID, version string, change func(*corev1.Pod)) {
	model.Change(o.Server, "operator", at, "", func(pod *corev1.Pod) {
		if pod.UID == uid && (version == "" || pod.ResourceVersion == version) {
			change(pod)
		}
	})
}

// answer returns what the operator does for a Pod in its state; nil if nothing.
func (o operator) answer(pod *corev1.Pod) func(*corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		return dropFinalizers(pod)
	}
	set := o.Set()
	if set == nil {
		return nil
	}
	hooks := lifecycle.FromSpec(set.Spec.Lifecycle)
	ready := model.Condition(pod, corev1.PodReady).Status == corev1.ConditionTrue
	var confirms, releases lifecycle.Hook
	switch s := model.State(pod); {
	case s == apps.StatePreparingNormal && ready:
		confirms = hooks.PreNormal
	case s == apps.StateUpdated && ready:
		confirms = hooks.InPlaceUpdate
	case s == apps.StatePreparingUpdate:
		releases = hooks.InPlaceUpdate
	case s == apps.StatePreparingDelete:
		releases = hooks.PreDelete
	}
	switch {
	case !confirms.Complete(pod.Labels, pod.Finalizers):
		return func(pod *corev1.Pod) { confirms.Confirm(pod) }
	case releases.Holds(pod.Labels, pod.Finalizers):
		return func(pod *corev1.Pod) { releases.Release(pod) }
	}
	return nil
}

// dropFinalizers releases a Pod that somebody other than its CloneSet deletes.
func dropFinalizers(pod *corev1.Pod) func(*corev1.Pod) {
	ours := func(f string) bool { return strings.HasPrefix(f, hookPrefix) }
	if !slices.ContainsFunc(pod.Finalizers, ours) {
		return nil
	}
	return func(pod *corev1.Pod) { pod.Finalizers = slices.DeleteFunc(pod.Finalizers, ours) }
}
