// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registries"
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

// execute carries out a plan: in the registries, then on the Pods. In between it plans again from what it has found out.
// The stage that it returns has the last plan.
func (r *Reconciler) execute(ctx context.Context, kept *passState, s stage) stage {
	first := s.seen.ofEndingPods(s.decided.Changes)
	s = r.apply(ctx, s, first)
	s, unprepared := r.protect(ctx, kept, s)
	s, unprepared = r.confirm(ctx, s, unprepared)
	if s.stopped {
		return s
	}
	s = r.change(ctx, s, first, without(s.decided.Changes, first, unprepared))
	s = s.with(r.patchPods(ctx, kept, s, s.decided.Patches))
	s = r.finishPods(ctx, s)
	s = r.respond(ctx, s)
	// The statuses include what failed in this pass.
	return s.seeing(s.seen.with(s.seen.snapshot.WithRegistries(r.withFailure)))
}

// withOutage is the state of a Registry with the outage that the last calls have found. That of a cloud's API keeps no
// callers from the load balancer.
func (r *Reconciler) withOutage(name string, state plan.RegistryState) plan.RegistryState {
	if !state.Follows {
		state.Outage = r.pool.Outage(name)
	}
	return state
}

// withFailure is the state of a Registry with why it is not called any more.
func (r *Reconciler) withFailure(name string, state plan.RegistryState) plan.RegistryState {
	_, state.Err = r.pool.Down(name)
	return state
}

// ofEndingPods returns the removals of entries whose Pods are being deleted. Their processes end
// now, and nothing takes a deletion back: they do not wait until the API server has shown whether
// other changes are due.
func (o *observation) ofEndingPods(changes []plan.Changes) (removals []plan.Changes) {
	for _, c := range changes {
		c = plan.Changes{Target: c.Target, Reasons: c.Reasons, Leaves: list.Only(c.Leaves, func(change registry.Change) bool {
			pod := o.snapshot.Pod(change.Entry.Owner.Pod)
			// Whose address an application's entry has is looked up first.
			return pod != nil && pod.DeletionTimestamp != nil && !change.Op.Overrides()
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

// protect records who will have entries where, and patches Pods before their first entry. It plans again from that.
// Nothing is registered in this pass for a Pod whose patch fails, and for the Registrations that it returns.
func (r *Reconciler) protect(
	ctx context.Context, kept *passState, s stage,
) (protected stage, unprepared map[string]bool) {
	prepared, unprepared, done := r.prepare(ctx, s.seen, s.decided.Outcomes)
	patches, written := preparedOnly(s.decided.Protect, unprepared), prepared != s.seen
	patched := r.patchPods(ctx, kept, s, patches)
	for i := range patches {
		patched.due = append(patched.due, patches[i].Due...)
	}
	s = s.with(done).with(patched)
	if !written && len(patches) == 0 {
		return s, unprepared
	}
	var fresh []plan.ReadPod
	for _, p := range patched.patches {
		if p.pod != nil {
			fresh = append(fresh, plan.ReadPod{Name: p.pod.Name, UID: p.pod.UID, Pod: p.pod})
		}
	}
	seen, _ := prepared.refreshing(fresh)
	return r.decide(s.seeing(seen)), unprepared
}

// preparedOnly drops patches that begin to guard Pods all of whose Registrations were not recorded. Whoever deletes
// such a Registration now makes it vanish, and nobody would know any more where the applications of Pods that it has
// guarded are listed.
func preparedOnly(patches []plan.PodPatch, unprepared map[string]bool) []plan.PodPatch {
	return list.Only(patches, func(p plan.PodPatch) bool {
		return p.Registrations == nil || !slices.Contains(p.AddFinalizers, usherv1alpha1.Finalizer) ||
			slices.ContainsFunc(strings.Split(*p.Registrations, ","), func(name string) bool { return !unprepared[name] })
	})
}

// refreshing is what is known with the API server's versions of Pods. It reports whether they change anything.
func (o *observation) refreshing(read []plan.ReadPod) (next *observation, changed bool) {
	snapshot, changed := o.snapshot.WithPods(read)
	next = o.with(snapshot)
	next.fresh = maps.Clone(o.fresh)
	for _, pod := range read {
		next.fresh[pod.UID] = true
	}
	return next, changed
}

// confirm has the API server confirm what the changes depend on. What it reads may make others join: each is read before
// it does. It adds the Registrations that register nothing in this pass to those that are behind.
func (r *Reconciler) confirm(ctx context.Context, s stage, behind map[string]bool) (stage, map[string]bool) {
	for {
		var owners results
		s.seen, behind, owners = r.confirmOwners(ctx, s.seen, s.decided.Changes, behind)
		s = s.with(owners)
		seen, evicted, noEvictions := r.confirmEvictions(ctx, s.seen, s.decided.Changes)
		seen, changed, err := r.confirmChanges(ctx, seen, s.decided.Changes)
		if err := errors.Join(noEvictions, err); err != nil {
			return s.with(r.stop(err)), behind
		}
		s = s.seeing(seen)
		if !changed && !evicted {
			return s, behind
		}
		seen, adopted, err := r.takeOver(ctx, s.seen)
		if err != nil {
			return s.with(r.stop(err)), behind
		}
		// A request that the caches did not show may be older than what they show of its owner.
		seen, returning := r.confirmReturns(ctx, seen)
		s = r.decide(s.seeing(seen).with(adopted).with(returning).with(r.setBack(overtaken)))
	}
}

// change makes the changes of registries that have not been made first, lists their targets, and plans again from that.
func (r *Reconciler) change(ctx context.Context, s stage, first, rest []plan.Changes) stage {
	s = r.apply(ctx, s, rest)
	learned := s.seen.learned
	learned.sweeps = learned.sweeps.after(s.seen.sweptOf(s.decided.Changes), s.seen.snapshot.Now)
	known := s.seen.knowing(learned)
	s = s.seeing(known.with(known.snapshot.WithSuspects(learned.sweeps.suspects)))
	changes := slices.Concat(first, rest)
	if len(changes) == 0 {
		return s
	}
	before := s.seen.snapshot.Listings
	targets := list.Map(changes, func(c plan.Changes) plan.Target { return c.Target })
	seen, listed := r.list(ctx, s.seen, plan.SortedTargets(targets))
	s = s.seeing(seen).with(listed)
	return r.decide(s.with(results{made: list.Map(changes, func(c plan.Changes) madeChanges {
		return madeChanges{c, before[c.Target], seen.snapshot.Listings[c.Target], seen.snapshot.Failed[c.Target]}
	})}))
}

// patchPods sends patches. What it has not begun in time is left to the next step or pass, which begins with it: a Pod
// that is to leave its registries meanwhile must not wait until the API server has taken all others.
func (r *Reconciler) patchPods(ctx context.Context, kept *passState, s stage, patches []plan.PodPatch) (done results) {
	namespace, first := s.seen.snapshot.Namespace, cmp.Or(s.firstPatch, kept.firstPatch)
	turn, _ := slices.BinarySearchFunc(patches, first, func(patch plan.PodPatch, name string) int {
		return strings.Compare(patch.Pod.Name, name)
	})
	patches = slices.Concat(patches[turn:], patches[:turn])
	all, late, began := make([]patchResult, len(patches)), make([]bool, len(patches)), r.clock.Now()
	each := make([]results, len(patches))
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), r.options.Workers, len(patches), func(i int) {
		all[i] = patchResult{patch: &patches[i]}
		if late[i] = r.clock.Now().Sub(began) >= r.patchTime(namespace); !late[i] {
			all[i], each[i] = r.patchPod(ctx, kept, &patches[i])
		}
	})
	done = merge(each...)
	if first := slices.Index(late, true); first >= 0 {
		done.firstPatch = patches[first].Pod.Name
		done = done.and(r.setBack(postponed))
	}
	done.patches = all
	return done
}

// patchTime is how long patches may begin now.
func (r *Reconciler) patchTime(namespace string) time.Duration {
	if s := r.shared(namespace); s != nil && s.pace.Urgent() {
		return urgentPatchTime
	}
	return patchTime
}

// patchPod makes a patch. Keys of users' choice go through the Pod itself, where policies see them, after all else, so
// that they let nothing go that is not recorded.
func (r *Reconciler) patchPod(
	ctx context.Context, kept *passState, patch *plan.PodPatch,
) (done patchResult, setbacks results) {
	done.patch = patch
	own, chosen := patch.Split()
	if chosen.Empty() || !own.Empty() {
		patched, err := r.sendPatch(ctx, &own, r.client.Status().Patch)
		if err != nil {
			return r.patchFailed(ctx, kept, done, &own, err)
		}
		done.sent = append(done.sent, &own)
		if chosen.Empty() {
			done.pod = patched
			return done, results{}
		}
		chosen.Pod = patched
	}
	patched, err := r.sendPatch(ctx, &chosen, r.patchWhole)
	if err != nil {
		return r.patchFailed(ctx, kept, done, &chosen, err)
	}
	done.sent, done.pod = append(done.sent, &chosen), patched
	return done, results{}
}

// sender sends a patch to an object, or to a subresource of it.
type sender func(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error

// patchWhole sends a patch to an object itself.
func (r *Reconciler) patchWhole(
	ctx context.Context, object client.Object, patch client.Patch, _ ...client.SubResourcePatchOption,
) error {
	return r.client.Patch(ctx, object, patch)
}

// sendPatch sends a patch, or a part of one, and returns the Pod as it is then.
func (r *Reconciler) sendPatch(ctx context.Context, patch *plan.PodPatch, send sender) (*corev1.Pod, error) {
	next := &corev1.Pod{}
	next.Namespace, next.Name = patch.Pod.Namespace, patch.Pod.Name
	if err := send(ctx, next, client.RawPatch(types.StrategicMergePatchType, patch.Encode())); err != nil {
		return nil, err
	}
	r.written.pods.Wrote(next.Namespace, next, r.clock.Now())
	return next, nil
}

// patchFailed says what a patch means that has failed, or a part of it. It is no error if the Pod is gone or has changed:
// the next pass sees it as it is.
func (r *Reconciler) patchFailed(
	ctx context.Context, kept *passState, done patchResult, part *plan.PodPatch, err error,
) (patchResult, results) {
	if apierrors.IsNotFound(err) {
		done.gone = true
		return done, results{}
	}
	if keys := part.Chosen(); len(keys) > 0 && kube.Refused(err) {
		before := kept.refusals[part.Pod.UID]
		now := r.refusal(before, keys, err)
		done.keys = &now
		if before.wait == 0 {
			return done, r.heldFor(batchDelay)
		}
		return done, r.heldFor(now.wait)
	}
	if isOver(ctx) {
		return done, r.setBack(overtaken)
	}
	return done, r.setBack(overtaken).and(r.failed(part.Pod, fmt.Errorf("patch Pod %s: %w", part.Pod.Name, err)))
}

// confirmChanges reads from the API server the Pods that join without having been written to in this
// pass, those that leave because their node is silent, and the owners of orphans. From a stale
// cache, as just after a change of leader, a pass would register Pods that are gone and remove
// entries of new ones, and of Pods whose node answers again.
func (r *Reconciler) confirmChanges(
	ctx context.Context, o *observation, changes []plan.Changes,
) (next *observation, changed bool, err error) {
	pods, registrations := o.unconfirmed(changes)
	var mu sync.Mutex
	var fresh []plan.ReadPod
	var known []string
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(r.options.Workers)
	read := func(name types.NamespacedName, object client.Object, note func(found bool)) {
		group.Go(func() error {
			err := r.readOwner(groupCtx, name, object)
			if client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("read %T %s before its entries are changed: %w", object, name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			note(err == nil)
			return nil
		})
	}
	for uid, name := range pods {
		var pod corev1.Pod
		read(name, &pod, func(bool) { fresh = append(fresh, plan.ReadPod{Name: name.Name, UID: uid, Pod: &pod}) })
	}
	for name := range registrations {
		read(name, &usherv1alpha1.Registration{}, func(found bool) {
			if found {
				known = append(known, name.String())
			}
		})
	}
	if err := group.Wait(); err != nil {
		return o, false, err
	}
	o, changed = o.refreshing(fresh)
	return o.with(o.snapshot.WithKnown(known...)), changed || len(known) > 0, nil
}

// readOwner reads whom an entry names as its owner. A registry may list anything: of a name that no
// object can have, there is none.
func (r *Reconciler) readOwner(ctx context.Context, name types.NamespacedName, object client.Object) error {
	if !plan.IsName(name.Namespace) || !plan.IsName(name.Name) {
		return apierrors.NewNotFound(schema.GroupResource{}, name.Name)
	}
	return r.reader.Get(ctx, name, object)
}

// unconfirmed returns what the changes depend on that only a cache has shown.
func (o *observation) unconfirmed(
	changes []plan.Changes,
) (pods map[types.UID]types.NamespacedName, registrations map[types.NamespacedName]bool) {
	pods, registrations = map[types.UID]types.NamespacedName{}, map[types.NamespacedName]bool{}
	for _, c := range changes {
		for _, change := range slices.Concat(c.Joins, c.Orphans, o.toConfirm(c.Leaves)) {
			owner := change.Entry.Owner
			if owner.Namespace == o.snapshot.Namespace && !o.fresh[types.UID(owner.PodUID)] {
				pods[types.UID(owner.PodUID)] = types.NamespacedName{Namespace: owner.Namespace, Name: owner.Pod}
			}
			if !o.snapshot.Known[owner.Namespace+"/"+owner.Registration] {
				registrations[types.NamespacedName{Namespace: owner.Namespace, Name: owner.Registration}] = true
			}
		}
	}
	return pods, registrations
}

// toConfirm returns the removals of entries whose Pods are on silent nodes, and the overrides: by a stale cache, an
// address may still be that of a Pod that is gone.
func (o *observation) toConfirm(leaves []registry.Change) []registry.Change {
	return list.Only(leaves, func(change registry.Change) bool {
		if change.Op.Overrides() {
			return true
		}
		pod := o.snapshot.Pod(change.Entry.Owner.Pod)
		if pod == nil {
			return false
		}
		_, silent := plan.Silent(pod)
		return silent
	})
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
func (r *Reconciler) apply(ctx context.Context, s stage, changes []plan.Changes) stage {
	batches, each, later := make([]batch, len(changes)), make([]results, len(changes)), make([]map[string]error, len(changes))
	for i, c := range changes { // before the first call: a rate limit is for all of them
		batches[i].changes, later[i], each[i] = r.inTurn(s.seen, c)
	}
	failures := registry.Each(ctx, len(changes), min(r.options.Workers, maxCalls), func(i int) error {
		if batches[i].changes.Empty() {
			return nil
		}
		failed, err := r.applyOne(ctx, s.seen, batches[i].changes)
		each[i] = each[i].and(failed)
		return err
	})
	notMade := map[plan.Target]map[string]error{}
	for i, c := range changes {
		b := &batches[i]
		b.failed, b.rest = registry.ChangeErrors(failures[i])
		each[i].batches, each[i].due = []batch{*b}, []plan.Target{c.Target}
		failed := maps.Clone(b.failed)
		if b.rest != nil {
			failed[""] = b.rest
		}
		if len(failed) > 0 {
			each[i] = each[i].and(r.setBack(refused))
		}
		maps.Copy(failed, later[i])
		notMade[c.Target] = failed
	}
	return s.with(merge(each...)).seeing(s.seen.with(s.seen.snapshot.WithFailed(notMade).WithLeft(takenOut(batches))))
}

// takenOut are the Pods whose entries are taken out, by target. If that fails, they are listed all the same.
func takenOut(batches []batch) map[plan.Target][]string {
	left := map[plan.Target][]string{}
	for _, b := range batches {
		for _, change := range b.changes.Leaves {
			left[b.changes.Target] = append(left[b.changes.Target], change.Entry.Owner.PodUID)
		}
	}
	return left
}

// registryFailed begins a back-off: other passes do not wait for the registry, and the probe
// finds out when it is back.
func (r *Reconciler) registryFailed(ctx context.Context, object *usherv1alpha1.Registry, err error) results {
	if !registries.IsOutage(ctx, err) {
		return results{}
	}
	back, first := r.pool.BeginBackOff(object, err)
	registryJournal{r.metrics, r.announcer}.Fails(ctx, object, err, first)
	enqueueRegistry(r.probes, object)
	return r.heldFor(back + registries.Slack(object))
}

// applyOne makes the changes of a target, batch by batch, until one fails as a whole. It
// returns the refusals of all of them.
func (r *Reconciler) applyOne(ctx context.Context, o *observation, c plan.Changes) (done results, err error) {
	if _, down := r.pool.Down(c.Target.Registry); down != nil {
		return done, down // The removals that were made first have found that out.
	}
	asked, c := c.Asked()
	var errs []error
	if len(asked) > 0 {
		errs = append(errs, r.options.Applications.All(ctx, asked, c.Calls))
	}
	if c.Empty() {
		return done, errors.Join(errs...)
	}
	object := o.objects[c.Target.Registry]
	conn, err := r.pool.Get(ctx, object, c.Target.Prefix, false)
	if err != nil {
		return done, errors.Join(append(errs, err)...)
	}
	for batch := range slices.Chunk(slices.Concat(c.Leaves, c.Orphans, c.Joins), maxBatch) {
		err := conn.Apply(ctx, c.Target.Service, batch)
		errs = append(errs, err)
		_, rest := registry.ChangeErrors(err)
		if errors.Is(rest, registry.ErrTransient) && !errors.Is(rest, registry.ErrOneService) {
			done = done.and(r.registryFailed(ctx, object, rest))
		}
		if rest != nil {
			break
		}
	}
	return done, errors.Join(errs...)
}

// inTurn keeps in a batch what the Registry takes now, and returns the rest by ID. Nobody
// waits: the target stays due, and another pass follows in time.
func (r *Reconciler) inTurn(o *observation, c plan.Changes) (now plan.Changes, later map[string]error, done results) {
	limiter := r.pool.Limiter(o.objects[c.Target.Registry])
	if limiter == nil {
		return c, nil, done
	}
	at := r.clock.Now()
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
		done = r.heldFor(time.Duration(float64(soonest) / float64(limiter.Limit()) * float64(time.Second)))
	}
	return c, later, done
}
