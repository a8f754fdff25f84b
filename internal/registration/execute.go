// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// defaultWorkers bounds the requests about Pods that one pass has in flight.
	defaultWorkers = 32
	// patchTime is how long a pass begins patches of Pods, before and after the registries change.
	patchTime = 200 * time.Millisecond
	// soon is when the next pass follows one during which somebody changed an object. The
	// event of that change may already be behind us.
	soon = time.Second
)

// noEntries is an empty listing, in contrast to none.
var noEntries = []registry.Entry{}

// execute carries out the plan up to the registries, and plans again from what they list
// then. It leaves the patches of Pods to the caller.
func (p *pass) execute(ctx context.Context, decided plan.Plan) (plan.Plan, error) {
	unprepared, prepared := p.prepare(ctx, decided.Outcomes)
	p.protect(ctx, decided.Protect)
	if prepared || len(decided.Protect) > 0 {
		decided = p.decide()
	}
	// What was read may make others join: each is read before it does.
	for changed := true; changed; {
		err := p.confirmOwners(ctx, decided.Changes, unprepared)
		if err != nil {
			return decided, err
		}
		if changed, err = p.confirm(ctx, decided.Changes); err != nil {
			return decided, err
		}
		if changed {
			if err := p.takeOver(ctx); err != nil {
				return decided, err
			}
			decided = p.decide()
		}
	}
	p.noteSweeps(decided.Changes)
	changes := withoutJoins(decided.Changes, unprepared)
	if len(changes) == 0 {
		return decided, nil
	}
	p.apply(ctx, slices.Clone(changes))
	targets, before := make([]plan.Target, 0, len(changes)), make([][]registry.Entry, 0, len(changes))
	for _, c := range changes {
		targets, before = append(targets, c.Target), append(before, p.snapshot.Listings[c.Target].Entries)
	}
	p.list(ctx, targets)
	for i, c := range changes {
		p.logChanges(ctx, c, before[i])
	}
	return p.decide(), nil
}

// withoutJoins drops what some Registrations would register, and targets where nothing is
// left to change.
func withoutJoins(changes []plan.Changes, registrations map[string]bool) []plan.Changes {
	var left []plan.Changes
	for _, c := range changes {
		c.Joins = slices.DeleteFunc(slices.Clone(c.Joins), func(change registry.Change) bool {
			return registrations[change.Entry.Owner.Registration]
		})
		if !c.Empty() {
			left = append(left, c)
		}
	}
	return left
}

// protect patches Pods before their first entry. Nothing is registered in this pass for a
// Pod whose patch fails.
func (p *pass) protect(ctx context.Context, patches []plan.PodPatch) {
	for i := range patches {
		for _, target := range patches[i].Due {
			p.notes.dirty[target] = true
		}
	}
	for _, pod := range p.patchPods(ctx, patches) {
		p.refreshPod(pod.Name, pod.UID, pod)
	}
}

// find returns the index of a Pod in the snapshot, or where it belongs.
func (p *pass) find(name string) (at int, found bool) {
	return slices.BinarySearchFunc(p.snapshot.Pods, name, func(pod *corev1.Pod, name string) int {
		return strings.Compare(pod.Name, name)
	})
}

// patchPods sends patches and returns the patched Pods. What it has not begun in time is left to
// the next pass, which begins with it: a Pod that is to leave its registries meanwhile must not wait
// until the API server has taken all others.
func (p *pass) patchPods(ctx context.Context, patches []plan.PodPatch) []*corev1.Pod {
	turn, _ := slices.BinarySearchFunc(patches, p.notes.turn, func(patch plan.PodPatch, name string) int { return strings.Compare(patch.Pod.Name, name) })
	patches = slices.Concat(patches[turn:], patches[:turn])
	patched, late := make([]*corev1.Pod, len(patches)), make([]bool, len(patches))
	end := p.clock.Now().Add(patchTime)
	var group errgroup.Group
	group.SetLimit(p.options.Workers)
	for i := range patches {
		group.Go(func() error {
			if late[i] = !p.clock.Now().Before(end); !late[i] {
				patched[i] = p.patchPod(ctx, &patches[i])
			}
			return nil
		})
	}
	_ = group.Wait() // Each failure asks for another pass itself.
	if first := slices.Index(late, true); first >= 0 {
		p.notes.turn, p.postponed, p.unpatched = patches[first].Pod.Name, true, true
		p.again(batchDelay)
	}
	return slices.DeleteFunc(patched, func(pod *corev1.Pod) bool { return pod == nil })
}

// patchPod returns nil if the Pod could not be patched as planned.
func (p *pass) patchPod(ctx context.Context, patch *plan.PodPatch) *corev1.Pod {
	next := &corev1.Pod{}
	next.Namespace, next.Name = patch.Pod.Namespace, patch.Pod.Name
	data, err := patch.Encode()
	if err == nil {
		err = p.client.Status().Patch(ctx, next, client.RawPatch(types.StrategicMergePatchType, data))
	}
	if err != nil {
		p.podFailed(ctx, patch, err)
		return nil
	}
	p.reportReleases(ctx, patch)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes.pods.wrote(next)
	return next
}

// podFailed asks for another pass. It is no error if the Pod is gone or has changed: the next
// pass sees it as it is.
func (p *pass) podFailed(ctx context.Context, patch *plan.PodPatch, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if apierrors.IsNotFound(err) {
		return
	}
	p.again(soon)
	p.unpatched = true
	if !apierrors.IsConflict(err) && ctx.Err() == nil {
		p.errs = append(p.errs, fmt.Errorf("patch Pod %s: %w", patch.Pod.Name, err))
	}
}

// confirm reads from the API server the Pods that join without having been written to in this
// pass, those that leave because their node is silent, and the owners of orphans. From a stale
// cache, as just after a change of leader, a pass would register Pods that are gone and remove
// entries of new ones, and of Pods whose node answers again.
func (p *pass) confirm(ctx context.Context, changes []plan.Changes) (changed bool, err error) {
	pods, registrations := p.unconfirmed(changes)
	var mu sync.Mutex
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(p.options.Workers)
	read := func(name types.NamespacedName, object client.Object, news func(found bool) bool) {
		group.Go(func() error {
			err := p.readOwner(groupCtx, name, object)
			if client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("read %T %s before its entries are changed: %w", object, name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			changed = news(err == nil) || changed
			return nil
		})
	}
	for uid, name := range pods {
		var pod corev1.Pod
		read(name, &pod, func(bool) bool { return p.refreshPod(name.Name, uid, &pod) })
	}
	for name := range registrations {
		read(name, &usherv1alpha1.Registration{}, func(found bool) bool {
			if found {
				p.snapshot.Known[name.String()] = true
			}
			return found
		})
	}
	err = group.Wait()
	if changed {
		p.again(soon)
	}
	return changed, err
}

// readOwner reads whom an entry names as its owner. A registry may list anything: of a name that no
// object can have, there is none.
func (p *pass) readOwner(ctx context.Context, name types.NamespacedName, object client.Object) error {
	for _, part := range []string{name.Namespace, name.Name} {
		if part == "" || len(content.IsPathSegmentName(part)) > 0 {
			return apierrors.NewNotFound(schema.GroupResource{}, name.Name)
		}
	}
	return p.reader.Get(ctx, name, object)
}

// unconfirmed returns what the changes depend on that only a cache has shown.
func (p *pass) unconfirmed(changes []plan.Changes) (map[types.UID]types.NamespacedName, map[types.NamespacedName]bool) {
	pods := map[types.UID]types.NamespacedName{}
	registrations := map[types.NamespacedName]bool{}
	for _, c := range changes {
		for _, change := range slices.Concat(c.Joins, c.Orphans, p.ofSilentNodes(c.Leaves)) {
			owner := change.Entry.Owner
			if owner.Namespace == p.snapshot.Namespace && !p.fresh[types.UID(owner.PodUID)] {
				pods[types.UID(owner.PodUID)] = types.NamespacedName{Namespace: owner.Namespace, Name: owner.Pod}
			}
			if !p.snapshot.Known[owner.Namespace+"/"+owner.Registration] {
				registrations[types.NamespacedName{Namespace: owner.Namespace, Name: owner.Registration}] = true
			}
		}
	}
	return pods, registrations
}

// ofSilentNodes returns the removals of entries whose Pods are on silent nodes.
func (p *pass) ofSilentNodes(leaves []registry.Change) (removals []registry.Change) {
	for _, change := range leaves {
		if at, found := p.find(change.Entry.Owner.Pod); found {
			if _, silent := plan.Silent(p.snapshot.Pods[at]); silent {
				removals = append(removals, change)
			}
		}
	}
	return removals
}

// refreshPod puts the API server's version of a Pod into the snapshot, and reports whether
// that changes anything. live is empty if there is none.
func (p *pass) refreshPod(name string, uid types.UID, live *corev1.Pod) bool {
	at, found := p.find(name)
	found = found && p.snapshot.Pods[at].UID == uid
	p.fresh[uid] = true
	switch {
	case live.UID != uid && !found:
		return false
	case live.UID != uid:
		p.snapshot.Pods = slices.Delete(p.snapshot.Pods, at, at+1)
	case !found:
		p.snapshot.Pods = slices.Insert(p.snapshot.Pods, at, live)
	case p.snapshot.Pods[at].ResourceVersion == live.ResourceVersion:
		return false
	default:
		p.snapshot.Pods[at] = live
	}
	return true
}

// noteSweeps keeps what sweeps found, for comparison with the next one.
func (p *pass) noteSweeps(changes []plan.Changes) {
	for _, c := range changes {
		if c.Swept {
			p.notes.swept[c.Target] = p.snapshot.Now
			p.notes.suspects[c.Target] = c.Suspects
			p.notes.left[c.Target] = len(c.Suspects) - len(c.Orphans)
		}
	}
	left := map[string]int{}
	for target, entries := range p.notes.left {
		left[target.Registry] += entries
	}
	for name, entries := range left {
		p.metrics.orphans.WithLabelValues(p.snapshot.Namespace, name).Set(float64(entries))
	}
}
