// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

// player plays a set to the end.
type player struct {
	*plan.Snapshot
	set     *apps.CloneSet
	planner func(*plan.Snapshot) plan.Plan
	// begun is when the play begins, ends when the last Pod has come into service.
	begun, ends time.Time
	pace        pace
	// due is the next step of each Pod that is not the controller's.
	due map[string]due
	// behind are the Pods whose kubelet does not run their spec yet.
	behind map[string]bool
	// broken are the Pods that will not get ready unless they are changed.
	broken map[string]bool
	// made counts the Pods that were created, steps the steps that began.
	made, steps int
	// usage is nil if there is no quota.
	usage *usage

	// The result of the play: waves are the groups of Pods that leave together, and placed says where a
	// wave names a Pod.
	waves  []Wave
	placed map[string]place
	// returned reports whether a Pod came into service after the last one left.
	returned bool
	// lowest is the least number of Pods that served, available how many do now.
	lowest, available int
	// gates are the gates at which a hook held Pods, by state and keys; hooks are their keys.
	gates map[string]*gate
	hooks []Hook
	// containers counts the containers that were started.
	containers    int
	registrations []*usherv1alpha1.Registration
	// foreign are the keys that a hook operator other than Usher's answers.
	foreign []string
}

// due is a step, and when it is taken.
type due struct {
	pod  string
	step step
	at   time.Time
	// number orders steps by when they began.
	number int
}

// mostPasses bounds a play per Pod. An update of one takes about ten.
const mostPasses = 60

// play runs until nothing happens any more, or the bound is reached. It returns the last
// decision.
func (p *player) play() (plan.Plan, error) {
	for range mostPasses * (len(p.Pods) + p.Spec.Replicas + 10) {
		p.PodInfos = plan.ReadPods(p.Pods, p.PodInfos)
		decided := p.planner(p.Snapshot)
		p.decided(&decided)
		for i := range decided.Actions {
			if err := p.perform(&decided.Actions[i]); err != nil {
				return decided, err
			}
		}
		p.look()
		if len(decided.Actions) > 0 || decided.More {
			continue
		}
		if !p.wait(decided.RequeueAt) {
			return decided, nil
		}
		p.look()
	}
	return plan.Plan{}, errEndless
}

// together is how many steps that are due at the same time are taken one by one. Of more, a controller
// would see several in one pass.
const together = 10

// wait takes the next steps that are due, in the order in which they began; false if there are none.
func (p *player) wait(next time.Time) bool {
	for _, d := range p.due {
		next = list.Earliest(next, d.at)
	}
	if next.IsZero() {
		return false
	}
	p.Now = list.Latest(p.Now, next)
	now := slices.DeleteFunc(slices.Collect(maps.Values(p.due)), func(d due) bool { return d.at.After(p.Now) })
	slices.SortFunc(now, func(a, b due) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.number, b.number)) })
	for _, d := range now[:min(len(now), 1+len(now)/together)] {
		delete(p.due, d.pod)
		if at, ok := slices.BinarySearchFunc(p.Pods, d.pod, func(pod *corev1.Pod, name string) int { return cmp.Compare(pod.Name, name) }); ok {
			p.take(d.step, p.Pods[at])
		}
	}
	return true
}

// meet finds out which Pods are changing already, and which will not get ready.
func (p *player) meet() {
	for _, pod := range p.Pods {
		record, err := inplace.ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
		done, _ := record.Done(pod, p.Now)
		since := list.Latest(pod.CreationTimestamp.Time, podread.Since(pod, corev1.PodReady))
		switch {
		case stuck(pod):
			p.broken[pod.Name] = true
		case !started(pod):
		case regplan.StateOf(pod) == apps.StateUpdating && (err != nil || !done), !containersReady(pod) && p.Now.Sub(since) < patience:
			p.behind[pod.Name] = true
		case !containersReady(pod):
			p.broken[pod.Name] = true
		}
		p.expect(pod)
	}
}

// expect records the next step of a Pod. A step that stays due keeps its time.
func (p *player) expect(pod *corev1.Pod) {
	next, after := p.next(pod)
	switch known, ok := p.due[pod.Name]; {
	case next.name == "":
		delete(p.due, pod.Name)
	case !ok || known.step.name != next.name:
		p.steps++
		p.due[pod.Name] = due{pod: pod.Name, step: next, at: p.Now.Add(after), number: p.steps}
	}
}

func byName(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) }

// replace puts a changed copy of a Pod in its place; nil removes it.
func (p *player) replace(old, pod *corev1.Pod) {
	at, _ := slices.BinarySearchFunc(p.Pods, old, byName)
	if pod == nil {
		p.Pods = slices.Delete(slices.Clone(p.Pods), at, at+1)
		delete(p.due, old.Name)
		return
	}
	if podread.IsTrue(pod, corev1.PodReady) && !ready(pod) {
		setReady(pod, p.Now) // a kubelet sees at once that a gate was closed
	}
	p.Pods[at] = pod
	p.expect(pod)
}

const (
	// unknownTakes stands for times that no Pod shows. Only the order of events depends on it.
	unknownTakes = 10 * time.Second
	// stopTakes is how long a Pod takes to end. Only its claims wait for that.
	stopTakes = time.Second
	// answerTakes is how long it takes to answer a hook, apart from propagation.
	answerTakes = time.Second
	// mostTakes is the longest time that counts: a Pod that took longer was probably repaired by hand.
	mostTakes = time.Hour
)

// pace has the times that Pods take.
type pace struct {
	// start is how long a new Pod takes to get ready, restart how long a Pod takes that is updated in
	// place.
	start, restart measure
}

// measure has the times that earlier cases took.
type measure struct {
	all  []time.Duration
	used bool
}

// takes returns the median.
func (m *measure) takes() time.Duration {
	m.used = true
	if len(m.all) == 0 {
		return unknownTakes
	}
	return m.all[len(m.all)/2]
}

func (m *measure) add(from, to time.Time) {
	if took := to.Sub(from); !from.IsZero() && took >= 0 && took < mostTakes {
		m.all = append(m.all, took)
		slices.Sort(m.all)
	}
}

// paceOf measures how long the set's Pods took to get ready.
func paceOf(pods []*corev1.Pod) pace {
	var p pace
	for _, pod := range pods {
		if !podread.IsTrue(pod, corev1.PodReady) {
			continue
		}
		ready := podread.Since(pod, corev1.PodReady)
		record, err := inplace.ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
		switch {
		case err != nil:
		case !record.UpdateTimestamp.IsZero():
			p.restart.add(record.UpdateTimestamp.Time, ready)
		default:
			p.start.add(pod.CreationTimestamp.Time, ready)
		}
	}
	return p
}

// gate is a gate where keys of a hook hold Pods, and whether they are answered.
type gate struct {
	takes    time.Duration
	answered bool
}

// decided records what a decision begins to do to Pods.
func (p *player) decided(d *plan.Plan) {
	if len(d.Actions) > 0 {
		p.ends = p.Now
	}
	for i := range d.Actions {
		a := &d.Actions[i]
		p.returned = p.returned || a.To == apps.StateNormal
		does := p.doing(a)
		switch {
		case does == "":
		case does == Create:
			p.wave(false).Created++
		case p.placed[a.Pod.Name].wave == 0: // it has not begun
			w := p.wave(true)
			w.Pods = append(w.Pods, Step{Pod: a.Pod.Name, Does: does})
			p.placed[a.Pod.Name] = place{len(p.waves), len(w.Pods) - 1}
		case !does.stays(): // an update in place becomes something else
			at := p.placed[a.Pod.Name]
			p.waves[at.wave-1].Pods[at.index].Does = does
		}
	}
}

// place is where a wave names a Pod; waves count from 1.
type place struct{ wave, index int }

// wave returns the wave with which a Pod leaves: a new one if another Pod has come into service since
// the last one left.
func (p *player) wave(leaves bool) *Wave {
	now := p.Now.Sub(p.begun)
	if len(p.waves) == 0 || p.returned && leaves && now > p.waves[len(p.waves)-1].After.Duration {
		p.waves = append(p.waves, Wave{After: &metav1.Duration{Duration: now}})
		p.returned = false
	}
	return &p.waves[len(p.waves)-1]
}

// doing returns what an action begins to do to a Pod; "" if it only continues something.
func (p *player) doing(a *plan.Action) Doing {
	switch a.Reason {
	case plan.ReasonPrepareUpdate, plan.ReasonStartInPlace, plan.ReasonInPlace:
		if change, err := p.Change(revision.Short(plan.RevisionOf(a.Pod))); err == nil && !change.Drains() {
			return Relabel
		}
		return InPlace
	case plan.ReasonRecreate:
		return Recreate
	case plan.ReasonScaleIn:
		return ScaleIn
	case plan.ReasonSpecified, plan.ReasonNodeGoes:
		return Replace
	case plan.ReasonScaleOut:
		return Create
	case plan.ReasonCleanUp:
		return CleanUp
	}
	return ""
}

// look counts the Pods that serve, and the quotas that Pods use.
func (p *player) look() {
	if p.usage != nil {
		p.usage.note(p.Pods)
	}
	serving := p.Serving()
	p.returned = p.returned || serving > p.available
	if serving != p.available {
		p.available, p.ends = serving, p.Now
	}
	p.lowest = min(p.lowest, serving)
}

// gateOf returns the gate of keys that hold a Pod, with the Registrations that answer them.
func (p *player) gateOf(pod *corev1.Pod, at string, keys []string) *gate {
	name := string(regplan.StateOf(pod)) + " " + strings.Join(keys, " ")
	if known := p.gates[name]; known != nil {
		return known
	}
	g := &gate{answered: true, takes: answerTakes}
	holds := regplan.Show(regplan.Snapshot{
		Now: p.Now, Pods: []*corev1.Pod{pod}, Registrations: p.registrations, CloneSets: []*apps.CloneSet{p.set},
	})[pod.Name].Holds
	for _, key := range keys {
		h := Hook{Gate: at, Key: key}
		i := slices.IndexFunc(holds, func(hold regplan.Hold) bool { return hold.Key == key })
		switch {
		case i >= 0:
			h.Registrations, h.Registries = holds[i].Registrations, holds[i].Registries
			g.takes = max(g.takes, answerTakes+holds[i].Propagation)
		case strings.Contains(key, usherv1alpha1.HookDomain):
			h.Unanswered, g.answered = true, false
		default:
			p.foreign = append(p.foreign, key)
		}
		if !slices.ContainsFunc(p.hooks, func(o Hook) bool { return o.Gate == h.Gate && o.Key == h.Key }) {
			p.hooks = append(p.hooks, h)
		}
	}
	p.gates[name] = g
	return g
}

// stops says why Pods stay as they are.
func (p *player) stops(last *plan.Plan) []string {
	out := list.Map(last.Problems, func(problem plan.Problem) string { return problem.Message })
	counts, blocked := plan.Review(p.Snapshot)
	out = append(out, list.Map(blocked[:min(len(blocked), MostNamed)], plan.Blocked.Timeless)...)
	if more := len(blocked) - MostNamed; more > 0 {
		out = append(out, list.Count(more, "more Pod")+" like that")
	}
	out = append(out, p.old(counts, len(out) > 0)...)
	if last.ScaleUpLimited > 0 {
		out = append(out, fmt.Sprintf("scaleStrategy.maxUnavailable: %s missing until others are available", pods(last.ScaleUpLimited, "stays", "stay")))
	}
	return out
}

// old returns why Pods keep an old revision; explained means that another sentence says so already.
func (p *player) old(counts plan.Counts, explained bool) []string {
	old, kept := counts.Replicas-counts.Updated, p.Spec.Budget().Partition
	waiting := old - kept
	var out []string
	switch {
	case old == 0:
		return nil
	case p.Spec.Method == apps.UpdateOnDelete:
		return []string{"updateStrategy.type is OnDelete: " + pods(old, "gets", "get") + " the revision when somebody deletes them"}
	case waiting <= 0:
	case p.Spec.Paused:
		out = append(out, fmt.Sprintf("updateStrategy.paused: %s the old revision until the rollout is resumed", pods(waiting, "keeps", "keep")))
	case !explained:
		out = append(out, p.stuck(waiting, counts.Available))
	}
	if kept > 0 {
		out = append(out, fmt.Sprintf("updateStrategy.partition: %s the old revision", pods(min(old, kept), "keeps", "keep")))
	}
	return out
}

// stuck names the Pods that use up the budget of an update.
func (p *player) stuck(old, available int) string {
	var down []string
	for status := range plan.PodStatuses(p.Snapshot) {
		if status.Active && !status.Available {
			down = append(down, status.Pod.Name)
		}
	}
	return fmt.Sprintf("updateStrategy.maxUnavailable: %s the old revision; %d of %d Pods serve, and these are expected to stay out of service: %s",
		pods(old, "keeps", "keep"), available, p.Spec.Replicas, list.Some(down, MostNamed))
}

// MostNamed is how many Pods a sentence names.
const MostNamed = 5

func pods(n int, one, many string) string {
	if n == 1 {
		many = one
	}
	return list.Count(n, "Pod") + " " + many
}
