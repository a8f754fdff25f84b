// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/podread"
)

// This file is about updates in place that the API server refuses. Before the first Pod of a class
// leaves service for an update, the API server is asked in a dry run whether it takes the writes of
// that update. A plan only says which trials it needs (Plan.Trials); the caller makes them and plans
// again with the results (Snapshot.Trials). docs/design/0010-trials.md has the reasons.

// Trial is the API server's answer about the writes of an update in place, for one class of Pods.
type Trial struct {
	// Refused is why it refuses one of them; "" if it takes them all.
	Refused string
	// Impossible means that it refuses the change from anybody: only a new Pod can have it.
	Impossible bool
	// Pod is the Pod that was tried.
	Pod string
	// Since is the time of the first refusal in the present row; zero if there is none.
	Since time.Time
	// Wait is how long a refusal stands, and Until is when the API server is asked again.
	Wait  time.Duration
	Until time.Time
}

// Attempt is a trial that is due.
type Attempt struct {
	// Class is the class of Pods that the trial stands for.
	Class string
	// Update is the action whose writes the trial sends as dry runs: an Update of a present Pod.
	Update Action
}

// mostTrials is how many trials one plan asks for.
const mostTrials = 16

// ReasonUpdateRefused is why a Pod that had left service for an update gets its previous revision back.
const ReasonUpdateRefused = "UpdateRefused"

// GateUpdate stands for a gate where a Pod, in service, waits until the API server takes its update.
const GateUpdate = "update"

// heedTrials unchooses Pods whose update the API server refuses: they stay in service, or return to it.
// If the change is impossible in place, and the method allows it, they are recreated. A refusal that
// has stood for long enough is tried again.
func (p *pass) heedTrials() {
	if !slices.ContainsFunc(slices.Collect(maps.Values(p.Trials)), Trial.refused) {
		return
	}
	reported := map[string]bool{}
	for _, v := range p.queue {
		change, err := p.change(v)
		if err != nil {
			continue // it is recreated anyway
		}
		class := p.classOf(v, change)
		trial, known := p.Trials[class]
		if !known || !trial.refused() {
			continue
		}
		if !p.Now.Before(trial.Until) {
			p.try(v, class, change)
		}
		p.wakeAt(trial.Until)
		if trial.Impossible && p.Spec.Method == apps.UpdateInPlaceIfPossible {
			v.impossible = true
			continue
		}
		v.chosen = false
		if !reported[class] {
			reported[class] = true
			p.plan.Waits = append(p.plan.Waits, Blocked{
				Pod: v.pod.Name, Gate: GateUpdate, State: v.state, Keys: []string{ReasonUpdateRefused}, Since: trial.Since, Trial: &trial,
			})
		}
		p.problem(ProblemUpdateRefused, "%s: %s", trial.text(trial.Pod), trial.remedy(p.Spec.Method))
	}
}

func (t Trial) refused() bool { return t.Refused != "" }

// text says what is refused.
func (t *Trial) text(pod string) string {
	return fmt.Sprintf("the API server refuses the update of Pod %s in place, and Pods like it stay in service: %s", pod, t.Refused)
}

// remedy says what the user can do.
func (t *Trial) remedy(method apps.UpdateStrategyType) string {
	if t.Impossible && method == apps.UpdateInPlaceOnly {
		return "undo that change in spec.template, or set updateStrategy.type to InPlaceIfPossible"
	}
	return "change the policy, quota or webhook that refuses it, undo that change in spec.template, or set updateStrategy.type to ReCreate"
}

// tried reports whether the API server's answer about the update of Pods like this one is known;
// otherwise it asks for a trial. Refused updates have been handled by heedTrials before.
func (p *pass) tried(v *podState, change *inplace.Change) bool {
	if p.Trials == nil {
		return true
	}
	if rest := classOfRest(v.pod, p.Update.Name); p.stands(rest) { // it has just come back from there
		p.reportRest(v, p.Trials[rest])
		return false
	}
	class := p.classOf(v, change)
	trial, known := p.Trials[class]
	if known && (trial.refused() || p.Now.Before(trial.Until)) {
		return true
	}
	p.try(v, class, change)
	p.plan.More = true
	return false
}

// try asks for the trial of a class, once.
func (p *pass) try(v *podState, class string, change *inplace.Change) {
	asked := slices.ContainsFunc(p.plan.Trials, func(a Attempt) bool { return a.Class == class })
	if asked || len(p.plan.Trials) >= mostTrials {
		return
	}
	update := Action{Verb: Update, Reason: ReasonInPlace, Pod: v.pod, Revision: p.Update, Change: change, Class: class}
	if change.Drains() {
		update.To, update.Conditions = apps.StateUpdating, []Condition{outOfService(p.Update.Name)}
	}
	p.plan.Trials = append(p.plan.Trials, Attempt{Class: class, Update: update})
}

var errImpossible = errors.New("the API server refuses the change in place")

// maxAnnotations is how many bytes the annotations of an object may have, and recordRoom is a size that
// the record of an update hardly ever exceeds.
const maxAnnotations, recordRoom = 256 << 10, 32 << 10

// longestClass is how long the name of a class may be, in bytes.
const longestClass = 512

// classOf returns the class of a Pod's update. Pods of one class need only one trial: they have in
// common what decides whether the API server accepts the update. That is the two revisions, the Pod's
// QoS class, its present amounts of the resources that change, the labels by which admission may select
// Pods, and the size of its annotations if that is near the limit or unknown. Labels that change as the
// Pod passes its gates do not count.
func (p *pass) classOf(v *podState, change *inplace.Change) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s %t %t", p.Update.Name, v.hash, v.pod.Status.QOSClass, v.scheduled, v.pending)
	for _, name := range slices.Sorted(maps.Keys(change.Resources)) {
		if c := inplace.ContainerOf(v.pod, name); c != nil {
			fmt.Fprintf(&b, " %s", encode.JSON(c.Resources))
		}
	}
	if size := annotationBytes(v.pod, change); size > maxAnnotations-recordRoom {
		b.WriteString(" " + strconv.Itoa(size))
	}
	for _, key := range slices.Sorted(maps.Keys(v.pod.Annotations)) {
		if podread.IsCut(v.pod.Annotations[key]) { // the cache does not say how long it is
			fmt.Fprintf(&b, " %s %x", key, v.pod.Annotations[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(v.labels)) {
		if !p.passing(key) {
			b.WriteString(" " + key + "=" + v.labels[key])
		}
	}
	if b.Len() > longestClass { // labels of Pods decide how long it is
		return fmt.Sprintf("%x", sha256.Sum256([]byte(b.String())))
	}
	return b.String()
}

// passing reports whether a label differs from Pod to Pod, or changes as the Pod passes its gates.
func (p *pass) passing(label string) bool {
	switch label {
	case apps.LabelRevision, apps.LabelTemplateHash, apps.LabelInstanceID, apps.LabelLifecycleState, apps.LabelSpecifiedDelete:
		return true
	}
	return slices.ContainsFunc(p.Spec.Hooks.All(), func(h lifecycle.Hook) bool { _, ok := h.LabelsHandler[label]; return ok })
}

// annotationBytes returns a lower bound of the bytes of a Pod's annotations after a change, without the
// record of the update.
func annotationBytes(pod *corev1.Pod, change *inplace.Change) int {
	size := 0
	for key, value := range pod.Annotations {
		if _, replaced := change.Annotations[key]; !replaced && key != apps.AnnotationInPlaceUpdateState {
			size += len(key) + len(value)
		}
	}
	for key, value := range change.Annotations {
		if value != nil {
			size += len(key) + len(*value)
		}
	}
	return size
}

// ClassOfRest returns the class of the rest of a Pod's update under way. Its Trial is the answer to the
// writes themselves.
func ClassOfRest(pod *corev1.Pod) string { return classOfRest(pod, RevisionOf(pod)) }

func classOfRest(pod *corev1.Pod, revision string) string {
	return "rest " + string(pod.UID) + " " + revision
}

// classOfBack returns the class of the way back from that update.
func classOfBack(pod *corev1.Pod) string { return "back " + string(pod.UID) + " " + RevisionOf(pod) }

// stands reports whether a refusal still stands.
func (p *pass) stands(class string) bool {
	trial, known := p.Trials[class]
	if known && trial.refused() && p.Now.Before(trial.Until) {
		p.wakeAt(trial.Until)
		return true
	}
	return false
}

// giveUp leads a Pod back to a previous revision if the API server refuses the rest of its update, and
// reports whether it refuses that. The way back needs no resize, so a refusal of resizes does not
// affect it.
func (p *pass) giveUp(v *podState, conditions []Condition) bool {
	rest := ClassOfRest(v.pod)
	if !p.stands(rest) {
		return false
	}
	p.reportRest(v, p.Trials[rest])
	if p.stands(classOfBack(v.pod)) {
		return true
	}
	to, change := p.previous(v)
	if to == nil {
		return true
	}
	a := Action{Verb: Update, Reason: ReasonUpdateRefused, To: apps.StateUpdating, Revision: to, Change: change, Conditions: conditions, Class: classOfBack(v.pod)}
	if v.inPlaceReady.Status == corev1.ConditionTrue {
		a.Conditions = append(conditions, outOfService(v.revision))
	}
	p.act(v, a)
	return true
}

// reportRest reports that the API server refuses the rest of a Pod's update.
func (p *pass) reportRest(v *podState, trial Trial) {
	p.problem(ProblemUpdateRefused,
		"the API server refuses the rest of the update of Pod %s, which returns to its previous revision if it can: %s: %s",
		v.pod.Name, trial.Refused, trial.remedy(p.Spec.Method))
}

// previous returns the newest other revision that the Pod can get in place without a resize, the
// current one first; nil if there is none. If the set begins no updates, the update revision is no choice.
func (p *pass) previous(v *podState) (*revision.Revision, *inplace.Change) {
	from := p.Revisions[v.hash]
	if from == nil || from.Template == nil {
		return nil, nil
	}
	for _, to := range p.newestFirst() {
		if to.Name == from.Name || to == p.Update && to != p.Current && p.Spec.beginsNone() {
			continue
		}
		change, err := inplace.Diff(from.Template, to.Template)
		if err == nil {
			change, err = change.For(v.pod)
		}
		if err == nil && len(change.ResizesOf(v.pod)) == 0 {
			return to, change
		}
	}
	return nil, nil
}
