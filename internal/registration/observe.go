// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registries"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/kinds"
)

// observation is what a pass knows of a namespace at one moment. Nobody changes an observation: a step that finds out
// more, or that has written something, returns another one.
type observation struct {
	snapshot plan.Snapshot
	// objects are the Registry objects by name.
	objects map[string]*usherv1alpha1.Registry
	// fresh are Pods that this pass has read from the API server, or written.
	fresh map[types.UID]bool
	// evictionsRead means that this pass has read the evictions from the API server.
	evictionsRead bool
	// asked are the namespaces whose Registrations the snapshot knows.
	asked map[string]bool
	// sweepAt is when the next sweep is due, backAt when the first registry is called again that is down.
	sweepAt, backAt time.Time
	learned
}

// with is what is known with another snapshot.
func (o *observation) with(snapshot plan.Snapshot) *observation {
	next := *o
	next.snapshot = snapshot
	return &next
}

// knowing is what is known after a pass has learned something.
func (o *observation) knowing(learned learned) *observation {
	next := *o
	next.learned = learned
	return &next
}

// observe reads what a pass needs: the namespace from the caches, and what its targets list. Before that, Registrations
// that are gone, or that the caches do not show, are added to those that the caches show.
func (r *Reconciler) observe(ctx context.Context, namespace string, state *namespaceState) (*observation, results, error) {
	o, err := r.readObjects(ctx, namespace, state.pass)
	if err != nil {
		return nil, results{}, err
	}
	o, owners, err := r.readOwners(ctx, o)
	if err != nil {
		return nil, results{}, err
	}
	o, adopted, err := r.takeOver(ctx, o)
	if err != nil {
		return nil, results{}, err
	}
	due := slices.Concat(plan.Outdated(o.snapshot), o.changedServices(state.shared.takeChanged()))
	o = o.with(o.snapshot.WithDue(due...).At(r.clock.Now()))
	o, returning := r.confirmReturns(ctx, o)
	o = o.planSweeps(plan.Targets(o.snapshot))
	needs, took := timed(r, func() []plan.Target { return plan.Needs(o.snapshot) })
	o, listed := r.list(ctx, o, needs)
	return o, owners.and(adopted).and(returning).and(took).and(listed), nil
}

// changedServices are the targets in Services that have changed, or whose EndpointSlices have: Pods there may say that
// nothing is left to do.
func (o *observation) changedServices(changed map[string]bool) []plan.Target {
	if len(changed) == 0 {
		return nil
	}
	return list.Only(plan.Targets(o.snapshot), func(t plan.Target) bool {
		return changed[t.Service] && o.snapshot.Registries[t.Registry].Gated
	})
}

// planSweeps forgets what is known of other targets, and of objects that are gone, and has those of these targets swept
// whose sweep is due.
func (o *observation) planSweeps(targets []plan.Target) *observation {
	known, objects := map[plan.Target]bool{}, map[types.UID]bool{}
	for _, r := range o.snapshot.Registrations {
		objects[r.UID] = true
	}
	for _, target := range targets {
		if object := o.objects[target.Registry]; object != nil {
			known[target], objects[object.UID] = true, true
		}
	}
	learned := o.learned
	learned.sweeps, learned.followed, learned.confirmed = learned.sweeps.of(known), cloned(o.followed), cloned(o.confirmed)
	maps.DeleteFunc(learned.followed, func(target plan.Target, last followed) bool {
		return !known[target] && !o.snapshot.Now.Before(last.again) // a target that comes back is not asked sooner
	})
	maps.DeleteFunc(learned.confirmed, func(object types.UID, _ bool) bool { return !objects[object] })
	next := *o.knowing(learned)
	due, at := next.sweepsDue(targets, o.snapshot.Now)
	next.sweepAt = at
	return next.with(next.snapshot.WithSuspects(learned.sweeps.suspects).WithSweeps(due))
}

// readObjects reads the namespace from the caches.
func (r *Reconciler) readObjects(ctx context.Context, namespace string, kept *passState) (*observation, error) {
	cluster, err := r.keepClusterID(ctx)
	if err != nil {
		return nil, err
	}
	here := client.InNamespace(namespace)
	pods, noPods := r.listPods(ctx, namespace)
	slices.SortFunc(pods, kube.ByName[*corev1.Pod])
	sets, noSets := kube.List[*appsv1alpha1.CloneSet](ctx, r.client, "CloneSets", &appsv1alpha1.CloneSetList{}, here)
	budgets, noBudgets := kube.List[*policyv1.PodDisruptionBudget](
		ctx, r.client, "PodDisruptionBudgets", &policyv1.PodDisruptionBudgetList{}, here)
	registrations, noRegistrations := r.listRegistrations(ctx, namespace)
	known, noRegistries := r.readRegistries(ctx, namespace)
	evictions, noEvictions := r.readEvictions(ctx, namespace, kept.said)
	if err := errors.Join(noEvictions, noPods, noSets, noBudgets, noRegistrations, noRegistries); err != nil {
		return nil, err
	}
	names, now := map[string]bool{}, r.clock.Now()
	for _, name := range namesOfAll(registrations) {
		names[name] = true
	}
	pods, _ = r.written.pods.Merge(namespace, pods, now)
	registrations, _ = r.written.registrations.Merge(namespace, registrations, now)
	return &observation{
		objects: known.objects, fresh: map[types.UID]bool{}, asked: map[string]bool{namespace: true}, backAt: known.backAt,
		learned: kept.learned,
		snapshot: plan.Snapshot{
			Process: r.options.Process, Cluster: cluster, Namespace: namespace, Ending: known.ending,
			Pods: pods, CloneSets: sets, Budgets: budgets, Evictions: evictions, Registrations: registrations,
			Registries: known.states, Known: names, Listings: map[plan.Target]plan.Listing{},
			Followed: map[plan.Target]plan.Followed{}, Failed: map[plan.Target]map[string]error{},
			Due: kept.due, Sweep: map[plan.Target]bool{},
			Suspects: kept.sweeps.suspects, Memory: kept.plans, HookKeys: r.options.HookKeys, Finish: r.options.Finish,
			LoopbackPods: r.options.LoopbackPods,
			Answers:      r.options.Asker.Answers(namespace), Refusals: refusalsOf(kept.refusals, pods),
			Unlisted: kept.unlisted, Departures: kept.departures,
		},
	}, nil
}

// namesOfAll are the "namespace/name"s of Registrations.
func namesOfAll(registrations []*usherv1alpha1.Registration) []string {
	return list.Map(registrations, func(r *usherv1alpha1.Registration) string { return r.Namespace + "/" + r.Name })
}

// knowOwners knows the Registrations of the namespaces that have entries there: those of other namespaces count where a
// service lists entries of theirs, and cost nothing where none does.
func (r *Reconciler) knowOwners(ctx context.Context, o *observation, entries []registry.Entry) (*observation, error) {
	asked, known := map[string]bool{}, []string(nil)
	for i := range entries {
		owner := &entries[i].Owner
		if owner.Cluster != o.snapshot.Cluster || o.asked[owner.Namespace] || asked[owner.Namespace] {
			continue
		}
		asked[owner.Namespace] = true
		registrations, err := r.listRegistrations(ctx, owner.Namespace)
		if err != nil {
			return o, err
		}
		known = append(known, namesOfAll(registrations)...)
	}
	if len(asked) == 0 {
		return o, nil
	}
	maps.Copy(asked, o.asked)
	next := o.with(o.snapshot.WithKnown(known...))
	next.asked = asked
	return next, nil
}

// object is a pointer to an API object.
type object[T any] interface {
	*T
	client.Object
}

// read reads an object; nil if there is none.
func read[T any, P object[T]](ctx context.Context, from client.Reader, what string, name types.NamespacedName) (P, error) {
	found := P(new(T))
	if err := from.Get(ctx, name, found); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", what, name.Name, err)
	}
	return found, nil
}

// lister lists the objects of a namespace, in any order. They are the cache's own.
type lister[P client.Object] func(ctx context.Context, namespace string) ([]P, error)

// podsOf lists through a client.
func (r *Reconciler) podsOf(ctx context.Context, namespace string) ([]*corev1.Pod, error) {
	return kube.List[*corev1.Pod](ctx, r.client, "Pods", &corev1.PodList{}, client.InNamespace(namespace))
}

// registrationsOf lists through a client; "" stands for all namespaces.
func (r *Reconciler) registrationsOf(ctx context.Context, namespace string) ([]*usherv1alpha1.Registration, error) {
	in := client.InNamespace(namespace)
	return kube.List[*usherv1alpha1.Registration](ctx, r.client, "Registrations", &usherv1alpha1.RegistrationList{}, in)
}

// byIndex lists from an informer's index, if there is one: a cache of some namespaces has several. A
// client's list copies each object's outermost struct: six megabytes for 5,000 Pods, in every pass.
func byIndex[T any, P object[T]](ctx context.Context, from ctrlcache.Cache, otherwise lister[P]) (lister[P], error) {
	informer, err := from.GetInformer(ctx, P(new(T)), ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", P(nil), err)
	}
	shared, ok := informer.(toolscache.SharedIndexInformer)
	if !ok {
		return otherwise, nil
	}
	return func(_ context.Context, namespace string) ([]P, error) {
		objects, err := shared.GetIndexer().ByIndex(toolscache.NamespaceIndex, namespace)
		if err != nil {
			return nil, fmt.Errorf("list %T: %w", P(nil), err)
		}
		all := make([]P, len(objects))
		for i, object := range objects {
			all[i], _ = object.(P) // an informer holds nothing else
		}
		return all, nil
	}, nil
}

// knownRegistries are the Registries, as a pass over a namespace finds them.
type knownRegistries struct {
	objects map[string]*usherv1alpha1.Registry
	states  map[string]plan.RegistryState
	// backAt is when the first one is called again that is down.
	backAt time.Time
	// ending means that the namespace is being deleted.
	ending bool
}

func (r *Reconciler) readRegistries(ctx context.Context, namespace string) (known knownRegistries, err error) {
	objects, err := registries.List(ctx, r.client)
	if err != nil {
		return known, err
	}
	objects, _ = r.written.registries.Merge(namespace, objects, r.clock.Now())
	selected, ending, err := r.selected(ctx, namespace)
	if err != nil {
		return known, err
	}
	known = knownRegistries{map[string]*usherv1alpha1.Registry{}, map[string]plan.RegistryState{}, time.Time{}, ending}
	for _, object := range objects {
		if err := r.pool.Recall(ctx, object.Name); err != nil {
			return known, err
		}
		until, down := r.pool.Down(object.Name)
		if down != nil {
			known.backAt = list.Earliest(known.backAt, until)
		}
		known.objects[object.Name], known.states[object.Name] = object, stateInPlans(object, namespace, selected, down)
	}
	return known, nil
}

// stateInPlans is what plans know of a Registry. selected reports whether a selector matches the namespace, down is why the
// registry is not called now.
func stateInPlans(
	r *usherv1alpha1.Registry, namespace string, selected func(*usherv1alpha1.LabelSelector) bool, down error,
) plan.RegistryState {
	kind, settings := kinds.Of(r, namespace)
	state := plan.RegistryState{
		Prefix: settings.Root, Denied: !selected(r.Spec.Namespaces), Leaving: r.DeletionTimestamp != nil,
		HoldsBack: kind.HoldsBack, Gated: kind.Gated, Follows: kind.Follows, Overrides: kind.Overrides, Counts: kind.Counts,
		Label: plan.LabelOf(r.Spec.Service), Err: down, Strict: r.Spec.StrictServices, Users: r.Status.Users,
		Fold: settings.Fold, Own: settings.Own,
	}
	for _, rule := range r.Spec.Services {
		state.Rules = append(state.Rules, plan.ServiceRule{Names: rule.Names, Admits: selected(rule.Namespaces), Shared: rule.Shared})
	}
	return state
}

// selected reads a namespace. It returns whether a Registry's selector matches it (without one, all do), and whether the
// namespace is being deleted.
func (r *Reconciler) selected(ctx context.Context, name string) (
	matches func(*usherv1alpha1.LabelSelector) bool, ending bool, err error,
) {
	namespace := metadataOf(corev1.SchemeGroupVersion.WithKind("Namespace"))
	err = r.client.Get(ctx, types.NamespacedName{Name: name}, namespace)
	if client.IgnoreNotFound(err) != nil {
		return nil, false, fmt.Errorf("read namespace %s: %w", name, err)
	}
	exists := err == nil
	return func(namespaces *usherv1alpha1.LabelSelector) bool {
		return namespaces == nil || exists && namespaces.Matches(namespace.Labels)
	}, exists && namespace.DeletionTimestamp != nil, nil
}

// listed is what came of the listing of a target.
type listed struct {
	listing plan.Listing
	results
}

// list lists targets. It does not call registries that are known to be down.
func (r *Reconciler) list(ctx context.Context, o *observation, targets []plan.Target) (*observation, results) {
	o, targets, listings, followed := r.askOrRecall(o, targets)
	all, done := timed(r, func() []listed { return r.listAll(ctx, o, targets) })
	for i, target := range targets {
		listing, err := all[i].listing, error(nil)
		if o, err = r.knowOwners(ctx, o, listing.Entries); err != nil {
			listing = plan.Listing{Err: err}
		}
		if listing.Entries != nil || listing.Err != nil {
			listings[target] = listing
		}
		done = done.and(all[i].results)
	}
	// Waits count from the end of the listing: an earlier time would shorten them.
	now := r.clock.Now()
	o, followed = o.follow(targets, listings, followed, now)
	return o.with(o.snapshot.WithListings(listings, followed).WithRegistries(r.withOutage).At(now)), done
}

func (r *Reconciler) listAll(ctx context.Context, o *observation, targets []plan.Target) []listed {
	all := make([]listed, len(targets))
	failed := registry.Each(ctx, len(targets), min(r.options.Workers, maxCalls), func(i int) error {
		if object := o.objects[targets[i].Registry]; object != nil {
			all[i] = r.listOne(ctx, object, targets[i])
		}
		return nil
	})
	for i, err := range failed { // a panic
		if err != nil {
			all[i] = listed{listing: plan.Listing{Err: err}}
		}
	}
	return all
}

func (r *Reconciler) listOne(ctx context.Context, object *usherv1alpha1.Registry, target plan.Target) listed {
	// A registry that has just failed, also for another target of this pass, is not called again, and its last
	// listing does not count any more.
	if _, down := r.pool.Down(target.Registry); down != nil {
		return listed{listing: plan.Listing{Err: down}}
	}
	c, err := r.pool.Get(ctx, object, target.Prefix, false)
	if err != nil {
		return listed{plan.Listing{Err: err}, r.registryFailed(ctx, object, err)}
	}
	selector, entries, err := c.Choose(ctx, target.Service)
	if errors.Is(err, registry.ErrOneService) {
		return r.unlistable(ctx, object.Name, target, err)
	}
	r.pool.RecordCall(ctx, object.Name, err)
	if err != nil {
		failed := r.registryFailed(ctx, object, err)
		return listed{plan.Listing{Err: fmt.Errorf("list service %s: %w", target.Service, err)}, failed}
	}
	if entries == nil {
		entries = []registry.Entry{} // an empty listing, in contrast to none
	}
	return listed{listing: plan.Listing{Entries: entries, Selector: selector}}
}

// unlistable is the answer of a registry that works, but not for the service. Each pass asks
// again, so that the status keeps saying so until somebody has mended it.
func (r *Reconciler) unlistable(ctx context.Context, name string, target plan.Target, err error) listed {
	r.pool.RecordCall(ctx, name, nil)
	done := results{due: []plan.Target{target}}
	if errors.Is(err, registry.ErrTransient) { // as where other lists take all the memory
		done = done.and(r.setBack(overtaken))
	}
	return listed{plan.Listing{Err: err}, done}
}
