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
	// Notice is how long the operator takes to see a change, Answer how long to act on
	// it.
	Notice, Answer time.Duration
	// Silent is the probability that it does not answer until the run ends.
	Silent float64
	// Twice is the probability that it repeats an answer later.
	Twice float64
	// Careless answers ignore the version of the Pod.
	Careless bool
}

// operator registers Pods: it answers the hooks of every gate.
type operator struct {
	world  *World
	server *model.Server
	config OperatorConfig
	set    types.NamespacedName
	// closing makes it answer what it left unanswered.
	closing bool
}

// hookPrefix marks the operator's labels and finalizers.
const hookPrefix = "hook/"

func newOperator(w *World, s *model.Server, set types.NamespacedName, config OperatorConfig) *operator {
	o := &operator{world: w, server: s, config: config, set: set}
	s.Observers = append(s.Observers, o.observe)
	return o
}

func (o *operator) span(most time.Duration) time.Duration { return o.world.between(most/10, most) }

// observe receives every commit.
func (o *operator) observe(c *model.Commit) {
	switch {
	case c.Kind == model.Pods && c.New != nil:
		o.notice(client.ObjectKeyFromObject(c.New))
	case c.Kind == model.CloneSets && c.New != nil && c.Old != nil && c.Old.GetGeneration() != c.New.GetGeneration():
		o.noticeAll()
	}
}

func (o *operator) noticeAll() {
	for _, object := range model.List[*corev1.Pod](o.server.Objects) {
		o.notice(client.ObjectKeyFromObject(object))
	}
}

func (o *operator) notice(at types.NamespacedName) {
	o.world.after(o.span(o.config.Notice), func() { o.look(at) })
}

// finish makes it prompt, careful and no longer silent.
func (o *operator) finish() {
	o.closing = true
	o.config = OperatorConfig{Notice: 10 * time.Millisecond, Answer: 100 * time.Millisecond}
	o.noticeAll()
}

// look reads a Pod and decides on an answer, which it gives later.
func (o *operator) look(at types.NamespacedName) {
	object, err := o.server.Get(model.Pods, at)
	if err != nil {
		return
	}
	pod, _ := object.(*corev1.Pod)
	change := o.answer(pod)
	if change == nil || (!o.closing && o.world.roll(o.config.Silent)) {
		return
	}
	times := 1
	if o.world.roll(o.config.Twice) {
		times = 2
	}
	version := pod.ResourceVersion
	if o.config.Careless {
		version = ""
	}
	for i := range times {
		o.world.after(o.span(o.config.Answer)*time.Duration(1+4*i), func() { o.give(at, pod.UID, version, change) })
	}
}

// give writes an answer. An answer that meets a newer version is decided again; the
// commit of that version has already triggered it.
func (o *operator) give(at types.NamespacedName, uid types.UID, version string, change func(*corev1.Pod)) {
	_, _ = o.server.Update("operator", model.Pods, at, "", func(object client.Object) error {
		pod, ok := object.(*corev1.Pod)
		if !ok || pod.UID != uid || (version != "" && pod.ResourceVersion != version) {
			return errOutdated
		}
		change(pod)
		return nil
	})
}

// answer returns what the operator does for a Pod in its state; nil if nothing.
func (o *operator) answer(pod *corev1.Pod) func(*corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		return dropFinalizers(pod)
	}
	object, err := o.server.Get(model.CloneSets, o.set)
	if err != nil {
		return nil
	}
	set, _ := object.(*apps.CloneSet)
	hooks := lifecycle.FromSpec(set.Spec.Lifecycle)
	ready := model.Condition(pod, corev1.PodReady).Status == corev1.ConditionTrue
	switch s := model.State(pod); {
	case s == apps.StatePreparingNormal && ready:
		return confirm(hooks.PreNormal, pod)
	case s == apps.StateUpdated && ready:
		return confirm(hooks.InPlaceUpdate, pod)
	case s == apps.StatePreparingUpdate:
		return release(hooks.InPlaceUpdate, pod)
	case s == apps.StatePreparingDelete:
		return release(hooks.PreDelete, pod)
	}
	return nil
}

// confirm sets everything that a hook waits for.
func confirm(hook lifecycle.Hook, pod *corev1.Pod) func(*corev1.Pod) {
	if hook.Complete(pod.Labels, pod.Finalizers) {
		return nil
	}
	return func(pod *corev1.Pod) { hook.Confirm(pod) }
}

// release removes everything that holds a Pod.
func release(hook lifecycle.Hook, pod *corev1.Pod) func(*corev1.Pod) {
	if !hook.Holds(pod.Labels, pod.Finalizers) {
		return nil
	}
	return func(pod *corev1.Pod) { hook.Release(pod) }
}

// dropFinalizers releases a Pod that somebody other than its CloneSet deletes.
func dropFinalizers(pod *corev1.Pod) func(*corev1.Pod) {
	ours := func(f string) bool { return strings.HasPrefix(f, hookPrefix) }
	if !slices.ContainsFunc(pod.Finalizers, ours) {
		return nil
	}
	return func(pod *corev1.Pod) { pod.Finalizers = slices.DeleteFunc(pod.Finalizers, ours) }
}
