// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/model"
)

// knowledge has the Pods that a process can know at some point in a pass, by name: from its cache when
// the pass read it, from the server, and from its own writes, even if the answer to a write was lost.
// Budgets are judged by it: the process is not responsible for what others did in the meantime.
type knowledge []*corev1.Pod

// knows returns what the process knows, including everything that its writes revealed.
func (p *Process) knows(set *apps.CloneSet) knowledge {
	return p.own(set, p.upTo(len(p.Server.Log[model.Pods]), nil, &p.known))
}

// decided returns what the process knew when it decided, and what it has done since,
// optionally without one commit. The answers to its writes show what others did to a
// Pod in the meantime; that came too late for the decision and is left out.
func (p *Process) decided(set *apps.CloneSet, without *model.Commit) knowledge {
	log, from := p.Server.Log[model.Pods], p.pass.decidedAt
	if from == 0 {
		from = len(log)
	}
	pods := p.upTo(from, without, cmp.Or(p.pass.known, &p.known)) // not known yet while it adopts and releases
	for _, c := range log[from:] {
		if c.Actor != p.name || c == without {
			continue
		}
		pod := c.Object().(*corev1.Pod)
		if was := pods.learned[pod.UID]; was != nil && c.New != nil && !model.Same(was, c.Old) {
			pod = p.pass.redo(was, c)
		}
		pods.learned[pod.UID], pods.absent[pod.UID] = pod, c.New == nil
	}
	return p.own(set, pods)
}

// upTo returns the newest versions of the Pods that the process knew at a position in the server's log,
// and the Pods that it knew to be gone.
func (p *Process) upTo(end int, without *model.Commit, read *answers) answers {
	out := answers{learned: map[types.UID]*corev1.Pod{}, absent: map[types.UID]bool{}}
	learn := func(pod *corev1.Pod) {
		if old := out.learned[pod.UID]; old == nil || model.Version(pod) > model.Version(old) {
			out.learned[pod.UID] = pod
		}
	}
	for _, object := range p.pass.base {
		learn(object.(*corev1.Pod))
	}
	for _, pod := range read.learned {
		learn(pod)
	}
	from := p.pass.upTo[model.Pods]
	for _, c := range p.Server.Log[model.Pods][from:max(end, from)] {
		if c.Actor == p.name && c != without {
			out.absent[c.Object().GetUID()] = c.New == nil
			learn(c.Object().(*corev1.Pod))
		}
	}
	maps.Copy(out.absent, read.absent)
	return out
}

// redo caches redone, which every later write of the pass calls again.
func (p *pass) redo(pod *corev1.Pod, c *model.Commit) *corev1.Pod {
	on := redoing{pod, c}
	if p.redone[on] == nil {
		if p.redone == nil {
			p.redone = map[redoing]*corev1.Pod{}
		}
		p.redone[on] = redone(pod, c)
	}
	return p.redone[on]
}

// redoing is a commit on top of another state of its Pod.
type redoing struct {
	pod    *corev1.Pod
	commit *model.Commit
}

// redone applies the change of a commit to a Pod that others have changed.
func redone(pod *corev1.Pod, c *model.Commit) *corev1.Pod {
	was, old, next := must(json.Marshal(pod)), must(json.Marshal(c.Old)), must(json.Marshal(c.New))
	change := must(strategicpatch.CreateTwoWayMergePatch(old, next, &corev1.Pod{}))
	return decode[*corev1.Pod](must(strategicpatch.StrategicMergePatch(was, change, &corev1.Pod{})))
}

// own returns the existing Pods that belong to the set, by name.
func (p *Process) own(set *apps.CloneSet, pods answers) (k knowledge) {
	for uid, pod := range pods.learned {
		if !pods.absent[uid] && model.OwnerOf(pod) == string(set.UID) && !p.vanished(set, pod) {
			k = append(k, pod)
		}
	}
	slices.SortFunc(k, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return k
}

// vanished reports whether a Pod that the process read or wrote is missing in its cache and the process
// can conclude that it is gone: the cache had it, or shows a later version of another Pod of the set,
// or the process deleted the Pod. A Pod that was created and removed while the watch hung leaves no
// other trace.
func (p *Process) vanished(set *apps.CloneSet, pod *corev1.Pod) bool {
	if shown, ok := p.pass.base[key(pod.Namespace, pod.Name)]; ok && shown.GetUID() == pod.UID {
		return false
	}
	removed, ours := removal(p.Server, pod.UID, p.pass.upTo[model.Pods], p.name)
	return removed && (ours || p.caches[model.Pods].Shown[pod.UID] || p.pass.shows(set, model.Version(pod)))
}

// removal reports whether a Pod was removed before the position end of the log, and whether the actor
// by deleted it.
func removal(s *model.Server, uid types.UID, end int, by string) (removed, his bool) {
	for _, c := range s.Log[model.Pods][:end] {
		if c.Old != nil && c.Old.GetUID() == uid {
			removed, his = removed || c.New == nil, his || (c.Actor == by && c.Deletes())
		}
	}
	return removed, his
}

// shows reports whether the cache showed anything of the set's Pods later than a
// version.
func (p *pass) shows(set *apps.CloneSet, version int64) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(p.base)), func(pod client.Object) bool {
		return model.OwnerOf(pod) == string(set.UID) && model.Version(pod) > version
	})
}

// available reports whether a Pod serves.
func available(pod *corev1.Pod, set *apps.CloneSet, now time.Time) bool {
	ready := model.Condition(pod, corev1.PodReady)
	return model.Active(pod) && ready.Status == corev1.ConditionTrue && model.State(pod) == apps.StateNormal &&
		model.Condition(pod, apps.ConditionInPlaceUpdateReady).Status != corev1.ConditionFalse &&
		model.Condition(pod, apps.ConditionPodReady).Status != corev1.ConditionFalse &&
		// A pass may read objects that are newer than the time at which it decides.
		(set.Spec.MinReadySeconds == 0 || !ready.LastTransitionTime.Add(time.Duration(set.Spec.MinReadySeconds)*time.Second).After(now))
}

// specified reports whether the user has asked to delete this Pod.
func specified(pod *corev1.Pod, set *apps.CloneSet) bool {
	return pod.Labels[apps.LabelSpecifiedDelete] == "true" || slices.Contains(set.Spec.ScaleStrategy.PodsToDelete, pod.Name)
}

// begun reports whether the in-place update of a Pod has begun.
func begun(pod *corev1.Pod) bool {
	return model.State(pod) == apps.StatePreparingUpdate || model.State(pod) == apps.StateUpdating ||
		model.Condition(pod, apps.ConditionInPlaceUpdateReady).Status == corev1.ConditionFalse
}

func of(pod *corev1.Pod, name string) bool {
	return revision.Same(pod.Labels[apps.LabelRevision], name)
}

// count counts the Pods that satisfy has.
func (k knowledge) count(has func(*corev1.Pod) bool) int { return len(list.Only(k, has)) }

func (k knowledge) find(uid types.UID) *corev1.Pod {
	if i := slices.IndexFunc(k, func(pod *corev1.Pod) bool { return pod.UID == uid }); i >= 0 {
		return k[i]
	}
	return nil
}

var zero = intstr.FromInt32(0)

// The counts in a CloneSet's spec, by the rules of the CloneSet.
func replicas(set *apps.CloneSet) int {
	if set.DeletionTimestamp != nil {
		return 0
	}
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

func countOf(c *apps.Count, fallback intstr.IntOrString, whole int, up bool) int {
	value := &fallback
	if c != nil {
		value = c.IntOrString()
	}
	return must(intstr.GetScaledValueFromIntOrPercent(value, whole, up))
}

func surgeOf(set *apps.CloneSet) int {
	if set.Spec.UpdateStrategy.Paused {
		return 0
	}
	return countOf(set.Spec.UpdateStrategy.MaxSurge, zero, replicas(set), true)
}

func unavailableOf(set *apps.CloneSet) int {
	return countOf(set.Spec.UpdateStrategy.MaxUnavailable, intstr.FromString("20%"), replicas(set), surgeOf(set) == 0)
}

func partitionOf(set *apps.CloneSet) int {
	value := set.Spec.UpdateStrategy.Partition
	n := min(countOf(value, zero, replicas(set), true), replicas(set))
	if value != nil && strings.HasSuffix(value.StrVal, "%") && value.StrVal != "100%" && replicas(set) > 1 {
		n = min(n, replicas(set)-1)
	}
	return n
}
