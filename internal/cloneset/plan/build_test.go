// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// rev is a revision whose template runs app:<n>.
func rev(n int, edits ...func(template map[string]any)) *revision.Revision {
	template := map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": fmt.Sprintf("app:%d", n)}}},
	}
	for _, edit := range edits {
		edit(template)
	}
	return &revision.Revision{Name: fmt.Sprintf("web-r%d", n), Number: int64(n), Template: template}
}

// mainOf is the first container of a template.
func mainOf(template map[string]any) map[string]any {
	return template["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
}

func labelsOf(template map[string]any) map[string]any {
	return template["metadata"].(map[string]any)["labels"].(map[string]any)
}

func withImage(image string) func(template map[string]any) {
	return func(template map[string]any) { mainOf(template)["image"] = image }
}

// newEnv is a change that only a new Pod can have.
func newEnv(template map[string]any) {
	mainOf(template)["env"] = []any{map[string]any{"name": "A", "value": "1"}}
}

// onlyLabel keeps the image of the first revision and adds a label.
func onlyLabel(template map[string]any) {
	labelsOf(template)["tier"] = "front"
	withImage("app:1")(template)
}

type option func(*Snapshot)

// snap is a set of some replicas whose update revision is r1.
func snap(replicas int, options ...option) *Snapshot {
	s := &Snapshot{
		Now: now, Set: "web", Revisions: map[string]*revision.Revision{},
		Spec: Spec{Replicas: replicas, Method: Recreate, MaxUnavailable: Count{Value: 20, Percent: true}},
	}
	toRevision(rev(1))(s)
	s.Current = s.Update
	for _, o := range options {
		o(s)
	}
	slices.SortFunc(s.Pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// toRevision makes it the update revision; the current one stays.
func toRevision(r *revision.Revision) option {
	return func(s *Snapshot) {
		s.Update = r
		s.Revisions[revision.Short(r.Name)] = r
	}
}

func method(m Method) option { return func(s *Snapshot) { s.Spec.Method = m } }
func maxUnavailable(n int) option {
	return func(s *Snapshot) { s.Spec.MaxUnavailable = Count{Value: n} }
}
func paused(s *Snapshot)             { s.Spec.Paused = true }
func grace(d time.Duration) option   { return func(s *Snapshot) { s.Spec.Grace = d } }
func hooks(h lifecycle.Hooks) option { return func(s *Snapshot) { s.Spec.Hooks = h } }
func starts(n int) option            { return func(s *Snapshot) { s.Starts = n } }
func refused(s *Snapshot)            { s.UpdateRefused = "the API server refuses Pods of spec.template: no" }

func with(pods ...*corev1.Pod) option {
	return func(s *Snapshot) { s.Pods = append(s.Pods, pods...) }
}

const (
	keyNormal = "example.com/registered"
	keyUpdate = "example.com/update"
	keyDelete = "example.com/delete"
)

// gates asks for one finalizer at each gate; marking makes the Pods not ready there.
func gates(marking bool) lifecycle.Hooks {
	return lifecycle.Hooks{
		PreNormal:     lifecycle.Hook{Finalizers: []string{keyNormal}},
		InPlaceUpdate: lifecycle.Hook{Finalizers: []string{keyUpdate}, MarkNotReady: marking},
		PreDelete:     lifecycle.Hook{Finalizers: []string{keyDelete}, MarkNotReady: marking},
	}
}

// preDelete is a set whose only hook is a preDelete finalizer.
func preDelete() lifecycle.Hooks { return lifecycle.Hooks{PreDelete: gates(false).PreDelete} }
func updateGate() lifecycle.Hooks {
	return lifecycle.Hooks{InPlaceUpdate: gates(false).InPlaceUpdate}
}

type podOption func(*corev1.Pod)

// pod is a Pod of revision rN that has served for an hour.
func pod(name string, n int, options ...podOption) *corev1.Pod {
	r := rev(n)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name), Generation: 1, CreationTimestamp: metav1.NewTime(now.Add(-2 * time.Hour)),
			Labels: map[string]string{
				"app": "web", apps.LabelRevision: r.Name, apps.LabelTemplateHash: revision.Short(r.Name),
				apps.LabelLifecycleState: string(apps.StateNormal), apps.LabelInstanceID: name,
			},
			Annotations: map[string]string{apps.AnnotationLifecycleTimestamp: now.Add(-time.Hour).Format(time.RFC3339)},
		},
		Spec: corev1.PodSpec{
			NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: fmt.Sprintf("app:%d", n)}},
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: apps.ConditionInPlaceUpdateReady}, {ConditionType: apps.ConditionPodReady}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, ObservedGeneration: 1,
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", Image: fmt.Sprintf("app:%d", n), ImageID: fmt.Sprintf("id-app:%d", n), ContainerID: "c1", Ready: true,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}},
		},
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, apps.ConditionInPlaceUpdateReady, apps.ConditionPodReady} {
		condition(kind, corev1.ConditionTrue, "")(p)
	}
	for _, o := range options {
		o(p)
	}
	return p
}

// pods makes serving Pods of one revision.
func pods(n int, names ...string) []*corev1.Pod {
	var out []*corev1.Pod
	for _, name := range names {
		out = append(out, pod(name, n))
	}
	return out
}

func condition(kind corev1.PodConditionType, status corev1.ConditionStatus, message string) podOption {
	return conditionSince(kind, status, message, now.Add(-time.Hour))
}

func conditionSince(kind corev1.PodConditionType, status corev1.ConditionStatus, message string, since time.Time) podOption {
	return func(p *corev1.Pod) {
		p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: kind, Status: status, Message: message, LastTransitionTime: metav1.NewTime(since),
		})
	}
}

// withoutInPlaceCondition has lost the condition InPlaceUpdateReady.
func withoutInPlaceCondition(p *corev1.Pod) {
	p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == apps.ConditionInPlaceUpdateReady })
}

func unready(p *corev1.Pod) { condition(corev1.PodReady, corev1.ConditionFalse, "")(p) }

func readyFor(d time.Duration) podOption {
	return conditionSince(corev1.PodReady, corev1.ConditionTrue, "", now.Add(-d))
}

func state(state apps.LifecycleState) podOption {
	return label(apps.LabelLifecycleState, string(state))
}

func label(key, value string) podOption {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

func annotation(key, value string) podOption {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func finalizers(names ...string) podOption {
	return func(p *corev1.Pod) { p.Finalizers = append(p.Finalizers, names...) }
}

// registered carries the finalizers of all three gates.
func registered(p *corev1.Pod) { finalizers(keyNormal, keyUpdate, keyDelete)(p) }

func created(ago time.Duration) podOption {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-ago)) }
}

func on(node string) podOption { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func phase(phase corev1.PodPhase) podOption { return func(p *corev1.Pod) { p.Status.Phase = phase } }

func terminating(p *corev1.Pod) { at := metav1.NewTime(now); p.DeletionTimestamp = &at }

func restarts(n int32) podOption {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount = n }
}

// pending has neither a node nor a container.
func pending(p *corev1.Pod) {
	unready(p)
	p.Spec.NodeName, p.Status.Phase, p.Status.ContainerStatuses = "", corev1.PodPending, nil
}

// fresh is as created.
func fresh(p *corev1.Pod) {
	pending(p)
	state(apps.StatePreparingNormal)(p)
	p.Status.Conditions = nil
}

// out is out of its endpoints for an update to rN, for some time.
func out(n int, ago time.Duration) podOption {
	return conditionSince(apps.ConditionInPlaceUpdateReady, corev1.ConditionFalse, rev(n).Name, now.Add(-ago))
}

// begun is in an update to rN, whose record is written.
func begun(n int, change *inplace.Change) podOption {
	return func(p *corev1.Pod) {
		p.Annotations[apps.AnnotationInPlaceUpdateState] = inplace.Begin(p, change, rev(n).Name, now.Add(-time.Minute)).State.String()
		p.Labels[apps.LabelRevision], p.Labels[apps.LabelTemplateHash] = rev(n).Name, revision.Short(rev(n).Name)
		state(apps.StateUpdating)(p)
		out(n, time.Minute)(p)
	}
}

// updating is on its way to rN in place, and the kubelet has done nothing yet.
func updating(n int) podOption {
	return func(p *corev1.Pod) {
		begun(n, &inplace.Change{Images: map[string]string{"main": fmt.Sprintf("app:%d", n)}})(p)
		p.Spec.Containers[0].Image = fmt.Sprintf("app:%d", n)
		p.Generation++
	}
}

// restarted is what the kubelet makes of updating.
func restarted(p *corev1.Pod) {
	p.Status.ObservedGeneration = p.Generation
	for i := range p.Spec.Containers {
		spec, c := &p.Spec.Containers[i], &p.Status.ContainerStatuses[i]
		c.Resources = spec.Resources.DeepCopy()
		if i == 0 || c.Image != spec.Image {
			c.Image, c.ImageID, c.ContainerID, c.Ready = spec.Image, "id-"+spec.Image, c.ContainerID+"+", true
		}
	}
}

// describe lists the actions of a plan as text, in order.
func describe(p Plan) []string {
	lines := []string{}
	for _, a := range p.Actions {
		lines = append(lines, a.String())
	}
	return lines
}

// decide makes a plan and checks the invariants.
func decide(t testing.TB, s *Snapshot) Plan {
	t.Helper()
	p := Make(s)
	if err := soundness(s, p); err != nil {
		t.Error(err)
	}
	return p
}

// expect compares the actions of a plan with what they should be.
func expect(t testing.TB, s *Snapshot, want ...string) Plan {
	t.Helper()
	p := decide(t, s)
	if want == nil {
		want = []string{}
	}
	if diff := cmp.Diff(want, describe(p)); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	return p
}

// expectRequeue: the next pass is due then; with 0 nothing is due.
func expectRequeue(t *testing.T, p Plan, in time.Duration) {
	t.Helper()
	if (in == 0) != p.RequeueAt.IsZero() || (in != 0 && !p.RequeueAt.Equal(now.Add(in))) {
		t.Errorf("RequeueAt = %v, want in %v", p.RequeueAt, in)
	}
}

// soundness returns what is wrong with a plan, whatever the snapshot.
func soundness(s *Snapshot, p Plan) error {
	seen := map[string]bool{}
	for _, a := range p.Actions {
		if err := errors.Join(sparing(s, a), untimely(s, a)); err != nil {
			return err
		}
		if a.Verb == Create && (a.Pod != nil || a.Revision == nil) {
			return fmt.Errorf("%v: a new Pod has a revision and no Pod", a)
		}
		if slices.Contains([]Verb{Create, Discard, Provide}, a.Verb) {
			continue
		}
		if a.Pod == nil {
			return fmt.Errorf("%v: no Pod", a)
		}
		if seen[a.Pod.Name] {
			return fmt.Errorf("%v: a second action for the Pod", a)
		}
		seen[a.Pod.Name] = true
		if a.Pod.DeletionTimestamp != nil {
			return fmt.Errorf("%v: the Pod is terminating", a)
		}
		if err := bypassed(s, a); err != nil {
			return err
		}
	}
	return nil
}

// bypassed returns an error if an action takes a Pod past a hook that holds it.
func bypassed(s *Snapshot, a Action) error {
	at := apps.LifecycleState(a.Pod.Labels[apps.LabelLifecycleState])
	hooked := func(hook lifecycle.Hook) bool { return hook.Holds(a.Pod.Labels, a.Pod.Finalizers) }
	changes := a.Verb == Update || a.Verb == Continue
	switch {
	case a.Verb == Delete && hooked(s.Spec.Hooks.PreDelete):
		return fmt.Errorf("%v: preDelete holds the Pod", a)
	case changes && at != apps.StateUpdating && hooked(s.Spec.Hooks.InPlaceUpdate):
		return fmt.Errorf("%v: inPlaceUpdate holds the Pod", a)
	case changes && at == apps.StatePreparingDelete:
		return fmt.Errorf("%v: the Pod is about to be deleted", a)
	}
	return nil
}

// untimely returns an error if an action does not suit a set that is being deleted, or a
// deletion that the API server has deferred.
func untimely(s *Snapshot, a Action) error {
	switch {
	case a.Verb == Delete && a.Pod != nil && s.Now.Before(s.Deferred[a.Pod.UID].Until):
		return fmt.Errorf("%v: the API server has asked to wait", a)
	case s.Deletion == LetGo, s.Deletion == Drain && a.Verb != Delete && a.Verb != Move:
		return fmt.Errorf("%v: the set is being deleted", a)
	}
	return nil
}

func tally(s *Snapshot) Counts {
	counts, _ := Review(s)
	return counts
}

func waiting(s *Snapshot) []Blocked {
	_, blocked := Review(s)
	return blocked
}
