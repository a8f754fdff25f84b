// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
	"github.com/usher-dev/usher/test/model"
)

// change changes a Pod as a user or its CloneSet does.
func (s *simulation) change(pod *corev1.Pod, what string, do func(*corev1.Pod)) {
	s.log("%s: %s", pod.Name, what)
	model.Change(s.server, "user", client.ObjectKeyFromObject(pod), "", do)
}

// edit changes a Registration or Registry.
func edit[T client.Object](s *simulation, namespace, name string, change func(T)) {
	model.Change(s.server, "user", types.NamespacedName{Namespace: namespace, Name: name}, "", change)
}

func (s *simulation) enter(pod *corev1.Pod, state apps.LifecycleState, restores string) {
	s.serial++
	s.entered[pod.UID] = s.clock.Now()
	s.change(pod, "enters "+string(state), func(pod *corev1.Pod) {
		pod.Labels[apps.LabelLifecycleState] = string(state)
		// Unique, so that the times at a gate can be distinguished.
		entered := epoch.Add(time.Duration(s.serial) * time.Second).Format(time.RFC3339)
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, apps.AnnotationLifecycleTimestamp, entered)
		if restores != "" {
			pod.Labels[restores] = "true"
		}
		if state == apps.StateUpdating {
			pod.Spec.Containers[0].Image = fmt.Sprintf("nginx:%d", s.serial)
		}
	})
}

// create creates a Pod of the CloneSet.
func (s *simulation) create(name string, state apps.LifecycleState, labels ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels: map[string]string{"app": "nginx", keyCreated: "true", keyInPlace: "true", keyDelete: "true",
				apps.LabelLifecycleState: string(state)},
			OwnerReferences: s.ownerOf(name),
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "nginx", Image: "nginx:1"}}},
	}
	if s.features.hurries {
		pod.Spec.TerminationGracePeriodSeconds = new(int64(ownGrace))
	}
	switch {
	case s.features.labelled:
		pod.Labels[usher.LabelInService] = pick(s, "true", usher.OutOfService)
	case s.features.service:
		pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: usher.ConditionRegistered}}
	}
	for _, track := range labels {
		pod.Labels["track"] = track
	}
	if state == "" {
		delete(pod.Labels, apps.LabelLifecycleState)
	}
	s.log("%s: is created with %v", name, pod.Labels)
	return s.make(pod).(*corev1.Pod)
}

// populate creates ready Pods that wait to be registered.
func (s *simulation) populate(pods int) {
	for n := range pods {
		name := s.create(fmt.Sprintf("nginx-%03d", n), apps.StateNormal).Name
		s.kubelet(s.pod(name))
		s.kubelet(s.pod(name))
	}
}

// kubelet takes the next step of a Pod's kubelet.
func (s *simulation) kubelet(pod *corev1.Pod) {
	at := client.ObjectKeyFromObject(pod)
	if s.runs[pod.UID] == nil {
		s.runs[pod.UID] = &model.Run{}
	}
	run := s.runs[pod.UID]
	switch model.Next(pod) {
	case model.Bind:
		model.Change(s.server, "scheduler", at, "", func(pod *corev1.Pod) { pod.Spec.NodeName = s.nodeFor(pod) })
	case model.Sync:
		for _, task := range run.Sync(pod, model.Node{}) {
			s.serial++
			run.Start(task.Container, fmt.Sprintf("containerd://%04d", s.serial), s.clock.Now())
		}
		s.report(pod)
	case model.Stop:
		run.End()
		checktest.NoError(s, s.server.Delete("kubelet", pod, client.Preconditions{UID: &pod.UID}, client.GracePeriodSeconds(0)))
	}
}

// kubelets takes the next step of every Pod.
func (s *simulation) kubelets() {
	for _, pod := range s.pods() {
		s.kubelet(pod)
	}
	s.endpoints()
	s.balance()
}

func (s *simulation) report(pod *corev1.Pod) {
	report := s.runs[pod.UID].Report(pod, model.Node{})
	model.Change(s.server, "kubelet", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) {
		if pod.Status.PodIP == "" {
			s.serial++
			pod.Status.PodIP = fmt.Sprintf("10.0.%d.%d", s.serial/250, s.serial%250+1)
			if s.features.applications {
				pod.Status.PodIP = s.freeAddress()
			}
		}
		report(pod, s.clock.Now())
		// The kubelet's reason tells a Pod that waits for its gates from one whose node is silent.
		waits := !podread.IsTrue(pod, corev1.PodReady) && podread.IsTrue(pod, corev1.ContainersReady)
		podread.Condition(pod, corev1.PodReady).Reason = map[bool]string{true: "ReadinessGatesNotReady"}[waits]
	})
	s.log("%s: ready is %s", pod.Name, model.Condition(s.pod(pod.Name), corev1.PodReady).Status)
}

// crash ends the containers of a Pod; its kubelet starts them again.
func (s *simulation) crash(pod *corev1.Pod) {
	if run := s.runs[pod.UID]; run != nil && model.Next(pod) == model.Sync {
		run.End()
		s.report(pod)
	}
}

// silence lets the nodes of ready Pods fall silent; a node is back when its kubelet reports.
func (s *simulation) silence(pods ...*corev1.Pod) {
	for _, pod := range pods {
		_, silent := plan.Silent(pod)
		switch ready, _ := plan.Ready(pod); {
		case silent:
			s.report(pod)
		case ready && pod.DeletionTimestamp == nil:
			s.log("%s: its node is silent", pod.Name)
			model.Change(s.server, "nodes", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) {
				model.SetCondition(pod, corev1.PodReady, false, s.clock.Now())
			})
		}
	}
}

// move is what a CloneSet controller may do with a Pod in a state.
type move struct {
	from apps.LifecycleState
	// label, if any, has to have this value first.
	label, value string
	to           apps.LifecycleState
	// restores is a label that the controller puts back.
	restores string
	// back reports whether the move leads away from Normal, or undoes something.
	back bool
}

// terminated stands for the end of a Pod.
const terminated apps.LifecycleState = "terminated"

// moves is the CloneSet controller, as the hook operator sees it.
var moves = []move{
	{from: apps.StatePreparingNormal, label: keyPreNormal, value: "true", to: apps.StateNormal},
	{from: apps.StateNormal, to: apps.StatePreparingDelete, back: true},
	{from: apps.StateNormal, to: apps.StatePreparingUpdate, back: true},
	{from: apps.StateNormal, to: apps.StatePreparingUpdate, back: true},
	{from: apps.StatePreparingUpdate, label: keyInPlace, value: "true", to: apps.StateNormal, back: true},
	{from: apps.StatePreparingUpdate, label: keyInPlace, value: "false", to: apps.StateUpdated, back: true},
	{from: apps.StatePreparingUpdate, label: keyInPlace, value: "false", to: apps.StateUpdating},
	{from: apps.StateUpdating, to: apps.StateUpdated},
	{from: apps.StateUpdated, label: keyInPlace, value: "true", to: apps.StateNormal},
	{from: apps.StatePreparingDelete, to: apps.StatePreparingNormal, restores: keyDelete, back: true},
	{from: apps.StatePreparingDelete, label: keyDelete, value: "false", to: terminated},
	{from: apps.StatePreparingDelete, label: keyDelete, value: "false", to: terminated},
}

// movesOf are those that a CloneSet controller may make with the Pod now; forward, only
// those that lead to Normal or to the end.
func movesOf(pod *corev1.Pod, forward bool) []move {
	possible := slices.DeleteFunc(slices.Clone(moves), func(m move) bool {
		return m.from != plan.StateOf(pod) || m.label != "" && pod.Labels[m.label] != m.value
	})
	if pod.Labels[apps.LabelSpecifiedDelete] == "true" {
		possible = slices.DeleteFunc(possible, func(m move) bool {
			return m.from == apps.StateNormal && m.to != apps.StatePreparingDelete || m.to == apps.StatePreparingNormal
		})
		for i := range possible {
			possible[i].back = possible[i].back && possible[i].to != apps.StatePreparingDelete
		}
	}
	return slices.DeleteFunc(possible, func(m move) bool { return forward && m.back })
}

// reconcile makes one of the moves that a CloneSet controller may make with the Pod.
func (s *simulation) reconcile(pod *corev1.Pod, forward bool) {
	possible := movesOf(pod, forward)
	// A drain takes a while; it is not undone at every turn.
	if len(possible) == 0 || pod.DeletionTimestamp != nil || !s.controlled(pod) || s.asks(actorCloneSet, pod) || possible[0].back && len(possible) == 1 && s.random.IntN(4) > 0 {
		return
	}
	switch m := possible[s.random.IntN(len(possible))]; {
	case m.to == terminated:
		s.ask(actorCloneSet, pod, false, 0)
	case m.from == apps.StateUpdating && s.runs[pod.UID].Lacks(0, &pod.Spec.Containers[0]) != "":
		// The kubelet has not updated the Pod yet.
	default:
		s.enter(pod, m.to, m.restores)
	}
}

// controlled reports whether the CloneSet controls the Pod, and is not being deleted.
func (s *simulation) controlled(pod *corev1.Pod) bool {
	return slices.ContainsFunc(model.List[*apps.CloneSet](s.server.Objects), func(set *apps.CloneSet) bool {
		return set.DeletionTimestamp == nil && string(set.UID) == model.OwnerOf(pod)
	})
}

func (s *simulation) delete(pod *corev1.Pod) {
	s.log("%s: is deleted", pod.Name)
	checktest.NoError(s, s.server.Delete("user", pod))
}

// actions happen in all runs, leavings in those with the guard, each as often as it is likely.
var actions = slices.Concat(
	times(5, func(s *simulation, _ *corev1.Pod) { s.createOne() }),
	times(10, func(s *simulation, _ *corev1.Pod) { s.kubelets() }),
	times(1, (*simulation).crash),
	times(17, func(s *simulation, pod *corev1.Pod) { s.reconcile(pod, false) }),
	times(3, func(s *simulation, _ *corev1.Pod) { s.fault() }),
	times(1, (*simulation).drift),
	times(12, func(s *simulation, _ *corev1.Pod) { s.elapse(4 * time.Second) }),
	times(7, func(s *simulation, _ *corev1.Pod) { s.probe() }),
	times(2, func(s *simulation, _ *corev1.Pod) { s.replace() }),
	times(2, func(s *simulation, pod *corev1.Pod) { s.silenceSome(pod) }),
	times(1, func(s *simulation, pod *corev1.Pod) { s.weigh(pod, pick(s, "5", "70", "heavy", "")) }),
	times(1, func(s *simulation, _ *corev1.Pod) { s.bypass() }),
	times(2, (*simulation).relabel),
	times(1, func(s *simulation, pod *corev1.Pod) { s.ask(actorUser, pod, false, s.patience()) }),
	times(35, func(s *simulation, _ *corev1.Pod) { s.passAtRandom() }),
)

var leavings = slices.Concat(
	times(3, func(s *simulation, pod *corev1.Pod) { s.ask(actorUser, pod, true, s.patience()) }),
	times(2, (*simulation).drainNode),
	times(3, (*simulation).scale),
	times(1, (*simulation).force),
	times(1, func(s *simulation, _ *corev1.Pod) { s.end(actorUser, actorCollector, "CloneSet") }),
	times(1, func(s *simulation, _ *corev1.Pod) { s.end(actorNamespace, actorNamespace, "CloneSet", "Registration") }),
	times(2, (*simulation).mislabel),
	times(2, func(s *simulation, _ *corev1.Pod) { s.guardian.webhook = pick(s, there, there, there, away, slow) }),
	times(8, func(s *simulation, _ *corev1.Pod) { s.server.CountBudgets() }),
)

func times(n int, do func(*simulation, *corev1.Pod)) []func(*simulation, *corev1.Pod) {
	return slices.Repeat([]func(*simulation, *corev1.Pod){do}, n)
}

// pick draws one of several values.
func pick[T any](s *simulation, from ...T) T { return from[s.random.IntN(len(from))] }

// step takes one action.
func (s *simulation) step() {
	s.elapse(500 * time.Millisecond)
	s.collect()
	s.scaleOut()
	if len(s.pods()) == 0 {
		s.createOne()
	}
	if len(s.pods()) == 0 { // what held them has not gone yet
		s.passAtRandom()
		return
	}
	pod, possible := pick(s, s.pods()...), actions
	if s.features.guard {
		possible = slices.Concat(actions, leavings)
	}
	if s.features.misspells {
		possible = append(slices.Clip(possible), (*simulation).misspell)
	}
	if s.features.hurries {
		possible = append(slices.Clip(possible), times(6, (*simulation).hurry)...)
	}
	if s.features.notices {
		possible = append(slices.Clip(possible), times(4, func(s *simulation, _ *corev1.Pod) { s.notify() })...)
	}
	if s.features.requests {
		possible = append(slices.Clip(possible), slices.Concat(
			times(4, (*simulation).requestEviction), times(2, func(s *simulation, _ *corev1.Pod) { s.withdraw() }),
			times(10, func(s *simulation, _ *corev1.Pod) { s.coordinate() }),
		)...)
	}
	if s.features.tenants {
		possible = append(slices.Clip(possible), (*simulation).scribble)
	}
	if s.features.applications {
		possible = append(slices.Clip(possible), times(12, (*simulation).act)...)
	}
	if s.features.follower {
		possible = append(slices.Clip(possible), (*simulation).flap, (*simulation).throttle)
	}
	pick(s, possible...)(s, pod)
	s.call()
	s.check()
}

func (s *simulation) elapse(atMost time.Duration) {
	s.wait(time.Duration(s.random.Int64N(int64(atMost))))
}

func (s *simulation) createOne() {
	names := 4
	if s.features.guard {
		names = 6
	}
	s.createNamed(fmt.Sprintf("nginx-%d", s.random.IntN(names)))
}

// scaleOut has the ReplicaSet create a Pod that it lacks, after a while.
func (s *simulation) scaleOut() {
	if s.features.guard && s.surplus() < 0 && s.random.IntN(4) == 0 {
		s.createNamed(pick(s, "nginx-2", "nginx-4"))
	}
}

func (s *simulation) createNamed(name string) {
	enough := s.features.guard && owners[name] == ofReplicaSet && s.surplus() >= 0
	if s.pod(name) != nil || s.ending != "" || enough {
		return
	}
	var track []string
	if s.features.second && s.random.IntN(2) == 0 {
		track = []string{edge}
	}
	s.kubelet(s.create(name, s.stateOfNew(name), track...)) // it is bound at once
	if owners[name] == ofReplicaSet && s.random.IntN(2) == 0 {
		s.setCost(s.pod(name), "5")
	}
}

// stateOfNew is the state of a new Pod: those without a CloneSet have none.
func (s *simulation) stateOfNew(name string) apps.LifecycleState {
	if s.features.guard && owners[name] != "" {
		return ""
	}
	return apps.StatePreparingNormal
}

// silenceSome silences the node of one Pod, and now and then those of all Pods.
func (s *simulation) silenceSome(pod *corev1.Pod) {
	pods := []*corev1.Pod{pod}
	if s.random.IntN(3) == 0 {
		pods = s.pods()
	}
	s.silence(pods...)
}

// replace starts a new process whose cache may be older than the previous one's.
func (s *simulation) replace() {
	s.log("operator restarts, with an old cache")
	s.cached = pick(s, s.views...)
	s.restart()
}

// weigh changes the annotation that the weight is taken from.
func (s *simulation) weigh(pod *corev1.Pod, weight string) {
	s.change(pod, "has the weight "+weight, func(pod *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, weightAnnotation, weight)
	})
}

// relabel moves a Pod between the two Registrations: to one of them, both or none.
func (s *simulation) relabel(pod *corev1.Pod) {
	if s.features.second {
		s.label(pod, pick(s, "nginx", "nginx", "other"), pick(s, edge, edge, "stable"))
	}
}

func (s *simulation) label(pod *corev1.Pod, app, track string) {
	s.change(pod, fmt.Sprintf("is labelled %s, %s", app, track), func(pod *corev1.Pod) {
		pod.Labels["app"], pod.Labels["track"] = app, track
	})
}

// bypass deletes a Registration past its finalizer, or creates it again.
func (s *simulation) bypass() {
	if s.ending != "" || s.features.applications { // nobody would know any more what is overridden
		return
	}
	if s.absent == nil {
		name := "nginx"
		if s.features.second && s.random.IntN(2) == 0 {
			name = edge
		}
		s.absent = s.vanish(name)
		return
	}
	s.log("Registration %s is created again", s.absent.Name)
	s.make(s.absent)
	s.absent = nil
}

// vanish deletes a Registration past its finalizer, and returns one to create again.
func (s *simulation) vanish(name string) *usher.Registration {
	s.log("Registration %s vanishes", name)
	r := model.Get[*usher.Registration](s.server.Objects, types.NamespacedName{Namespace: namespace, Name: name})
	edit(s, namespace, name, func(r *usher.Registration) { r.Finalizers = nil })
	checktest.NoError(s, s.server.Delete("user", r))
	return &usher.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: r.Spec}
}

// passAtRandom lets the operator make a pass, and perhaps crash in it.
func (s *simulation) passAtRandom() {
	if s.random.IntN(3) > 0 {
		s.relist()
	}
	s.process.left = unlimited
	if s.random.IntN(6) == 0 {
		s.process.left = 1 + s.random.IntN(6)
	}
	over := namespace
	if s.features.tenants && s.random.IntN(3) == 0 {
		over = pick(s, tenants...)
	}
	s.passOver(over)
}

// refresh brings the caches up to date.
func (s *simulation) refresh() {
	before := s.cached[kindEviction]
	s.cached = s.server.Objects.Clone()
	s.past.caughtUp(s.cached)
	if s.features.requests && !s.calm && s.fates.IntN(3) == 0 { // each kind has a watch of its own
		s.cached[kindEviction] = before
	}
	s.views = append(s.views, s.cached)
	s.views = s.views[max(len(s.views)-5, 0):]
}

// passes makes passes with an up-to-date cache.
func (s *simulation) passes(n int) {
	for range n {
		s.refresh()
		s.pass()
	}
}

func (s *simulation) pass() { s.passOver(namespace) }

func (s *simulation) passOver(which string) {
	s.log("operator passes over %s", which)
	s.noteBalanced()
	s.began = s.clock.Now()
	current := which == namespace && maps.Equal(s.cached[model.Pods], s.server.Objects[model.Pods])
	_, err := s.operator.Reconcile(s.logged(), ctrl.Request{NamespacedName: types.NamespacedName{Name: which}})
	s.ended[which] = err
	if err != nil {
		s.hidesSecret("an error", err.Error())
	}
	switch {
	case errors.Is(err, errCrashed) || s.process.left <= 0:
		s.restart()
	case err != nil:
		s.log("  pass: %v", err)
	case current:
		s.notePass()
		s.judgeLabels()
	}
}

// probe probes the registries.
func (s *simulation) probe() {
	s.process.left = unlimited
	names := slices.Clone(registries)
	if s.features.follower {
		names = append(names, inBalancer)
	}
	for _, name := range slices.Sorted(slices.Values(names)) {
		checktest.Must(s.operator.ReconcileRegistry(s.logged(), ctrl.Request{NamespacedName: types.NamespacedName{Name: name}}))(s)
	}
}

func (s *simulation) fault() {
	s.breaks(pick(s, registries...), pick(s, memory.None, memory.None, memory.None, memory.Down, memory.ReadOnly, memory.Lossy, memory.Busy))
}

// drift removes an entry of a Pod behind the operator's back.
func (s *simulation) drift(pod *corev1.Pod) {
	s.log("discovery loses %s", pod.Name)
	if s.features.applications { // and what its application registers again has no override
		s.deregister("discovery", pod.UID)
		return
	}
	s.stores["discovery"].Drop(service, plan.EntryID(pod))
}
