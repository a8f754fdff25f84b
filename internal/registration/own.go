// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// Somebody who removes the finalizer of a Registration makes it vanish while its entries are
// still listed. So Registries, too, record who may have entries, before the first is there; and
// a Registration that has vanished is treated as one that is being deleted, until nothing of
// it is listed.

// prepare records where entries will be before the first is there: the Registry and the Registration get Usher's
// finalizer, and both name the target. Nothing is registered for the Registrations that it returns: for them that failed.
func (r *Reconciler) prepare(ctx context.Context, o *observation, outcomes []plan.Outcome) (
	prepared *observation, unprepared map[string]bool, done results,
) {
	unprepared = map[string]bool{}
	o, unrecorded := r.recordUsers(ctx, o, outcomes)
	for _, outcome := range outcomes {
		registration := outcome.Registration
		if len(outcome.Targets) == 0 || registration.DeletionTimestamp != nil {
			continue
		}
		err := unrecorded[registration.Name]
		if err == nil {
			o, err = r.prepareOne(ctx, o, registration, outcome.Targets)
		}
		if err == nil {
			continue
		}
		unprepared[registration.Name] = true
		done = done.and(r.setBack(overtaken))
		if !apierrors.IsNotFound(err) && !errors.Is(err, errFull) {
			done = done.and(r.failed(registration, err))
		}
	}
	return o, unprepared, done
}

var errFull = errors.New("the Registry has no room for it")

func hasFinalizer(o client.Object) bool {
	return controllerutil.ContainsFinalizer(o, usherv1alpha1.Finalizer)
}

// prepareOne writes what is not there yet: a failed attempt leaves only a part.
func (r *Reconciler) prepareOne(
	ctx context.Context, o *observation, registration *usherv1alpha1.Registration, targets []plan.Target,
) (*observation, error) {
	for _, target := range targets {
		var err error
		if o, err = r.holdRegistry(ctx, o, target.Registry); err != nil {
			return o, err
		}
	}
	next := registration.DeepCopy()
	if controllerutil.AddFinalizer(next, usherv1alpha1.Finalizer) {
		var err error
		if o, err = r.write(ctx, o, "add the finalizer to Registration", registration, next, false); err != nil {
			return o, err
		}
		registration = next
	}
	return r.recordTargets(ctx, o, registration, targets)
}

func (r *Reconciler) recordTargets(
	ctx context.Context, o *observation, registration *usherv1alpha1.Registration, targets []plan.Target,
) (*observation, error) {
	if slices.Equal(plan.SortedTargets(targets), plan.SortedTargets(registration.Status.Targets)) {
		return o, nil
	}
	next := registration.DeepCopy()
	next.Status.Targets = targets
	return r.write(ctx, o, "record the targets of Registration", registration, next, true)
}

// holdRegistry keeps the Registry object until no Registration has entries there.
func (r *Reconciler) holdRegistry(ctx context.Context, o *observation, name string) (*observation, error) {
	object := o.objects[name]
	if object == nil || object.DeletionTimestamp != nil || hasFinalizer(object) {
		return o, nil
	}
	next := object.DeepCopy()
	controllerutil.AddFinalizer(next, usherv1alpha1.Finalizer)
	return r.write(ctx, o, "add the finalizer to Registry", object, next, false)
}

// write patches an object or its status, unless somebody else has changed it since. It returns what is known with the
// answer, which the next passes see, too. If the write fails it returns what was known before.
func (r *Reconciler) write(
	ctx context.Context, o *observation, what string, old, next client.Object, status bool,
) (*observation, error) {
	if err := r.patch(ctx, what, old, next, status); err != nil {
		return o, err
	}
	namespace, now := o.snapshot.Namespace, r.clock.Now()
	switch next := next.(type) {
	case *usherv1alpha1.Registry:
		r.written.registries.Wrote(namespace, next, now)
		after := *o
		after.objects = maps.Clone(o.objects)
		after.objects[next.Name] = next
		return &after, nil
	case *usherv1alpha1.Registration:
		r.written.registrations.Wrote(namespace, next, now)
		return o.replacing(next), nil
	}
	return o, nil
}

// replacing is what is known with a Registration as it is now.
func (o *observation) replacing(next *usherv1alpha1.Registration) *observation {
	return o.with(o.snapshot.WithRegistrations(list.Map(o.snapshot.Registrations,
		func(r *usherv1alpha1.Registration) *usherv1alpha1.Registration {
			if r.UID == next.UID && r.Name == next.Name {
				return next
			}
			return r
		})))
}

// patch writes what is new in an object, or in its status, unless somebody else has changed it
// since.
func (r *Reconciler) patch(ctx context.Context, what string, old, next client.Object, status bool) (err error) {
	if status {
		err = r.patchStatus(ctx, old, next)
	} else {
		err = r.client.Patch(ctx, next, mergeFrom(old))
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, old.GetName(), err)
	}
	return nil
}

func mergeFrom(old client.Object) client.Patch {
	return client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})
}

// patchStatus compares only the statuses: the rest takes longer to encode, and is the same.
func (r *Reconciler) patchStatus(ctx context.Context, old, next client.Object) error {
	data, err := mergeFrom(statusOf(old)).Data(statusOf(next))
	if err != nil {
		return err
	}
	return r.client.Status().Patch(ctx, next, client.RawPatch(types.MergePatchType, data))
}

// statusOf is an object with nothing but its version and its status.
func statusOf(object client.Object) client.Object {
	version := metav1.ObjectMeta{ResourceVersion: object.GetResourceVersion()}
	switch o := object.(type) {
	case *usherv1alpha1.Registry:
		return &usherv1alpha1.Registry{ObjectMeta: version, Status: o.Status}
	case *usherv1alpha1.Registration:
		return &usherv1alpha1.Registration{ObjectMeta: version, Status: o.Status}
	}
	return object
}

func targetOf(registry string, u usherv1alpha1.RegistryUser) plan.Target {
	return plan.Target{Registry: registry, Prefix: u.Prefix, Service: u.Service}
}

// recordUsers records in each Registry who may have entries there, in one write, and returns the
// Registrations that could not be recorded.
func (r *Reconciler) recordUsers(
	ctx context.Context, o *observation, outcomes []plan.Outcome,
) (recorded *observation, failed map[string]error) {
	users, failed := o.nextUsers(outcomes)
	for _, name := range slices.Sorted(maps.Keys(users)) {
		known := len(o.objects[name].Status.Users)
		var err error
		if o, err = r.holdRegistry(ctx, o, name); err == nil {
			o, err = r.setUsers(ctx, o, o.objects[name], users[name])
		}
		for _, u := range users[name][known:] {
			failed[u.Registration] = cmp.Or(failed[u.Registration], err)
		}
	}
	return o, failed
}

// nextUsers are those of Registries that have to record more, and the Registrations for which
// they have no room.
func (o *observation) nextUsers(outcomes []plan.Outcome) (users map[string][]usherv1alpha1.RegistryUser, failed map[string]error) {
	users, failed = map[string][]usherv1alpha1.RegistryUser{}, map[string]error{}
	for _, outcome := range outcomes {
		if outcome.Registration.DeletionTimestamp != nil {
			continue
		}
		for _, t := range outcome.Targets {
			object, u := o.objects[t.Registry], plan.UserOf(outcome.Registration, t)
			if object == nil || slices.Contains(object.Status.Users, u) {
				continue
			}
			known, more := users[t.Registry]
			if !more {
				known = slices.Clip(object.Status.Users)
			}
			if plan.HasRoom(known, u) {
				users[t.Registry] = append(known, u)
			} else {
				failed[outcome.Registration.Name] = errFull // The next plan says so.
			}
		}
	}
	return users, failed
}

// dropUsers removes the targets that the Registration has left from the Registries.
func (r *Reconciler) dropUsers(ctx context.Context, o *observation, name string, kept []plan.Target) (*observation, error) {
	for _, registry := range slices.Sorted(maps.Keys(o.objects)) {
		object := o.objects[registry]
		gone := func(u usherv1alpha1.RegistryUser) bool {
			return u.Namespace == o.snapshot.Namespace && u.Registration == name && !slices.Contains(kept, targetOf(registry, u))
		}
		if !slices.ContainsFunc(object.Status.Users, gone) {
			continue
		}
		var err error
		if o, err = r.setUsers(ctx, o, object, slices.DeleteFunc(slices.Clone(object.Status.Users), gone)); err != nil {
			return o, err
		}
	}
	return o, nil
}

func (r *Reconciler) setUsers(
	ctx context.Context, o *observation, object *usherv1alpha1.Registry, users []usherv1alpha1.RegistryUser,
) (*observation, error) {
	next := object.DeepCopy()
	next.Status.Users = users
	return r.write(ctx, o, "record who has entries in Registry", object, next, true)
}

// takeOver adds vanished Registrations to those that are known, and what they left to new ones of
// their name.
func (r *Reconciler) takeOver(ctx context.Context, o *observation) (*observation, results, error) {
	live := list.By(o.snapshot.Registrations, (*usherv1alpha1.Registration).GetName)
	left := o.users()
	asked := o.namesOfPods(live)
	found, err := r.findUnknown(ctx, o.snapshot.Namespace, live, slices.Concat(slices.Collect(maps.Keys(left)), asked.names))
	if err != nil {
		return nil, results{}, err
	}
	learned := o.learned
	learned.answered = asked.answeredWith(found)
	o = o.knowing(learned).adding(slices.Collect(maps.Values(found)), namesOfAll(slices.Collect(maps.Values(found)))...)
	maps.Copy(live, found)
	done := results{troubles: asked.troubles}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		var adopted results
		o, adopted = r.adopt(ctx, o, name, live[name], left[name])
		done = done.and(adopted)
	}
	return o, done, nil
}

// adding is what is known with more Registrations.
func (o *observation) adding(registrations []*usherv1alpha1.Registration, known ...string) *observation {
	return o.with(o.snapshot.WithRegistrations(slices.Concat(o.snapshot.Registrations, registrations), known...))
}

// askedFor are the Registrations that Pods name and that are not known.
type askedFor struct {
	names []string
	// byText has them by the annotation that names them. answered are the annotations about which nobody need be asked.
	byText   map[string][]string
	answered map[string]bool
	// troubles are annotations that name what no Registration can be.
	troubles []trouble
}

// answeredWith are the annotations about which nobody need be asked any more: none of the Registrations that they name
// was found.
func (a askedFor) answeredWith(found map[string]*usherv1alpha1.Registration) map[string]bool {
	answered := maps.Clone(a.answered)
	for text, names := range a.byText {
		answered[text] = !slices.ContainsFunc(names, func(name string) bool { return found[name] != nil })
	}
	return answered
}

// namesOfPods are the Registrations that Pods name and the cache does not show yet: nobody else tells where these
// Pods are listed. One that was not there when it was looked for is known as soon as the cache shows it, so that
// annotations are not asked about twice.
func (o *observation) namesOfPods(known map[string]*usherv1alpha1.Registration) askedFor {
	asked := askedFor{byText: map[string][]string{}, answered: map[string]bool{}}
	for _, pod := range o.snapshot.Pods {
		text := pod.Annotations[usherv1alpha1.AnnotationRegistrations]
		if text == "" || known[text] != nil || asked.answered[text] { // as nearly all name one
			continue
		}
		if asked.answered[text] = o.answered[text]; asked.answered[text] {
			continue
		}
		names, err := plan.Names(pod)
		if err != nil {
			asked.troubles = append(asked.troubles, trouble{pod: pod, message: err.Error()})
		}
		if unknown := list.Only(names, func(name string) bool { return known[name] == nil }); len(unknown) > 0 {
			asked.byText[text] = unknown
			asked.names = append(asked.names, unknown...)
		}
	}
	return asked
}

// findUnknown asks the API server for Registrations of the namespace that are not known, with one list of their names,
// however many they are: the cache may not show them yet.
func (r *Reconciler) findUnknown(
	ctx context.Context, namespace string, known map[string]*usherv1alpha1.Registration, names []string,
) (found map[string]*usherv1alpha1.Registration, err error) {
	found, unknown := map[string]*usherv1alpha1.Registration{}, sets.New[string]()
	for _, name := range names {
		if known[name] == nil {
			unknown.Insert(name)
		}
	}
	if len(unknown) == 0 {
		return found, nil
	}
	all := &metav1.PartialObjectMetadataList{}
	all.SetGroupVersionKind(usherv1alpha1.GroupVersion.WithKind("RegistrationList"))
	if err := r.reader.List(ctx, all, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the names of Registrations: %w", err)
	}
	for i := range all.Items {
		name := all.Items[i].Name
		if !unknown.Has(name) {
			continue
		}
		live, err := r.findRegistration(ctx, namespace, name)
		if err != nil {
			return nil, err
		}
		if live != nil {
			found[name] = live
		}
	}
	return found, nil
}

// users are the targets that Registries have recorded, by Registration of the namespace.
func (o *observation) users() map[string][]plan.Target {
	targets := map[string][]plan.Target{}
	for registry, object := range o.objects {
		for _, u := range object.Status.Users {
			if u.Namespace == o.snapshot.Namespace {
				targets[u.Registration] = append(targets[u.Registration], targetOf(registry, u))
			}
		}
	}
	return targets
}

// adopt gives targets that Registries have recorded to their Registration; if there is none, what is known of it
// takes its place. A Registration that cannot be written has them in this pass all the same.
func (r *Reconciler) adopt(
	ctx context.Context, o *observation, name string, registration *usherv1alpha1.Registration, targets []plan.Target,
) (*observation, results) {
	if registration == nil {
		gone := &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{
			Namespace: o.snapshot.Namespace, Name: name, DeletionTimestamp: new(metav1.NewTime(r.clock.Now())),
		}}
		gone.Status.Targets = plan.SortedTargets(targets)
		return o.adding([]*usherv1alpha1.Registration{gone}), results{}
	}
	with := registration.DeepCopy()
	with.Status.Targets = plan.SortedTargets(slices.Concat(registration.Status.Targets, targets))
	if vanished(registration) {
		return o.replacing(with), results{}
	}
	recorded, err := r.recordTargets(ctx, o, registration, with.Status.Targets)
	if err != nil {
		return o.replacing(with), r.failed(registration, client.IgnoreNotFound(err))
	}
	return recorded, results{}
}

// vanished reports whether a Registration of the snapshot does not exist any more.
func vanished(r *usherv1alpha1.Registration) bool { return r.UID == "" }

// findRegistration reads from the API server: a Registration that the cache does not show may
// be new. It returns nil if there is none.
func (r *Reconciler) findRegistration(ctx context.Context, namespace, name string) (*usherv1alpha1.Registration, error) {
	return read[usherv1alpha1.Registration](ctx, r.reader, "Registration", types.NamespacedName{Namespace: namespace, Name: name})
}

// confirmOwners reads the Registrations and Registries of new entries once from the API
// server. It adds the Registrations that register nothing in this pass to those that are behind:
// just after a change of leader the cache may still show one that is gone, or records that were
// removed since.
func (r *Reconciler) confirmOwners(
	ctx context.Context, o *observation, changes []plan.Changes, behind map[string]bool,
) (confirmed *observation, alsoBehind map[string]bool, done results) {
	behind = maps.Clone(behind)
	for _, c := range changes {
		for _, change := range c.Joins {
			if change.Op.Overrides() { // it only ends what Usher began
				continue
			}
			name := change.Entry.Owner.Registration
			at := slices.IndexFunc(o.snapshot.Registrations, func(r *usherv1alpha1.Registration) bool { return r.Name == name })
			if at < 0 || behind[name] {
				continue
			}
			next, confirmed, err := r.confirmOwner(ctx, o, o.snapshot.Registrations[at], c.Target)
			o = next
			if err != nil {
				done = done.and(r.failed(nil, err))
			}
			if !confirmed {
				behind[name] = true
				done = done.and(r.setBack(overtaken))
			}
		}
	}
	return o, behind, done
}

// confirmOwner reports whether the Registration is there, and the Registry, which has recorded
// the Registration's target.
func (r *Reconciler) confirmOwner(
	ctx context.Context, o *observation, registration *usherv1alpha1.Registration, t plan.Target,
) (next *observation, confirmed bool, err error) {
	if !o.confirmed[registration.UID] {
		live, err := r.findRegistration(ctx, o.snapshot.Namespace, registration.Name)
		same := live != nil && live.UID == registration.UID && (live.DeletionTimestamp == nil) == (registration.DeletionTimestamp == nil)
		if !same {
			return o, false, err
		}
		o = o.confirming(registration.UID)
	}
	object := o.objects[t.Registry]
	if object == nil || o.confirmed[object.UID] {
		return o, true, nil
	}
	live, err := read[usherv1alpha1.Registry](ctx, r.reader, "Registry", types.NamespacedName{Name: t.Registry})
	if err != nil || live == nil {
		return o, false, err
	}
	r.written.registries.Wrote(o.snapshot.Namespace, live, r.clock.Now())
	ours := live.UID == object.UID && hasFinalizer(live) && slices.Contains(live.Status.Users, plan.UserOf(registration, t))
	return o.confirming(live.UID), ours, nil
}

// confirming is what is known once an object has been read from the API server.
func (o *observation) confirming(object types.UID) *observation {
	learned := o.learned
	learned.confirmed = maps.Clone(learned.confirmed)
	learned.confirmed[object] = true
	return o.knowing(learned)
}
