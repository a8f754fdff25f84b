// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// defaultWorkers bounds the requests about Pods that one pass has in flight.
	defaultWorkers = 32
	// patchTime is how long a pass begins patches of Pods, before and after the registries change;
	// urgentPatchTime as soon as a Pod ends that registries may list.
	patchTime       = 200 * time.Millisecond
	urgentPatchTime = 50 * time.Millisecond
	// soon is when the next pass follows one during which somebody changed an object. The
	// event of that change may already be behind us.
	soon = time.Second
)

// execute carries out the plan up to the registries, and plans again from what they list
// then. It leaves the patches of Pods to the caller.
func (p *pass) execute(ctx context.Context, decided plan.Plan) (plan.Plan, error) {
	first := p.ofEndingPods(decided.Changes)
	p.apply(ctx, slices.Clone(first))
	unprepared, prepared := p.prepare(ctx, decided.Outcomes)
	p.protect(ctx, decided.Protect)
	if prepared || len(decided.Protect) > 0 {
		decided = p.decide()
	}
	// What was read may make others join: each is read before it does.
	for changed := true; changed; {
		p.confirmOwners(ctx, decided.Changes, unprepared)
		var err error
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
	rest := without(decided.Changes, first, unprepared)
	p.apply(ctx, slices.Clone(rest))
	changes := slices.Concat(first, rest)
	if len(changes) == 0 {
		return decided, nil
	}
	before := maps.Clone(p.snapshot.Listings)
	p.list(ctx, plan.SortedTargets(list.Map(changes, func(c plan.Changes) plan.Target { return c.Target })))
	for _, c := range changes {
		p.logChanges(ctx, c, before[c.Target].Entries)
	}
	return p.decide(), nil
}

// ofEndingPods returns the removals of entries whose Pods are being deleted. Their processes end
// now, and nothing takes a deletion back: they do not wait until the API server has shown whether
// other changes are due.
func (p *pass) ofEndingPods(changes []plan.Changes) (removals []plan.Changes) {
	for _, c := range changes {
		c = plan.Changes{Target: c.Target, Reasons: c.Reasons, Leaves: list.Only(c.Leaves, func(change registry.Change) bool {
			at, found := p.find(change.Entry.Owner.Pod)
			return found && p.snapshot.Pods[at].DeletionTimestamp != nil
		})}
		if !c.Empty() {
			removals = append(removals, c)
		}
	}
	return removals
}

// without drops the removals that were made first, what some Registrations would register, and
// targets where nothing is left to change.
func without(changes, first []plan.Changes, registrations map[string]bool) (left []plan.Changes) {
	type place struct {
		plan.Target
		id string
	}
	made := map[place]bool{}
	for _, c := range first {
		for _, change := range c.Leaves {
			made[place{c.Target, change.Entry.ID}] = true
		}
	}
	for _, c := range changes {
		c.Leaves = list.Only(c.Leaves, func(change registry.Change) bool { return !made[place{c.Target, change.Entry.ID}] })
		c.Joins = list.Only(c.Joins, func(change registry.Change) bool { return !registrations[change.Entry.Owner.Registration] })
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
	began := p.clock.Now()
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), p.options.Workers, len(patches), func(i int) {
		if late[i] = p.clock.Now().Sub(began) >= p.patchTime(); !late[i] {
			patched[i] = p.patchPod(ctx, &patches[i]) // each failure asks for another pass itself
		}
	})
	if first := slices.Index(late, true); first >= 0 {
		p.notes.turn, p.postponed = patches[first].Pod.Name, true
		for i := range patches {
			if late[i] {
				p.leaveUnpatched(&patches[i])
			}
		}
		p.again(batchDelay)
	}
	return slices.DeleteFunc(patched, func(pod *corev1.Pod) bool { return pod == nil })
}

// patchTime is how long patches may begin now.
func (p *pass) patchTime() time.Duration {
	if p.notes.pace.Urgent() {
		return urgentPatchTime
	}
	return patchTime
}

// patchPod returns nil if the Pod could not be patched as planned. Keys of users' choice go through the Pod
// itself, where policies see them, after all else, so that they let nothing go that is not recorded.
func (p *pass) patchPod(ctx context.Context, patch *plan.PodPatch) *corev1.Pod {
	own, chosen := patch.Split()
	if chosen.Empty() || !own.Empty() {
		patched := p.sendPatch(ctx, &own, p.client.Status().Patch)
		if patched == nil || chosen.Empty() {
			return patched
		}
		chosen.Pod = patched
	}
	return p.sendPatch(ctx, &chosen, func(ctx context.Context, pod client.Object, data client.Patch, _ ...client.SubResourcePatchOption) error {
		return p.client.Patch(ctx, pod, data)
	})
}

// sendPatch sends a patch, or a part of one; nil means that it failed.
func (p *pass) sendPatch(
	ctx context.Context, patch *plan.PodPatch, send func(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error,
) *corev1.Pod {
	next := &corev1.Pod{}
	next.Namespace, next.Name = patch.Pod.Namespace, patch.Pod.Name
	if err := send(ctx, next, client.RawPatch(types.StrategicMergePatchType, patch.Encode())); err != nil {
		p.podFailed(ctx, patch, err)
		return nil
	}
	p.reportReleases(ctx, patch)
	p.Reconciler.written.pods.Wrote(next.Namespace, next, p.clock.Now())
	if len(patch.Chosen()) > 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.notes.refusals, next.UID)
	}
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
	if keys := patch.Chosen(); len(keys) > 0 && kube.Refused(err) {
		p.refused(patch.Pod.UID, keys, err)
		return
	}
	p.again(soon)
	p.leaveUnpatched(patch)
	if ctx.Err() == nil {
		p.failed(ctx, patch.Pod, fmt.Errorf("patch Pod %s: %w", patch.Pod.Name, err))
	}
}

// leaveUnpatched notes whom a Pod concerns that is not patched as planned: what its record and its condition say
// of them may be old.
func (p *pass) leaveUnpatched(patch *plan.PodPatch) {
	for _, name := range patch.Concerns {
		p.unpatched[name] = true
	}
	for _, target := range patch.Targets {
		p.needed[target] = true
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
	if !plan.IsName(name.Namespace) || !plan.IsName(name.Name) {
		return apierrors.NewNotFound(schema.GroupResource{}, name.Name)
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
func (p *pass) ofSilentNodes(leaves []registry.Change) []registry.Change {
	return list.Only(leaves, func(change registry.Change) bool {
		at, found := p.find(change.Entry.Owner.Pod)
		if found {
			_, found = plan.Silent(p.snapshot.Pods[at])
		}
		return found
	})
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
	p.countOrphans()
}

const (
	// maxCalls bounds the calls to registries that one pass has in flight.
	maxCalls = 16
	// maxBatch bounds the changes of one call to a registry: the time-out is for a call, however
	// many Pods change together, and a registry that has lost all entries gets thousands again.
	maxBatch = 500
	// refusedRetry is when a change that a registry refused is tried again.
	refusedRetry = 10 * time.Second
)

// apply sends one batch to each target.
func (p *pass) apply(ctx context.Context, changes []plan.Changes) {
	later := make([]map[string]error, len(changes))
	for i, c := range changes { // before the first call: both touch the pass
		changes[i], later[i] = p.inTurn(c)
		p.notes.dirty[c.Target] = true
	}
	failures := registry.Each(ctx, len(changes), min(p.options.Workers, maxCalls), func(i int) error {
		if changes[i].Empty() {
			return nil
		}
		return p.applyOne(ctx, changes[i])
	})
	for i, c := range changes {
		failed, rest := registry.ChangeErrors(failures[i])
		p.countRefused(c.Target.Registry, failed, rest)
		if rest != nil {
			failed[""] = rest
		} else {
			p.metrics.removed.WithLabelValues(c.Target.Registry).Add(float64(len(c.Orphans)))
		}
		if len(failed) > 0 {
			p.again(refusedRetry)
		}
		maps.Copy(failed, later[i])
		maps.Copy(failed, p.snapshot.Failed[c.Target])
		if len(failed) > 0 {
			p.snapshot.Failed[c.Target] = failed
		}
	}
}

// countRefused counts what a registry refused. Conflicts are no errors, and outages are
// counted where they are noticed.
func (p *pass) countRefused(name string, refused map[string]error, rest error) {
	if errors.Is(rest, registry.ErrPermanent) {
		p.metrics.failed(name, rest)
	}
	for _, err := range refused {
		if errors.Is(err, registry.ErrPermanent) || errors.Is(err, registry.ErrForeign) {
			p.metrics.failed(name, registry.Permanent(err))
		}
	}
}

// registryFailed begins a back-off: other passes do not wait for the registry, and the probe
// finds out when it is back.
func (p *pass) registryFailed(ctx context.Context, object *usherv1alpha1.Registry, err error) {
	if !isOutage(ctx, err) {
		return
	}
	back := p.backOff(ctx, object, err)
	enqueueRegistry(p.probes, object)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.again(back + timeoutOf(object) + probeSlack)
}

// applyOne makes the changes of a target, batch by batch, until one fails as a whole. It
// returns the refusals of all of them.
func (p *pass) applyOne(ctx context.Context, c plan.Changes) error {
	if _, down := p.pool.down(c.Target.Registry); down != nil {
		return down // The removals that were made first have found that out.
	}
	object := p.objects[c.Target.Registry]
	conn, err := p.pool.get(ctx, object, c.Target.Prefix, false)
	if err != nil {
		return err
	}
	var errs []error
	for batch := range slices.Chunk(slices.Concat(c.Leaves, c.Orphans, c.Joins), maxBatch) {
		err := conn.Apply(ctx, c.Target.Service, batch)
		errs = append(errs, err)
		_, rest := registry.ChangeErrors(err)
		if errors.Is(rest, registry.ErrTransient) && !errors.Is(rest, registry.ErrOneService) {
			p.registryFailed(ctx, object, rest)
		}
		if rest != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// limiter returns the limiter of a Registry, nil if it has no limit. A changed limit starts
// over.
func (p *pool) limiter(r *usherv1alpha1.Registry) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.state(r.Name)
	if r.Spec.RateLimit == nil {
		s.turns = nil
		return nil
	}
	limit, burst := rate.Limit(r.Spec.RateLimit.ChangesPerSecond), int(ptr.Deref(r.Spec.RateLimit.Burst, r.Spec.RateLimit.ChangesPerSecond))
	if s.turns == nil || s.turns.Limit() != limit || s.turns.Burst() != burst {
		s.turns = rate.NewLimiter(limit, burst)
	}
	return s.turns
}

// inTurn keeps in a batch what the Registry takes now, and returns the rest by ID. Nobody
// waits: the target stays due, and another pass follows in time.
func (p *pass) inTurn(c plan.Changes) (now plan.Changes, later map[string]error) {
	limiter := p.pool.limiter(p.objects[c.Target.Registry])
	if limiter == nil {
		return c, nil
	}
	at := p.clock.Now()
	total := len(c.Leaves) + len(c.Orphans) + len(c.Joins)
	free := max(min(total, int(limiter.TokensAt(at))), 0)
	if !limiter.AllowN(at, free) {
		free = 0 // Another namespace was faster.
	}
	later = map[string]error{}
	take := func(changes []registry.Change) []registry.Change {
		n := min(free, len(changes))
		for _, change := range changes[n:] {
			later[change.Entry.ID] = plan.ErrRateLimited
		}
		free -= n
		return changes[:n:n]
	}
	c.Leaves, c.Orphans, c.Joins = take(c.Leaves), take(c.Orphans), take(c.Joins)
	if len(later) > 0 {
		soonest := min(len(later), limiter.Burst())
		p.again(time.Duration(float64(soonest) / float64(limiter.Limit()) * float64(time.Second)))
	}
	return c, later
}
