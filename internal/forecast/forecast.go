// SPDX-License-Identifier: Apache-2.0

// Package forecast computes what a change of a CloneSet would do, before it is made. It plays the
// controller's own planner on the live objects to the end: the planner decides, its patches are applied
// to copies of the Pods, and kubelets and hook operators act as they do when nothing goes wrong. It is
// pure.
//
//	play.go      the loop: decide, apply, let the next thing happen; how long things take, as
//	             earlier updates of the same Pods show; and the result: waves, hooks,
//	             the lowest availability, where it stops
//	cluster.go   what happens: kubelets, hooks, and what the API server makes of a write
//	quota.go     which quotas its Pods exceed
package forecast

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/view"
)

// Change is an intended change of a CloneSet.
type Change struct {
	// Objects are as they are now; Set is nil if there is no such CloneSet yet.
	view.Objects
	// To is the CloneSet as it would be.
	To *apps.CloneSet
	// Claims are the set's own.
	Claims []*corev1.PersistentVolumeClaim
	// Nodes are the labels of the Pods' nodes.
	Nodes map[string]map[string]string
	// Refused is why the API server refuses Pods of the template, ClaimsRefused claims of
	// the claim templates; "" if it does not.
	Refused, ClaimsRefused string
	// Exceeded is the API server's refusal of one more Pod or claim, if a quota has no room for it;
	// Trial is that Pod, as the API server completes it.
	Exceeded string
	Trial    *corev1.Pod
	// Quotas are those of the namespace.
	Quotas []*corev1.ResourceQuota
	// NoResize means that the API server resizes no Pods.
	NoResize bool
	// Starts is the controller's --parallel; 0 is its default.
	Starts int
	// Planner decides. Default: plan.Make.
	Planner func(*plan.Snapshot) plan.Plan
}

// Forecast describes what a change would do.
type Forecast struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// New means that the CloneSet would be created.
	New bool `json:"new,omitempty"`
	// Changes means that the CloneSet would change; if it is false, Waves are those of the present
	// rollout.
	Changes bool `json:"changes"`
	// From are the revisions of Pods that are to have the revision To; empty if all have it.
	From []string `json:"from,omitempty"`
	To   string   `json:"to"`
	// Images are those of the containers of To, as "name=image".
	Images []string `json:"images,omitempty"`
	// ReplicasNow and Replicas are spec.replicas before and after the change.
	ReplicasNow int `json:"replicasNow"`
	Replicas    int `json:"replicas"`
	// Refused is why the API server refuses Pods or claims of the templates, or the quota
	// that Pods exceed together.
	Refused string `json:"refused,omitempty"`
	// Because is why Pods are recreated rather than updated in place.
	Because string `json:"because,omitempty"`
	// Waves are groups of Pods that leave together.
	Waves []Wave `json:"waves,omitempty"`
	// Lowest is the least number of Pods that serve at any time; Available serve now.
	Lowest    int `json:"lowest"`
	Available int `json:"available"`
	// Ends counts the Pods in the end.
	Ends Count `json:"ends"`
	// Hooks are the keys of hooks that have to be answered.
	Hooks []Hook `json:"hooks,omitempty"`
	// Stops are the reasons why Pods stay as they are.
	Stops []string `json:"stops,omitempty"`
	// Takes is how long it takes; nil if that is unknown, for the reason in Unknown.
	Takes   *metav1.Duration `json:"takes,omitempty"`
	Unknown string           `json:"unknown,omitempty"`
}

// Count is how many Pods there are, have the revision, and serve.
type Count struct {
	Pods      int `json:"pods"`
	Updated   int `json:"updated"`
	Available int `json:"available"`
}

// Wave is a group of Pods that leave before one of them is back.
type Wave struct {
	// After is when it begins; nil if Takes is.
	After *metav1.Duration `json:"after,omitempty"`
	// Pods are in the order in which they are touched.
	Pods []Step `json:"pods,omitempty"`
	// Created is how many Pods are created meanwhile.
	Created int `json:"created,omitempty"`
}

// Step is the effect of the change on a Pod.
type Step struct {
	Pod  string `json:"pod"`
	Does Doing  `json:"does"`
}

// Doing is one word for a Step.
type Doing string

// The values of Doing.
const (
	// InPlace: its containers are changed; it leaves service for that.
	InPlace Doing = "InPlace"
	// Relabel: its labels and annotations are changed, and no container. It leaves service
	// only if it has to pass a hook.
	Relabel Doing = "Relabel"
	// Recreate: it is deleted, and one of the new revision created.
	Recreate Doing = "Recreate"
	// ScaleIn: it is deleted.
	ScaleIn Doing = "ScaleIn"
	// Replace: it was named for deletion, or leaves its node.
	Replace Doing = "Replace"
	// CleanUp: it has ended, and is deleted.
	CleanUp Doing = "CleanUp"
	// Create: a new Pod.
	Create Doing = "Create"
)

// stays reports whether it is still the same Pod.
func (d Doing) stays() bool { return d == InPlace || d == Relabel }

// Hook is a key of a hook that has to be answered for Pods.
type Hook struct {
	// Gate is the hook in spec.lifecycle.
	Gate string `json:"gate"`
	Key  string `json:"key"`
	// Registrations answer it, and Registries have to confirm; without them, a hook operator other than
	// Usher's answers.
	Registrations []string `json:"registrations,omitempty"`
	Registries    []string `json:"registries,omitempty"`
	// Unanswered means that nobody answers a key of Usher's domain.
	Unanswered bool `json:"unanswered,omitempty"`
}

// Of returns the forecast of a change.
func Of(c Change) (Forecast, error) {
	spec, err := plan.SpecOf(c.To)
	if err != nil {
		return Forecast{}, fmt.Errorf("clone/%s cannot be carried out: %w", c.To.Name, err)
	}
	s, err := c.snapshot(spec)
	if err != nil {
		return Forecast{}, err
	}
	p := &player{
		Snapshot: s, set: c.To, begun: c.Now, pace: paceOf(s.Pods), planner: c.Planner, usage: c.usageOf(),
		due: map[string]due{}, behind: map[string]bool{}, broken: map[string]bool{},
		placed: map[string]place{}, gates: map[string]*gate{}, registrations: c.Registrations,
	}
	if p.planner == nil {
		p.planner = plan.Make
	}
	p.meet()
	counts, _ := plan.Review(s)
	p.lowest, p.available = counts.Available, counts.Available
	last, err := p.play()
	if err != nil {
		return Forecast{}, err
	}
	f := c.describe(s)
	f.Available, f.Lowest = counts.Available, p.lowest
	slices.SortFunc(p.hooks, func(a, b Hook) int { return strings.Compare(a.Gate+a.Key, b.Gate+b.Key) })
	f.Waves, f.Hooks, f.Stops = p.waves, p.hooks, p.stops(&last)
	counts, _ = plan.Review(s)
	if over := c.exceeds(p.usage); len(over) > 0 {
		f.Refused, f.Stops = cmp.Or(f.Refused, strings.Join(over, "; ")), append(f.Stops, over...)
	}
	f.Ends = Count{counts.Replicas, counts.Updated, counts.Available}
	f.Changes = f.New || c.To.Generation != c.Set.Generation
	p.time(&f)
	return f, nil
}

// Creates reports whether Pods are created.
func (f *Forecast) Creates() bool {
	return slices.ContainsFunc(f.Waves, func(w Wave) bool { return w.Created > 0 })
}

// snapshot returns the planner's input with the change.
func (c *Change) snapshot(spec plan.Spec) (*plan.Snapshot, error) {
	s := &plan.Snapshot{
		Now: c.Now, Set: c.To.Name, Spec: spec, Pods: slices.Clone(c.Pods), Claims: slices.Clone(c.Claims), Nodes: c.Nodes,
		ExcludePreparingDelete: c.To.Labels[apps.LabelScalingExcludePreparingDelete] == "true",
		UpdateRefused:          c.Refused, ClaimsRefused: c.ClaimsRefused, NoResize: c.NoResize, Starts: cmp.Or(c.Starts, plan.DefaultStarts),
		Revisions: c.Known(),
	}
	slices.SortFunc(s.Pods, byName)
	var err error
	if s.Update, _, err = c.Update(); err != nil {
		return nil, err
	}
	s.Revisions[revision.Short(s.Update.Name)] = s.Update
	s.Current = s.Revisions[revision.Short(c.To.Status.CurrentRevision)]
	if s.Current == nil || s.Current.Template == nil {
		s.Current = s.Update
	}
	return s, nil
}

// Update returns the revision of the template that the set would have, and whether there is a Pod of it
// already.
func (c *Change) Update() (update *revision.Revision, present bool, err error) {
	template, err := revision.Decode(c.To.Spec.Template.Raw())
	if err != nil {
		return nil, false, fmt.Errorf("spec.template: %w", err)
	}
	update, last := revision.Newest(c.Known(), template)
	if update == nil {
		return &revision.Revision{Name: c.To.Name + "-" + revision.Hash(template, 0), Number: last + 1, Template: template}, false, nil
	}
	return update, slices.ContainsFunc(c.Pods, func(pod *corev1.Pod) bool { return revision.Same(plan.RevisionOf(pod), update.Name) }), nil
}

// describe returns a forecast with the changes of the set itself.
func (c *Change) describe(s *plan.Snapshot) Forecast {
	f := Forecast{
		Namespace: c.To.Namespace, Name: c.To.Name, New: c.Set == nil, To: s.Update.Name, Images: view.Images(s.Update.Template),
		Replicas: s.Spec.Replicas, Refused: cmp.Or(c.Refused, c.ClaimsRefused),
	}
	if f.New {
		return f
	}
	f.ReplicasNow = int(ptr.Deref(c.Set.Spec.Replicas, 1))
	for _, pod := range c.Pods {
		name := plan.RevisionOf(pod)
		if revision.Same(name, s.Update.Name) || slices.Contains(f.From, name) {
			continue
		}
		f.From = append(f.From, name)
		f.Because = cmp.Or(f.Because, because(s, name))
	}
	slices.Sort(f.From)
	return f
}

// because returns why Pods of a revision are recreated; "" if they are not.
func because(s *plan.Snapshot, from string) string {
	_, err := s.Change(revision.Short(from))
	var refusal *inplace.Refusal
	switch {
	case s.Spec.Method == apps.UpdateReCreate && err == nil:
		return "updateStrategy.type is ReCreate; with InPlaceIfPossible, this change would need no new Pods"
	case s.Spec.Method == apps.UpdateInPlaceOnly || s.Spec.Method == apps.UpdateOnDelete || err == nil:
		return ""
	case errors.As(err, &refusal):
		return refusal.Error()
	}
	return fmt.Sprintf("the ControllerRevision %s of the Pods is gone or cannot be read", from)
}

// time estimates how long a play takes.
func (p *player) time(f *Forecast) {
	var missing []string
	for what, m := range map[string]*measure{"a new Pod to get ready": &p.pace.start, "an update in place": &p.pace.restart} {
		if m.used && len(m.all) == 0 {
			missing = append(missing, "how long it takes "+what)
		}
	}
	for _, key := range p.foreign {
		missing = append(missing, "how long it takes to answer "+key)
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		f.Unknown = "no Pod shows " + strings.Join(slices.Compact(missing), ", or ")
	} else {
		f.Takes = &metav1.Duration{Duration: p.ends.Sub(p.begun).Round(time.Second)}
	}
	for i := range f.Waves {
		w := &f.Waves[i]
		w.After.Duration = w.After.Round(time.Second)
		if f.Takes == nil {
			w.After = nil
		}
	}
}
