// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/kinds"
)

// observe reads the namespace from the caches.
func (r *Reconciler) observe(ctx context.Context, namespace string) (*pass, error) {
	p := &pass{Reconciler: r, notes: r.notesOf(namespace), objects: map[string]*usherv1alpha1.Registry{},
		fresh: map[types.UID]bool{}, asked: map[string]bool{},
		unpatched: map[string]bool{}, needed: map[plan.Target]bool{}}
	cluster, err := r.clusterID(ctx)
	if err != nil {
		return nil, err
	}
	p.snapshot = plan.Snapshot{
		Process: p.options.Process, Cluster: cluster, Namespace: namespace,
		Registries: map[string]plan.RegistryState{}, Known: map[string]bool{}, Listings: map[plan.Target]plan.Listing{},
		Followed: map[plan.Target]plan.Followed{}, Failed: map[plan.Target]map[string]error{},
		Due: p.notes.dirty, Sweep: map[plan.Target]bool{},
		Suspects: p.notes.suspects, Memory: p.notes.plans, HookKeys: p.options.HookKeys, Finish: p.options.Finish,
		Unlisted: p.notes.unlisted,
	}
	if err := errors.Join(p.readObjects(ctx), p.readRegistries(ctx)); err != nil {
		return nil, err
	}
	now := p.clock.Now()
	p.snapshot.Pods, _ = p.Reconciler.written.pods.Merge(namespace, p.snapshot.Pods, now)
	if err := p.readOwners(ctx); err != nil {
		return nil, err
	}
	p.snapshot.Refusals = p.notes.refusalsOf(p.snapshot.Pods)
	p.snapshot.Registrations, _ = p.Reconciler.written.registrations.Merge(namespace, p.snapshot.Registrations, now)
	if err := p.takeOver(ctx); err != nil {
		return nil, err
	}
	for _, target := range plan.Outdated(p.snapshot) {
		p.notes.dirty[target] = true
	}
	p.lookAtChanged()
	return p, nil
}

// lookAtChanged has the Services listed that have changed, or whose EndpointSlices have: Pods there may say
// that nothing is left to do.
func (p *pass) lookAtChanged() {
	p.mu.Lock()
	changed := p.notes.changed
	p.notes.changed = nil
	p.mu.Unlock()
	if len(changed) == 0 {
		return
	}
	for _, target := range plan.Targets(p.snapshot) {
		if changed[target.Service] && p.snapshot.Registries[target.Registry].Gated {
			p.notes.dirty[target] = true
		}
	}
}

func (p *pass) readObjects(ctx context.Context) error {
	here := client.InNamespace(p.snapshot.Namespace)
	var noPods, noSets, noBudgets, noRegistrations error
	p.snapshot.Pods, noPods = p.listPods(ctx, p.snapshot.Namespace)
	slices.SortFunc(p.snapshot.Pods, kube.ByName[*corev1.Pod])
	p.snapshot.CloneSets, noSets = kube.List[*appsv1alpha1.CloneSet](ctx, p.client, "CloneSets", &appsv1alpha1.CloneSetList{}, here)
	p.snapshot.Budgets, noBudgets = kube.List[*policyv1.PodDisruptionBudget](
		ctx, p.client, "PodDisruptionBudgets", &policyv1.PodDisruptionBudgetList{}, here)
	p.snapshot.Registrations, noRegistrations = p.know(ctx, p.snapshot.Namespace)
	return errors.Join(noPods, noSets, noBudgets, noRegistrations)
}

// know notes which Registrations a namespace has: those of others count where a service lists
// entries of theirs, and cost nothing where none does.
func (p *pass) know(ctx context.Context, namespace string) ([]*usherv1alpha1.Registration, error) {
	p.asked[namespace] = true
	registrations, err := p.listRegistrations(ctx, namespace)
	for _, r := range registrations {
		p.snapshot.Known[r.Namespace+"/"+r.Name] = true
	}
	return registrations, err
}

// knowOwners notes the Registrations of the namespaces that have entries there.
func (p *pass) knowOwners(ctx context.Context, entries []registry.Entry) error {
	for i := range entries {
		if owner := &entries[i].Owner; owner.Cluster == p.snapshot.Cluster && !p.asked[owner.Namespace] {
			if _, err := p.know(ctx, owner.Namespace); err != nil {
				return err
			}
		}
	}
	return nil
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

func (r *Reconciler) registries(ctx context.Context) ([]*usherv1alpha1.Registry, error) {
	return kube.List[*usherv1alpha1.Registry](ctx, r.client, "Registries", &usherv1alpha1.RegistryList{})
}

func (p *pass) readRegistries(ctx context.Context) error {
	objects, err := p.registries(ctx)
	if err != nil {
		return err
	}
	objects, _ = p.Reconciler.written.registries.Merge(p.snapshot.Namespace, objects, p.clock.Now())
	selected, err := p.selected(ctx)
	if err != nil {
		return err
	}
	for _, r := range objects {
		if err := p.recall(ctx, r.Name); err != nil {
			return err
		}
		until, down := p.pool.down(r.Name)
		if down != nil {
			p.retry = list.Earliest(p.retry, until)
		}
		p.objects[r.Name] = r
		kind, settings := kinds.Of(r, p.snapshot.Namespace)
		state := plan.RegistryState{
			Prefix: settings.Root, Denied: !selected(r.Spec.Namespaces), Leaving: r.DeletionTimestamp != nil,
			HoldsBack: kind.HoldsBack, Gated: kind.Gated, Follows: kind.Follows, Label: plan.LabelOf(r.Spec.Service), Err: down,
			Strict: r.Spec.StrictServices, Users: r.Status.Users, Fold: settings.Fold, Own: settings.Own,
		}
		for _, rule := range r.Spec.Services {
			state.Rules = append(state.Rules, plan.ServiceRule{Names: rule.Names, Admits: selected(rule.Namespaces), Shared: rule.Shared})
		}
		p.snapshot.Registries[r.Name] = state
	}
	return nil
}

// selected reads this namespace, notes whether it is being deleted, and returns whether a Registry's
// selector matches it; without one, all do.
func (p *pass) selected(ctx context.Context) (func(*usherv1alpha1.LabelSelector) bool, error) {
	namespace := metadataOf(corev1.SchemeGroupVersion.WithKind("Namespace"))
	err := p.client.Get(ctx, types.NamespacedName{Name: p.snapshot.Namespace}, namespace)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read namespace %s: %w", p.snapshot.Namespace, err)
	}
	exists := err == nil
	p.snapshot.Ending = exists && namespace.DeletionTimestamp != nil
	return func(namespaces *usherv1alpha1.LabelSelector) bool {
		return namespaces == nil || exists && namespaces.Matches(namespace.Labels)
	}, nil
}

// sweepDue sets which targets are swept now, and returns when the next one is due.
func (p *pass) sweepDue(targets []plan.Target, now time.Time) time.Time {
	var next time.Time
	for _, target := range targets {
		object := p.objects[target.Registry]
		if object == nil || p.follows(target) { // nobody else's entries are orphans
			continue
		}
		at := p.notes.swept[target].Add(repairOf(object))
		if !now.Before(at) {
			p.snapshot.Sweep[target] = true
			at = now.Add(repairOf(object))
		}
		next = list.Earliest(next, at)
	}
	return next
}

// list lists targets into the snapshot. It does not call registries that are known to be down.
func (p *pass) list(ctx context.Context, targets []plan.Target) {
	targets = p.askOrRecall(targets)
	listings := timed(p, func() []plan.Listing { return p.listAll(ctx, targets) })
	p.noticeOutages()
	for i, target := range targets {
		if err := p.knowOwners(ctx, listings[i].Entries); err != nil {
			listings[i] = plan.Listing{Err: err}
		}
		if listings[i].Entries != nil || listings[i].Err != nil {
			p.snapshot.Listings[target] = listings[i]
		}
	}
	// Waits count from the end of the listing: an earlier time would shorten them.
	p.snapshot.Now = p.clock.Now()
	p.noteFollowed(targets)
}

func (p *pass) listAll(ctx context.Context, targets []plan.Target) []plan.Listing {
	listings := make([]plan.Listing, len(targets))
	failed := registry.Each(ctx, len(targets), min(p.options.Workers, maxCalls), func(i int) error {
		if object := p.objects[targets[i].Registry]; object != nil {
			listings[i] = p.listOne(ctx, object, targets[i])
		}
		return nil
	})
	for i, err := range failed { // a panic
		if err != nil {
			listings[i] = plan.Listing{Err: err}
		}
	}
	return listings
}

func (p *pass) listOne(ctx context.Context, object *usherv1alpha1.Registry, target plan.Target) plan.Listing {
	// A registry that has just failed, also for another target of this pass, is not called again, and its last
	// listing does not count any more.
	if _, down := p.pool.down(target.Registry); down != nil {
		return plan.Listing{Err: down}
	}
	c, err := p.pool.get(ctx, object, target.Prefix, false)
	if err != nil {
		p.registryFailed(ctx, object, err)
		return plan.Listing{Err: err}
	}
	selector, entries, err := c.Choose(ctx, target.Service)
	if errors.Is(err, registry.ErrOneService) {
		return p.unlistable(ctx, object.Name, target, err)
	}
	p.pool.noteCall(ctx, object.Name, err)
	if err != nil {
		p.registryFailed(ctx, object, err)
		return plan.Listing{Err: fmt.Errorf("list service %s: %w", target.Service, err)}
	}
	if entries == nil {
		entries = []registry.Entry{} // an empty listing, in contrast to none
	}
	return plan.Listing{Entries: entries, Selector: selector}
}

// unlistable notes an answer of a registry that works, but not for the service. Each pass asks
// again, so that the status keeps saying so until somebody has mended it.
func (p *pass) unlistable(ctx context.Context, name string, target plan.Target, err error) plan.Listing {
	p.pool.noteCall(ctx, name, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes.dirty[target] = true
	if errors.Is(err, registry.ErrTransient) { // as where other lists take all the memory
		p.again(soon)
	}
	return plan.Listing{Err: err}
}
