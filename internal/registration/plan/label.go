// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

// The controllers of many load balancers do not look at the readiness of Pods: they take a Pod out when its
// address leaves the EndpointSlices of its Service. Where the Service's selector has a label for that, Usher
// turns the label instead of the readiness gate. The Pod stays Ready, and so nothing but the slices shows that
// it is out. A target whose Registry names such a label is called labelled; it is gated as well, since
// Kubernetes lists its Pods.

// ServiceLabel is the label of Pods in service; zero if there is none.
type ServiceLabel struct{ Key, Value string }

// LabelOf is the label by which Pods enter and leave the Services of a Registry; zero if there is none.
func LabelOf(spec *usherv1alpha1.ServiceRegistry) ServiceLabel {
	if spec == nil || spec.Label == nil {
		return ServiceLabel{}
	}
	label := ServiceLabel{spec.Label.Key, spec.Label.Value}
	if label.Key == "" {
		label.Key = usherv1alpha1.LabelInService
	}
	if label.Value == "" {
		label.Value = "true"
	}
	return label
}

// labelled returns the label by which Pods enter and leave a target, and whether there is one.
func (ix *index) labelled(t Target) (label ServiceLabel, yes bool) {
	label = ix.Registries[t.Registry].Label
	return label, label.Key != ""
}

// hasLabels reports whether Pods of any Registration enter a Service by a label, or may have.
func (ix *index) hasLabels() bool {
	return slices.ContainsFunc(ix.registrations, func(r *registration) bool {
		return slices.ContainsFunc(r.targets(), func(t Target) bool {
			_, yes := ix.labelled(t)
			return yes
		})
	})
}

// opensDoors finds out which Pods Usher can bring into Services and take out. Owners may have become known since
// the Pod was read.
func (ix *index) opensDoors() {
	if ix.labels = ix.hasLabels(); !ix.labels {
		return // as in nearly all namespaces
	}
	for _, p := range ix.pods {
		if door := ix.doorOf(p); door != p.door {
			p.door = door
			p.hooks = hooksAt(p)
			p.settled = p.isSettled()
		}
	}
}

// doorOf reports whether Usher can bring the Pod into any Service, and take it out.
func (ix *index) doorOf(p *pod) bool {
	return p.gate || slices.ContainsFunc(targetsOf(p.all()), func(t Target) bool { return ix.steers(p, t) })
}

// steers reports whether Usher can bring the Pod into a Service, and take it out: by its label, or by its gate.
func (ix *index) steers(p *pod, t Target) bool {
	if label, yes := ix.labelled(t); yes {
		return ix.unturnable(p, label) == ""
	}
	return p.gate
}

// unturnable is why Usher cannot turn the label of a Pod; empty if it can.
func (ix *index) unturnable(p *pod, label ServiceLabel) string {
	if _, has := p.Labels[label.Key]; !has {
		return fmt.Sprintf("it has no label %s: add %s: %q to the labels of its Pod template", label.Key, label.Key, label.Value)
	}
	ref := OwnerOf(p.Pod)
	if ref == nil {
		return ""
	}
	switch owner := ix.Owners[*ref]; {
	case owner.Foreign:
		return fmt.Sprintf("Usher does not know by which labels %s %s selects its Pods, and a Pod that it does not select any more "+
			"is lost to it: use the readiness gate for its Pods", ref.Kind, Shorten(ref.Name, maxName))
	case slices.Contains(owner.Selects, label.Key):
		return fmt.Sprintf("the selector of %s %s has %s, so the Pod would be lost to it: take the label out of that selector, "+
			"or name another one in spec.service.label of the Registry", ref.Kind, Shorten(ref.Name, maxName), label.Key)
	}
	return ""
}

// mayTurn reports whether Usher can turn the label of a Pod now: it knows how the Pod's owner selects its Pods.
func (ix *index) mayTurn(p *pod, label ServiceLabel) bool {
	if ix.unturnable(p, label) != "" {
		return false
	}
	ref := OwnerOf(p.Pod)
	if ref == nil {
		return true
	}
	owner := ix.Owners[*ref]
	return owner.Gone || owner.Selects != nil
}

// inByLabel looks for a Pod among the endpoints of a labelled Service. It may be listed as long as the label
// says so, and whether the endpoint is ready does not matter to those who look at the label.
func (l *targetListing) inByLabel(p *pod, label ServiceLabel) presence {
	found := presence{reason: ReasonNotListed, inService: p}
	for _, e := range l.ByOwner(p.UID) {
		found.current = found.current || e.Weight > 0
	}
	found.serving = found.current
	found.listed = len(l.ByOwner(p.UID)) > 0 || p.Labels[label.Key] == label.Value
	return found
}

// stageByLabel is whom a Pod waits for on its way into a labelled Service, or out of it.
func (ix *index) stageByLabel(p *pod, t Target, label ServiceLabel, in bool) string {
	ignored := ix.ignoresLabel(t)
	switch {
	case !in && p.Labels[label.Key] == label.Value && !ix.mayTurn(p, label):
		return fmt.Sprintf("its owner %s %s could not be read, so nobody knows whether its label %s may be turned",
			OwnerOf(p.Pod).Kind, Shorten(OwnerOf(p.Pod).Name, maxName), label.Key)
	case (p.Labels[label.Key] == label.Value) != in:
		return fmt.Sprintf("its label %s is %q yet", label.Key, p.Labels[label.Key])
	case ignored != "":
		return ignored
	case in && !podread.IsTrue(p.Pod, corev1.PodReady):
		return "it is not Ready yet, for which it may need a load balancer to have it"
	case in:
		return fmt.Sprintf("Service %s does not list it as ready: if that stays so, compare the Service's selector with its labels", t.Service)
	}
	return fmt.Sprintf("an EndpointSlice of Service %s still has its address", t.Service)
}

// ignoresLabel says that a Service does not ask for its label; empty if it does, or if this pass has not read it.
func (ix *index) ignoresLabel(t Target) string {
	label, yes := ix.labelled(t)
	selector := ix.Listings[t].Selector
	if !yes || selector == nil || selector[label.Key] == label.Value {
		return ""
	}
	return fmt.Sprintf("Service %s does not select by %s, so the label takes nobody out: add %s: %q to spec.selector of the Service",
		t.Service, label.Key, label.Key, label.Value)
}

// goneByLabel is since when a Pod is gone from a labelled Service: since now, or a while later if the Pod had got
// Ready shortly before. The EndpointSlice controller may still be about to write what was before then.
func (ix *index) goneByLabel(p *pod) time.Time {
	ready := podread.Condition(p.Pod, corev1.PodReady)
	if ready != nil && ready.Status == corev1.ConditionTrue && ix.Now.Sub(ready.LastTransitionTime.Time) < listedAfter {
		return ix.Now.UTC().Add(unanswered)
	}
	return ix.Now.UTC()
}

// turnLabels turns the labels of a Pod that is to leave its Services, or to come back.
func (ix *index) turnLabels(p *pod, patch *PodPatch) {
	if p.DeletionTimestamp != nil || !ix.labels {
		return
	}
	for _, label := range ix.labelsOf(p) {
		switch now := p.Labels[label.Key]; {
		case !ix.mayTurn(p, label):
		case ix.leavesBy(p, label):
			if now == label.Value {
				patch.setLabel(label.Key, new(usherv1alpha1.OutOfService))
			}
		case now != label.Value && ix.entersBy(p, label):
			patch.setLabel(label.Key, &label.Value)
		}
	}
}

// labelsOf are the labels of all Services that the Pod may be in.
func (ix *index) labelsOf(p *pod) (labels []ServiceLabel) {
	for _, t := range targetsOf(p.all()) {
		if label, yes := ix.labelled(t); yes && !slices.Contains(labels, label) {
			labels = append(labels, label)
		}
	}
	return labels
}

// by are the Registrations that select the Pod and whose Services have the label, or had it.
func (ix *index) by(p *pod, label ServiceLabel) []*registration {
	return list.Only(p.selectedBy, func(r *registration) bool {
		return slices.ContainsFunc(r.targets(), func(t Target) bool {
			its, yes := ix.labelled(t)
			return yes && its == label
		})
	})
}

// leavesBy reports whether the Pod is to leave its Services by the label.
func (ix *index) leavesBy(p *pod, label ServiceLabel) bool {
	if len(p.selectedBy) == 0 {
		return p.requested()
	}
	return slices.ContainsFunc(ix.by(p, label), func(r *registration) bool { return ix.leavesService(p, r) })
}

// entersBy reports whether the Pod is to be in its Services by the label. Its containers are ready then, and
// nothing else need be: the Pod may get Ready only when a load balancer has it. A label that nobody but a person
// can have turned stays.
func (ix *index) entersBy(p *pod, label ServiceLabel) bool {
	if p.Labels[label.Key] != usherv1alpha1.OutOfService {
		return false
	}
	if len(p.selectedBy) == 0 {
		return ix.abandons(p)
	}
	return p.protected() && slices.ContainsFunc(ix.by(p, label), p.canEnter)
}

// canEnter reports whether the Pod belongs into the Registration's Services, and its containers are ready.
func (p *pod) canEnter(r *registration) bool {
	return p.misplaced(r) == "" && podread.IsTrue(p.Pod, corev1.ContainersReady)
}
