// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Target is a service in a registry: what one List covers.
type Target = usherv1alpha1.Target

func compareTargets(a, b Target) int {
	return cmp.Or(strings.Compare(a.Registry, b.Registry), strings.Compare(a.Prefix, b.Prefix),
		strings.Compare(a.Service, b.Service))
}

// RegistryState is what a pass knows of a Registry object.
type RegistryState struct {
	// Prefix is where new entries go.
	Prefix string
	// Denied means that spec.namespaces leaves this namespace out.
	Denied bool
	// Leaving means that the object is being deleted: existing entries may be kept up and
	// removed, and no Registration may begin to use it.
	Leaving bool
	// HoldsBack means that entries of weight 0 stay there and get no callers.
	HoldsBack bool
	// Gated means that Kubernetes lists Pods there while they are Ready: nothing is
	// written, and the Pods' readiness gate decides.
	Gated bool
	// Follows means that somebody else writes the entries there, and Usher only lists them.
	Follows bool
	// Overrides means that entries which applications write can be taken out of service there.
	Overrides bool
	// Counts means that entries on their way out say how many connections they still have.
	Counts bool
	// Label is the label by which Pods enter and leave the Services of a gated Registry; zero if it is
	// the readiness gate.
	Label ServiceLabel
	// Rules are those of spec.services, in their order; Strict refuses services that none
	// names.
	Rules  []ServiceRule
	Strict bool
	// Users are the Registrations of all namespaces that may have entries there, by the
	// Registry's status.
	Users []usherv1alpha1.RegistryUser
	// Fold is what the registry makes of a service's name; nil if it tells all names apart.
	Fold func(string) string
	// Own means that services are kept in the snapshot's namespace.
	Own bool
	// Outage is when it last did not answer.
	Outage Outage
	// Err is why the registry could not be used when it was last tried.
	Err error
}

// Listing is what a target listed in this pass.
type Listing struct {
	// Entries are those of all owners.
	Entries []registry.Entry
	// Selector has the labels by which a Service chooses its Pods; nil for other registries.
	Selector map[string]string
	// Err is why Entries is not known.
	Err error
}

// Snapshot is everything that a plan is made from. Nothing in it may change while a plan
// is made, and the plan shares its objects.
type Snapshot struct {
	// Now is the time of the pass, by the clock of Process.
	Now     time.Time
	Process string
	// Cluster names the cluster, usually by the UID of the namespace kube-system.
	Cluster string
	// Namespace is the one that the pass reconciles.
	Namespace string
	// Registrations of the namespace, sorted by name.
	Registrations []*usherv1alpha1.Registration
	// Pods are all of the namespace, sorted by name.
	Pods []*corev1.Pod
	// CloneSets are all of the namespace, sorted by name.
	CloneSets []*appsv1alpha1.CloneSet
	// Budgets are the PodDisruptionBudgets of the namespace, sorted by name.
	Budgets []*policyv1.PodDisruptionBudget
	// Owners are the controllers that the Pods with requests for their deletion name, and those of Pods
	// that leave Services by a label. Nodes are the nodes of the former, by name. Ending means that the namespace is being deleted.
	Owners map[OwnerRef]Owner
	Nodes  map[string]Node
	Ending bool
	// Evictions are Kubernetes' of the namespace that name Usher as a responder, sorted by name.
	Evictions []Eviction
	// Finish means that Usher deletes Pods that have drained for a reason that holds.
	Finish bool
	// LoopbackPods means that Pods with a loopback address are asked as well: those of a development cluster.
	LoopbackPods bool
	// Registries by name; one that is missing here does not exist.
	Registries map[string]RegistryState
	// Known has "namespace/name" of every Registration of this namespace, and of others that own
	// listed entries.
	Known map[string]bool
	// Listings of this pass. A target that is missing was not listed.
	Listings map[Target]Listing
	// Followed has the targets of this pass whose entries somebody else writes.
	Followed map[Target]Followed
	// Failed has, for each target, why changes that this pass tried were not made: by
	// entry ID, or under "" for all of them.
	Failed map[Target]map[string]error
	// Left has, for each target, the UIDs of the Pods whose entries this pass has taken out: callers got them until
	// then, whatever an earlier pass has seen.
	Left map[Target]map[string]bool
	// Due are targets to be compared although no Pod asks for it.
	Due map[Target]bool
	// Sweep are targets whose orphans are looked for in this pass.
	Sweep map[Target]bool
	// Suspects are the orphans that the previous sweep of a target found and left.
	Suspects map[Target]map[string]bool
	// HookKeys are those of users' choice that Usher may write, and Refusals the API server's last
	// answers to such a write, by the Pod's UID.
	HookKeys Keys
	Refusals map[types.UID]Refusal
	// Answers are what Pods have answered that are asked whether anything is under way.
	Answers map[AskKey]Answer
	// Unlisted and Departures are those of the last plan.
	Unlisted   Unlisted
	Departures Departures
	// Memory makes plans for the same namespace cheaper; nil plans from scratch.
	Memory *Memory
}

// Needs returns the targets that a plan for the snapshot has to list, sorted.
func Needs(snapshot Snapshot) []Target {
	ix := newIndex(snapshot)
	var all []Target
	for _, r := range ix.registrations {
		all = append(all, list.Only(r.former, func(t Target) bool { return !ix.follows(t) })...)
		changed := r.Generation != r.Status.ObservedGeneration
		all = append(all, list.Only(r.current, func(t Target) bool { return changed || ix.Due[t] || ix.Sweep[t] })...)
	}
	for _, p := range ix.pods {
		asked := p.former
		if !p.settled {
			asked = p.all()
		}
		all = append(append(all, ix.asked(p, asked)...), ix.toAsk(p)...)
	}
	return sorted(all)
}

// Targets returns those of every Registration of the snapshot, sorted.
func Targets(snapshot Snapshot) []Target { return newIndex(snapshot).targets() }

func (ix *index) targets() []Target { return sorted(targetsOf(ix.registrations)) }

// sorted sorts targets, and removes duplicates.
func sorted(targets []Target) []Target {
	slices.SortFunc(targets, compareTargets)
	return slices.Compact(targets)
}

// SortedTargets returns a sorted copy without duplicates.
func SortedTargets(targets []Target) []Target { return sorted(slices.Clone(targets)) }

// isSettled reports whether the Pod itself shows that nothing is left to do for it. Targets
// of settled Pods are listed only when they are due.
func (p *pod) isSettled() bool {
	registered := podread.Status(p.Pod, usherv1alpha1.ConditionRegistered)
	switch {
	case p.returns, slices.ContainsFunc(p.hooks, func(h hook) bool { return h.leaving() || p.wanted() }):
		return false
	case len(p.selectedBy) == 0, p.DeletionTimestamp != nil:
		return !p.hasFinalizer() && len(p.ownFinalizers()) == 0
	case p.wanted():
		return registered == "True" && p.protected()
	}
	return !p.isListed() || registered != "True" && (!p.hasFinalizer() || registered == "False")
}

// ownFinalizers are those that Usher may remove from a terminating Pod.
func (p *pod) ownFinalizers() []string {
	var own []string
	if p.hasFinalizer() {
		own = append(own, usherv1alpha1.Finalizer)
	}
	for _, r := range p.all() {
		for _, key := range r.hookFinalizers(p.Pod) {
			if !slices.Contains(own, key) {
				own = append(own, key)
			}
		}
	}
	return own
}

// Slim returns a Pod with what plans are made from, and no more: for Pods of other
// controllers, of which a cluster may have many. It shares maps and lists with the Pod. Its one
// container has all named ports.
func Slim(pod *corev1.Pod) *corev1.Pod {
	short := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Generation: pod.Generation,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			Labels: pod.Labels, Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences, Finalizers: pod.Finalizers,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, ServiceAccountName: pod.Spec.ServiceAccountName, ReadinessGates: pod.Spec.ReadinessGates,
			Volumes: podread.OwnClaims(pod),
		},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, PodIPs: podread.Addresses(pod), HostIP: pod.Status.HostIP,
		},
	}
	var ports []corev1.ContainerPort
	for port := range namedPorts(pod) {
		ports = append(ports, corev1.ContainerPort{Name: port.Name, ContainerPort: port.ContainerPort})
	}
	if len(ports) > 0 {
		short.Spec.Containers = []corev1.Container{{Ports: ports}}
	}
	short.Status.Conditions = slices.Clip(list.Only(pod.Status.Conditions, func(c corev1.PodCondition) bool { return readsCondition(pod, c.Type) }))
	return short
}

// readsCondition reports whether plans depend on a condition of a Pod.
func readsCondition(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	switch kind {
	case corev1.PodReady, corev1.ContainersReady, usherv1alpha1.ConditionRegistered:
		return true
	}
	return slices.Contains(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: kind})
}
