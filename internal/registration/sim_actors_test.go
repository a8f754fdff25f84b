// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

// change writes to a Pod as somebody else would.
func (s *simulation) change(pod *corev1.Pod, what string, do func(*corev1.Pod)) {
	s.Helper()
	base := pod.DeepCopy()
	do(pod)
	s.current = nil
	s.log("%s: %s", pod.Name, what)
	status := pod.Status
	if err := s.live.Patch(s.Context(), pod, client.MergeFrom(base)); err != nil {
		s.Fatal(err)
	}
	base = pod.DeepCopy()
	pod.Status = status
	if err := s.live.Status().Patch(s.Context(), pod, client.MergeFrom(base)); err != nil {
		s.Fatal(err)
	}
}

func (s *simulation) enter(pod *corev1.Pod, state appsv1alpha1.LifecycleState, restores string) {
	s.Helper()
	s.serial++
	s.entered[pod.UID] = s.clock.Now()
	s.change(pod, "enters "+string(state), func(pod *corev1.Pod) {
		pod.Labels[appsv1alpha1.LabelLifecycleState] = string(state)
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		// Unique, so that each stay at a gate is told apart.
		pod.Annotations[appsv1alpha1.AnnotationLifecycleTimestamp] =
			epoch.Add(time.Duration(s.serial) * time.Second).Format(time.RFC3339)
		if restores != "" {
			pod.Labels[restores] = "true"
		}
	})
}

func (s *simulation) create() {
	s.Helper()
	s.serial++
	name := fmt.Sprintf("nginx-%d", s.random.IntN(4))
	if s.lookup(name) != nil {
		return
	}
	pod := newPod(name, appsv1alpha1.StatePreparingNormal, corev1.ConditionFalse)
	pod.UID = types.UID(fmt.Sprintf("%08d-%s", s.serial, name))
	if s.features.second && s.random.IntN(2) == 0 {
		pod.Labels["track"] = edge
	}
	s.current = nil
	s.log("%s: is created with %v", name, pod.Labels)
	if err := s.live.Create(s.Context(), pod); err != nil {
		s.Fatal(err)
	}
	address := fmt.Sprintf("10.0.0.%d", s.serial%250+1)
	s.change(pod, "has address "+address, func(pod *corev1.Pod) { pod.Status.PodIP = address })
}

// kubelet flips a Pod's readiness.
func (s *simulation) kubelet(pod *corev1.Pod, ready bool) {
	s.Helper()
	if pod.DeletionTimestamp != nil {
		return
	}
	s.change(pod, fmt.Sprintf("ready %t", ready), func(pod *corev1.Pod) {
		setReady(pod, map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[ready])
	})
}

// move is what a CloneSet controller may do with a Pod in a state.
type move struct {
	from appsv1alpha1.LifecycleState
	// label, if any, has to have this value first.
	label, value string
	to           appsv1alpha1.LifecycleState
	// restores is a label that the controller puts back.
	restores string
	// back says that the move undoes something: no Pod at rest makes it.
	back bool
}

// terminated stands for the end of a Pod.
const terminated appsv1alpha1.LifecycleState = "terminated"

// moves is the CloneSet controller, as the hook operator sees it.
var moves = []move{
	{from: appsv1alpha1.StatePreparingNormal, label: keyPreNormal, value: "true", to: appsv1alpha1.StateNormal},
	{from: appsv1alpha1.StateNormal, to: appsv1alpha1.StatePreparingDelete, back: true},
	{from: appsv1alpha1.StateNormal, to: appsv1alpha1.StatePreparingUpdate, back: true},
	{from: appsv1alpha1.StateNormal, to: appsv1alpha1.StatePreparingUpdate, back: true},
	{from: appsv1alpha1.StatePreparingUpdate, label: keyInPlace, value: "true", to: appsv1alpha1.StateNormal, back: true},
	{from: appsv1alpha1.StatePreparingUpdate, label: keyInPlace, value: "false", to: appsv1alpha1.StateUpdated, back: true},
	{from: appsv1alpha1.StatePreparingUpdate, label: keyInPlace, value: "false", to: appsv1alpha1.StateUpdating},
	{from: appsv1alpha1.StateUpdating, to: appsv1alpha1.StateUpdated},
	{from: appsv1alpha1.StateUpdated, label: keyInPlace, value: "true", to: appsv1alpha1.StateNormal},
	{from: appsv1alpha1.StatePreparingDelete, to: appsv1alpha1.StatePreparingNormal, restores: keyDelete, back: true},
	{from: appsv1alpha1.StatePreparingDelete, label: keyDelete, value: "false", to: terminated},
	{from: appsv1alpha1.StatePreparingDelete, label: keyDelete, value: "false", to: terminated},
}

// lead does one thing that a CloneSet controller may do with the Pod now. One
// that finishes has only what leads to rest.
func (s *simulation) lead(pod *corev1.Pod, finishes bool) {
	s.Helper()
	may := slices.DeleteFunc(slices.Clone(moves), func(m move) bool {
		return m.from != plan.StateOf(pod) || m.label != "" && pod.Labels[m.label] != m.value || finishes && m.back
	})
	// A drain takes a while; it is not undone at every turn.
	if len(may) == 0 || pod.DeletionTimestamp != nil || may[0].back && len(may) == 1 && s.random.IntN(4) > 0 {
		return
	}
	m := may[s.random.IntN(len(may))]
	if m.to == terminated {
		s.delete(pod)
		return
	}
	s.enter(pod, m.to, m.restores)
}

func (s *simulation) delete(pod *corev1.Pod) {
	s.Helper()
	s.current = nil
	s.log("%s: is deleted", pod.Name)
	if err := s.live.Delete(s.Context(), pod); client.IgnoreNotFound(err) != nil {
		s.Fatal(err)
	}
}

// happening is something that may happen, and how often.
type happening struct {
	weight int
	do     func(*simulation, *corev1.Pod)
}

var happenings = []happening{
	{5, func(s *simulation, _ *corev1.Pod) { s.create() }},
	{6, func(s *simulation, pod *corev1.Pod) { s.kubelet(pod, s.random.IntN(6) > 0) }},
	{15, func(s *simulation, pod *corev1.Pod) { s.lead(pod, false) }},
	{2, (*simulation).delete},
	{3, func(s *simulation, _ *corev1.Pod) { s.fault() }},
	{2, (*simulation).drift},
	{12, func(s *simulation, _ *corev1.Pod) { s.elapse(4 * time.Second) }},
	{7, func(s *simulation, _ *corev1.Pod) { s.probe() }},
	{2, func(s *simulation, _ *corev1.Pod) { s.replace() }},
	{2, func(s *simulation, pod *corev1.Pod) { s.silence(pod) }},
	{2, func(s *simulation, pod *corev1.Pod) { s.reweigh(pod) }},
	{1, func(s *simulation, _ *corev1.Pod) { s.bypass() }},
	{3, (*simulation).relabel},
	{38, func(s *simulation, _ *corev1.Pod) { s.look() }},
}

// step lets something happen.
func (s *simulation) step() {
	s.Helper()
	s.elapse(500 * time.Millisecond)
	if len(s.pods()) == 0 {
		s.create()
	}
	pod := &s.pods()[s.random.IntN(len(s.pods()))]
	roll := s.random.IntN(100)
	for _, h := range happenings {
		if roll -= h.weight; roll < 0 {
			h.do(s, pod)
			break
		}
	}
	s.check()
}

func (s *simulation) elapse(atMost time.Duration) {
	s.clock.SetTime(s.clock.Now().Add(time.Duration(s.random.Int64N(int64(atMost)))))
}

// replace starts a new process whose cache may be behind the old one's.
func (s *simulation) replace() {
	s.log("operator restarts, with an old cache")
	if len(s.views) > 0 {
		s.cached = s.views[s.random.IntN(len(s.views))]
	}
	s.restart()
}

// bypass takes a Registration away although entries may be there, or brings it back.
func (s *simulation) bypass() {
	s.Helper()
	if s.absent == nil {
		name := "nginx"
		if s.features.second && s.random.IntN(2) == 0 {
			name = edge
		}
		s.absent = s.vanish(name)
		return
	}
	s.log("Registration %s is made anew", s.absent.Name)
	s.serial++
	s.absent.UID = types.UID(fmt.Sprintf("%s-%d", s.absent.Name, s.serial))
	if err := s.live.Create(s.Context(), s.absent); err != nil {
		s.Fatal(err)
	}
	s.absent = nil
}

// vanish deletes a Registration past our finalizer, and returns one to make anew.
func (s *simulation) vanish(name string) *usherv1alpha1.Registration {
	s.Helper()
	var r usherv1alpha1.Registration
	if err := s.live.Get(s.Context(), types.NamespacedName{Namespace: namespace, Name: name}, &r); err != nil {
		s.Fatal(err)
	}
	s.log("Registration %s vanishes", name)
	again := r.DeepCopy()
	again.ResourceVersion, again.Finalizers, again.Status = "", nil, usherv1alpha1.RegistrationStatus{}
	r.Finalizers = nil
	if err := s.live.Update(s.Context(), &r); err != nil {
		s.Fatal(err)
	}
	if err := s.live.Delete(s.Context(), &r); err != nil {
		s.Fatal(err)
	}
	return again
}

// look lets the operator make a pass, and perhaps crash in it.
func (s *simulation) look() {
	s.Helper()
	if s.random.IntN(3) > 0 {
		s.refresh()
	}
	s.process.left = unlimited
	if s.random.IntN(6) == 0 {
		s.process.left = 1 + s.random.IntN(6)
	}
	s.pass()
}

// refresh brings the caches up to date.
func (s *simulation) refresh() {
	s.cached = view{pods: s.pods()}
	for _, list := range []client.ObjectList{&s.cached.registries, &s.cached.registrations} {
		if err := s.live.List(s.Context(), list); err != nil {
			s.Fatal(err)
		}
	}
	s.views = append(s.views, s.cached)
	if len(s.views) > 5 {
		s.views = s.views[1:]
	}
}

// probe looks whether the registries are back.
func (s *simulation) probe() {
	s.process.left = unlimited
	for _, name := range []string{"backup", "discovery"} {
		request := ctrl.Request{NamespacedName: types.NamespacedName{Name: name}}
		if _, err := s.operator.ReconcileRegistry(s.logged(), request); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *simulation) fault() {
	name := []string{"discovery", "backup"}[s.random.IntN(2)]
	fault := []memory.Fault{memory.None, memory.None, memory.None, memory.Down, memory.ReadOnly, memory.Lossy,
		memory.Busy}[s.random.IntN(7)]
	s.breaks(name, fault)
}

// drift loses an entry of a Pod behind the operator's back.
func (s *simulation) drift(pod *corev1.Pod) {
	s.log("discovery loses %s", pod.Name)
	s.stores["discovery"].Drop(service, plan.EntryID(pod))
}

func (s *simulation) pass() {
	s.Helper()
	s.log("operator passes")
	_, err := s.operator.Reconcile(s.logged(), ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}})
	if err != nil {
		s.hush("an error", err.Error())
	}
	if errors.Is(err, errCrashed) || s.process.left <= 0 {
		s.restart()
		return
	}
	if err != nil {
		s.log("  pass: %v", err)
	}
}
