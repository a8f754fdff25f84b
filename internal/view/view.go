// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

// Objects are the objects of which a view is made, as the API server has them.
type Objects struct {
	// Now is the time of the view.
	Now time.Time
	// Set is the CloneSet; nil if the Pods have another controller.
	Set *apps.CloneSet
	// Other describes a workload of another kind.
	Other Summary
	// Pods are the workload's own.
	Pods []*corev1.Pod
	// Pulls are the CloneSet's pull Pods.
	Pulls []*corev1.Pod
	// Revisions are the CloneSet's ControllerRevisions.
	Revisions []*appsv1.ControllerRevision
	// Registrations are all of the namespace.
	Registrations []*usherv1alpha1.Registration
	// Leases are the leases of the hook operator's leaders that the caller may read.
	Leases []*coordinationv1.Lease
}

// Each returns the objects of one type.
func Each[T metav1.Object](all []metav1.Object) (found []T) {
	for _, object := range all {
		if one, ok := object.(T); ok {
			found = append(found, one)
		}
	}
	return found
}

// Gather selects the objects that belong to a workload from those of its namespace. The Pods of a
// Deployment belong to its ReplicaSets.
func Gather(now time.Time, workload metav1.Object, all []metav1.Object) Objects {
	o := Objects{Now: now, Registrations: Each[*usherv1alpha1.Registration](all), Leases: Each[*coordinationv1.Lease](all)}
	switch w := workload.(type) {
	case *apps.CloneSet:
		o.Set = w
	case *corev1.Pod:
		o.Pods, o.Other = append(o.Pods, w), Summary{Kind: "Pod", Namespace: w.Namespace, Name: w.Name, Desired: 1, Pods: 1}
	default:
		o.Other = SummaryOf(workload)
	}
	above := []types.UID{workload.GetUID()}
	above = append(above, list.Map(owned(Each[*appsv1.ReplicaSet](all), above), (*appsv1.ReplicaSet).GetUID)...)
	o.Pods = append(o.Pods, owned(Each[*corev1.Pod](all), above)...)
	pullsForThis := func(pod *corev1.Pod) bool { return pod.Labels[apps.LabelPullsFor] == string(workload.GetUID()) }
	o.Pulls = list.Only(Each[*corev1.Pod](all), pullsForThis)
	o.Revisions = owned(Each[*appsv1.ControllerRevision](all), above)
	slices.SortFunc(o.Revisions, func(a, b *appsv1.ControllerRevision) int { return cmp.Compare(a.Revision, b.Revision) })
	return o
}

// owned returns the objects that one of the owners controls.
func owned[T metav1.Object](all []T, owners []types.UID) []T {
	return slices.DeleteFunc(all, func(one T) bool {
		owner := metav1.GetControllerOfNoCopy(one)
		return owner == nil || !slices.Contains(owners, owner.UID)
	})
}

// Summary is a workload as a whole.
type Summary struct {
	// Kind and Name as in kubectl: "CloneSet", "Deployment".
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Phase is one word for the rollout; see the Phase constants.
	Phase Phase `json:"phase"`
	// Desired is spec.replicas. The others count Pods as the status does.
	Desired   int `json:"desired"`
	Pods      int `json:"pods"`
	Ready     int `json:"ready"`
	Available int `json:"available"`
	Updated   int `json:"updated"`
	// ToUpdate is how many Pods are to have the update revision.
	ToUpdate int `json:"toUpdate"`
	// Budget is the CloneSet's; nil for a workload of another kind.
	Budget *Budget `json:"budget,omitempty"`
	// Deadline is when the rollout will have stalled for too long; zero without one.
	Deadline time.Time `json:"deadline,omitzero"`
	// Unseen is the last change of the spec while the workload's controller has not seen it; nil otherwise.
	Unseen *Unseen `json:"unseen,omitempty"`
	// Problems are conditions that somebody has to act on.
	Problems []Problem `json:"problems,omitempty"`
}

// Phase is how far a rollout is.
type Phase string

// The phases.
const (
	// PhaseDone: every Pod that is to have the update revision has it, serves, and is listed by its registries.
	PhaseDone Phase = "Done"
	// PhaseDegraded: it would be Done, but a Pod that serves is in trouble: callers do not find it, or
	// nothing takes it out of service before it is deleted.
	PhaseDegraded Phase = "Degraded"
	// PhaseUpdating: Pods have yet to be updated, or to serve.
	PhaseUpdating Phase = "Updating"
	// PhasePaused: spec.updateStrategy.paused.
	PhasePaused Phase = "Paused"
	// PhaseStalled: nothing moved for spec.progressDeadlineSeconds.
	PhaseStalled Phase = "Stalled"
	// PhaseDeleting: the workload is being deleted.
	PhaseDeleting Phase = "Deleting"
	// PhaseInvalid: the spec cannot be carried out.
	PhaseInvalid Phase = "Invalid"
)

// Budget says how many Pods an update may affect, and how many it does.
type Budget struct {
	Method         string `json:"method"`
	Partition      int    `json:"partition"`
	MaxUnavailable int    `json:"maxUnavailable"`
	MaxSurge       int    `json:"maxSurge"`
	// Unavailable is how many of the desired Pods do not serve.
	Unavailable int `json:"unavailable"`
}

// String says how much of the budget is in use.
func (b *Budget) String() string {
	text := fmt.Sprintf("%d of %d unavailable", b.Unavailable, b.MaxUnavailable)
	if b.MaxSurge > 0 {
		text += fmt.Sprintf(", surge %d", b.MaxSurge)
	}
	if b.Partition > 0 {
		text += fmt.Sprintf(", partition %d", b.Partition)
	}
	return text
}

// Problem is something that somebody has to act on.
type Problem struct {
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"since,omitzero"`
}

// Revision is one version of the template.
type Revision struct {
	Name   string `json:"name"`
	Number int64  `json:"number"`
	// Pods is how many have it.
	Pods int `json:"pods"`
	// Current means that it is the revision of the last finished rollout, Update that it is the
	// template's.
	Current bool `json:"current,omitempty"`
	Update  bool `json:"update,omitempty"`
	// Images are those of the containers, as "name=image".
	Images []string `json:"images,omitempty"`
	// Cause is the annotation kubernetes.io/change-cause.
	Cause   string    `json:"cause,omitempty"`
	Created time.Time `json:"created,omitzero"`
}

// Pod is one Pod of a workload.
type Pod struct {
	Name      string `json:"name"`
	Node      string `json:"node,omitempty"`
	Revision  string `json:"revision,omitempty"`
	Updated   bool   `json:"updated"`
	State     string `json:"state"`
	Ready     bool   `json:"ready"`
	Available bool   `json:"available"`
	// Registered is the status of the condition usher.dev/registered: True, False, Unknown,
	// or empty if no Registration selects the Pod. It is False for a Pod that its Service does not
	// list, although the condition is True.
	Registered string `json:"registered,omitempty"`
	// Entries are the Pod's entries in all registries that its Registrations name, sorted.
	Entries  []Entry   `json:"entries,omitempty"`
	Restarts int       `json:"restarts"`
	Images   []string  `json:"images,omitempty"`
	Created  time.Time `json:"created"`
	// Changed is since when it has had its state, its readiness and its entries.
	Changed time.Time `json:"changed"`
	// Waits are what the Pod waits for, the most urgent first.
	Waits []Wait `json:"waits,omitempty"`
	// Trouble means that the wait will not end by itself.
	Trouble bool `json:"trouble,omitempty"`
	// ScaleIn is the Pod's place among its owner's Pods when that is scaled in; nil unless Usher orders them.
	ScaleIn *ScaleIn `json:"scaleIn,omitempty"`
	// joining means that the Pod should be in a registry, and does not show that it is.
	joining bool
}

// ScaleIn is a deletion cost that Usher has written to a Pod.
type ScaleIn struct {
	// Cost is the cost: the Pods with the lowest one go first.
	Cost int `json:"cost"`
	// UnderWay is what was under way when it was written, At.
	UnderWay string    `json:"underWay"`
	At       time.Time `json:"at"`
}

// Entry says whether a registry lists a Pod, as far as the Pod shows it.
type Entry = regplan.Shows

// Wait is one thing that a Pod waits for.
type Wait struct {
	// What describes the wait in a sentence without the Pod's name.
	What string `json:"what"`
	// Gate and Key are the gate and the key of the hook that holds the Pod; empty for other waits.
	Gate string `json:"gate,omitempty"`
	Key  string `json:"key,omitempty"`
	// Unanswered means that no hook operator that this view knows answers.
	Unanswered bool `json:"unanswered,omitempty"`
	// Registrations are the Registrations that answer, Registries the registries that have to confirm:
	// none, if the Pod itself has to say that nothing is under way.
	Registrations []string `json:"registrations,omitempty"`
	Registries    []string `json:"registries,omitempty"`
	// Since is when it began; zero if unknown. Until is when it ends if all goes well.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Deadline is when the wait is given up, and OnDeadline what happens then.
	Deadline   time.Time `json:"deadline,omitzero"`
	OnDeadline string    `json:"onDeadline,omitempty"`
	// Next is a command that helps. Instead is a command that ends the wait at a price, which it names.
	Next    string `json:"next,omitempty"`
	Instead string `json:"instead,omitempty"`
}

// Workload is a workload with its Pods.
type Workload struct {
	Summary
	// Revisions that Pods have, that are current or the template's; the newest first.
	Revisions []Revision `json:"revisions,omitempty"`
	// Registers describes what Registrations do for its Pods.
	Registers []Registers `json:"registers,omitempty"`
	// Previous is the revision that an undo leads to; nil without another revision.
	Previous *Revision `json:"previous,omitempty"`
	// Members are the Pods in name order.
	Members []Pod `json:"podList"`
}
