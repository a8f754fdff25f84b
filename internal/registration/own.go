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
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// Somebody who removes the finalizer of a Registration makes it vanish while its entries are
// still listed. So Registries, too, record who may have entries, before the first is there; and
// a Registration that has vanished is treated as one that is being deleted, until nothing of
// it is listed.

// prepare records where entries will be before the first is there: the Registry and the
// Registration get Usher's finalizer, and both name the target. Nothing is registered for
// the Registrations that it returns: for them that failed.
func (p *pass) prepare(ctx context.Context, outcomes []plan.Outcome) (failed map[string]bool, changed bool) {
	failed, before := map[string]bool{}, p.written
	unrecorded := p.recordUsers(ctx, outcomes)
	for _, o := range outcomes {
		r := o.Registration
		if len(o.Targets) == 0 || r.DeletionTimestamp != nil {
			continue
		}
		err := unrecorded[r.Name]
		if err == nil {
			err = p.prepareOne(ctx, r, o.Targets)
		}
		if err == nil {
			continue
		}
		failed[r.Name] = true
		p.again(soon)
		if !apierrors.IsNotFound(err) && !errors.Is(err, errFull) {
			p.failed(ctx, r, err)
		}
	}
	return failed, p.written > before
}

var errFull = errors.New("the Registry has no room for it")

func hasFinalizer(o client.Object) bool {
	return controllerutil.ContainsFinalizer(o, usherv1alpha1.Finalizer)
}

// prepareOne writes what is not there yet: a failed attempt leaves only a part.
func (p *pass) prepareOne(ctx context.Context, r *usherv1alpha1.Registration, targets []plan.Target) error {
	for _, target := range targets {
		if err := p.holdRegistry(ctx, target.Registry); err != nil {
			return err
		}
	}
	next := r.DeepCopy()
	if controllerutil.AddFinalizer(next, usherv1alpha1.Finalizer) {
		if err := p.write(ctx, "add the finalizer to Registration", r, next, false); err != nil {
			return err
		}
		r = next
	}
	return p.recordTargets(ctx, r, targets)
}

func (p *pass) recordTargets(ctx context.Context, r *usherv1alpha1.Registration, targets []plan.Target) error {
	if slices.Equal(plan.SortedTargets(targets), plan.SortedTargets(r.Status.Targets)) {
		return nil
	}
	next := r.DeepCopy()
	next.Status.Targets = targets
	return p.write(ctx, "record the targets of Registration", r, next, true)
}

// holdRegistry keeps the Registry object until no Registration has entries there.
func (p *pass) holdRegistry(ctx context.Context, name string) error {
	r := p.objects[name]
	if r == nil || r.DeletionTimestamp != nil || hasFinalizer(r) {
		return nil
	}
	next := r.DeepCopy()
	controllerutil.AddFinalizer(next, usherv1alpha1.Finalizer)
	return p.write(ctx, "add the finalizer to Registry", r, next, false)
}

// write patches an object or its status, unless somebody else has changed it since, and
// shows the answer to the rest of the pass and to the next ones.
func (p *pass) write(ctx context.Context, what string, old, next client.Object, status bool) error {
	if err := p.patch(ctx, what, old, next, status); err != nil {
		return err
	}
	p.written++
	switch next := next.(type) {
	case *usherv1alpha1.Registry:
		p.Reconciler.written.registries.Wrote(p.snapshot.Namespace, next, p.clock.Now())
		p.objects[next.Name] = next
	case *usherv1alpha1.Registration:
		p.Reconciler.written.registrations.Wrote(p.snapshot.Namespace, next, p.clock.Now())
		p.show(next)
	}
	return nil
}

// show has the rest of the pass see a Registration as it is now.
func (p *pass) show(next *usherv1alpha1.Registration) {
	for i, r := range p.snapshot.Registrations {
		if r.UID == next.UID {
			p.snapshot.Registrations[i] = next
		}
	}
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
func (p *pass) recordUsers(ctx context.Context, outcomes []plan.Outcome) (failed map[string]error) {
	users, failed := p.nextUsers(outcomes)
	for _, name := range slices.Sorted(maps.Keys(users)) {
		known := len(p.objects[name].Status.Users)
		err := p.holdRegistry(ctx, name)
		if err == nil {
			err = p.setUsers(ctx, p.objects[name], users[name])
		}
		for _, u := range users[name][known:] {
			failed[u.Registration] = cmp.Or(failed[u.Registration], err)
		}
	}
	return failed
}

// nextUsers are those of Registries that have to record more, and the Registrations for which
// they have no room.
func (p *pass) nextUsers(outcomes []plan.Outcome) (users map[string][]usherv1alpha1.RegistryUser, failed map[string]error) {
	users, failed = map[string][]usherv1alpha1.RegistryUser{}, map[string]error{}
	for _, o := range outcomes {
		if o.Registration.DeletionTimestamp != nil {
			continue
		}
		for _, t := range o.Targets {
			object, u := p.objects[t.Registry], plan.UserOf(o.Registration, t)
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
				failed[o.Registration.Name] = errFull // The next plan says so.
			}
		}
	}
	return users, failed
}

// dropUsers removes the targets that the Registration has left from the Registries.
func (p *pass) dropUsers(ctx context.Context, name string, kept []plan.Target) error {
	for _, registry := range slices.Sorted(maps.Keys(p.objects)) {
		object := p.objects[registry]
		gone := func(u usherv1alpha1.RegistryUser) bool {
			return u.Namespace == p.snapshot.Namespace && u.Registration == name && !slices.Contains(kept, targetOf(registry, u))
		}
		if !slices.ContainsFunc(object.Status.Users, gone) {
			continue
		}
		if err := p.setUsers(ctx, object, slices.DeleteFunc(slices.Clone(object.Status.Users), gone)); err != nil {
			return err
		}
	}
	return nil
}

func (p *pass) setUsers(ctx context.Context, object *usherv1alpha1.Registry, users []usherv1alpha1.RegistryUser) error {
	next := object.DeepCopy()
	next.Status.Users = users
	return p.write(ctx, "record who has entries in Registry", object, next, true)
}

// takeOver adds vanished Registrations to the snapshot, and what they left to new ones of
// their name.
func (p *pass) takeOver(ctx context.Context) error {
	live := list.By(p.snapshot.Registrations, (*usherv1alpha1.Registration).GetName)
	left := p.users()
	named, asking := p.namesOfPods(live)
	found, err := p.findUnknown(ctx, live, slices.Concat(slices.Collect(maps.Keys(left)), named))
	if err != nil {
		return err
	}
	for text, names := range asking {
		p.notes.answered[text] = !slices.ContainsFunc(names, func(name string) bool { return found[name] != nil })
	}
	maps.Copy(live, found)
	for _, name := range slices.Sorted(maps.Keys(left)) {
		p.adopt(ctx, name, live[name], left[name])
	}
	slices.SortFunc(p.snapshot.Registrations, kube.ByName[*usherv1alpha1.Registration])
	return nil
}

// namesOfPods are the Registrations that Pods name and the cache does not show yet: nobody else tells where these
// Pods are listed. asking has them by the annotation that names them. One that was not there when it was looked
// for is known as soon as the cache shows it, so that annotations are not asked about twice.
func (p *pass) namesOfPods(known map[string]*usherv1alpha1.Registration) (named []string, asking map[string][]string) {
	answered := map[string]bool{}
	asking = map[string][]string{}
	for _, pod := range p.snapshot.Pods {
		text := pod.Annotations[usherv1alpha1.AnnotationRegistrations]
		if text == "" || known[text] != nil || answered[text] { // as nearly all name one
			continue
		}
		if answered[text] = p.notes.answered[text]; answered[text] {
			continue
		}
		names, err := plan.Names(pod)
		if err != nil {
			p.announcer.warn(pod, eventNamesInvalid, actionRegister, err.Error())
		}
		if unknown := list.Only(names, func(name string) bool { return known[name] == nil }); len(unknown) > 0 {
			asking[text] = unknown
			named = append(named, unknown...)
		}
	}
	p.notes.answered = answered
	return named, asking
}

// findUnknown asks the API server for Registrations of the namespace that the snapshot lacks, with one list of
// their names, however many they are, and adds those that it has: the cache may not show them yet.
func (p *pass) findUnknown(
	ctx context.Context, known map[string]*usherv1alpha1.Registration, names []string,
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
	if err := p.reader.List(ctx, all, client.InNamespace(p.snapshot.Namespace)); err != nil {
		return nil, fmt.Errorf("list the names of Registrations: %w", err)
	}
	for i := range all.Items {
		name := all.Items[i].Name
		if !unknown.Has(name) {
			continue
		}
		live, err := p.findRegistration(ctx, name)
		if err != nil {
			return nil, err
		}
		if live != nil {
			found[name] = live
			p.add(live)
		}
	}
	return found, nil
}

// add adds a Registration that the API server has.
func (p *pass) add(live *usherv1alpha1.Registration) {
	p.snapshot.Registrations = append(p.snapshot.Registrations, live)
	p.snapshot.Known[live.Namespace+"/"+live.Name] = true
}

// users are the targets that Registries have recorded, by Registration of the namespace.
func (p *pass) users() map[string][]plan.Target {
	targets := map[string][]plan.Target{}
	for registry, object := range p.objects {
		for _, u := range object.Status.Users {
			if u.Namespace == p.snapshot.Namespace {
				targets[u.Registration] = append(targets[u.Registration], targetOf(registry, u))
			}
		}
	}
	return targets
}

// adopt gives targets that Registries have recorded to their Registration; if there is none, what is known of it
// takes its place. A Registration that cannot be written has them in this pass all the same.
func (p *pass) adopt(ctx context.Context, name string, r *usherv1alpha1.Registration, targets []plan.Target) {
	if r == nil {
		r = &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{
			Namespace: p.snapshot.Namespace, Name: name, DeletionTimestamp: new(metav1.NewTime(p.clock.Now())),
		}}
		r.Status.Targets = plan.SortedTargets(targets)
		p.snapshot.Registrations = append(p.snapshot.Registrations, r)
		return
	}
	all := plan.SortedTargets(slices.Concat(r.Status.Targets, targets))
	if vanished(r) {
		r.Status.Targets = all
		return
	}
	if err := p.recordTargets(ctx, r, all); err != nil {
		p.failed(ctx, r, client.IgnoreNotFound(err))
		next := r.DeepCopy()
		next.Status.Targets = all
		p.show(next)
	}
}

// vanished reports whether a Registration of the snapshot does not exist any more.
func vanished(r *usherv1alpha1.Registration) bool { return r.UID == "" }

// findRegistration reads from the API server: a Registration that the cache does not show may
// be new. It returns nil if there is none.
func (p *pass) findRegistration(ctx context.Context, name string) (*usherv1alpha1.Registration, error) {
	return read[usherv1alpha1.Registration](ctx, p.reader, "Registration", types.NamespacedName{Namespace: p.snapshot.Namespace, Name: name})
}

// confirmOwners reads the Registrations and Registries of new entries once from the API
// server. It adds the Registrations that register nothing in this pass to those that are behind:
// just after a change of leader the cache may still show one that is gone, or records that were
// removed since.
func (p *pass) confirmOwners(ctx context.Context, changes []plan.Changes, behind map[string]bool) {
	for _, c := range changes {
		for _, change := range c.Joins {
			name := change.Entry.Owner.Registration
			at := slices.IndexFunc(p.snapshot.Registrations, func(r *usherv1alpha1.Registration) bool { return r.Name == name })
			if at < 0 || behind[name] {
				continue
			}
			confirmed, err := p.confirmOwner(ctx, p.snapshot.Registrations[at], c.Target)
			if err != nil {
				p.errs = append(p.errs, err)
			}
			if !confirmed {
				behind[name] = true
				p.again(soon)
			}
		}
	}
}

// confirmOwner reports whether the Registration is there, and the Registry, which has recorded
// the Registration's target.
func (p *pass) confirmOwner(ctx context.Context, r *usherv1alpha1.Registration, t plan.Target) (bool, error) {
	if !p.notes.confirmed[r.UID] {
		live, err := p.findRegistration(ctx, r.Name)
		p.notes.confirmed[r.UID] = live != nil && live.UID == r.UID && (live.DeletionTimestamp == nil) == (r.DeletionTimestamp == nil)
		if !p.notes.confirmed[r.UID] {
			return false, err
		}
	}
	object := p.objects[t.Registry]
	if object == nil || p.notes.confirmed[object.UID] {
		return true, nil
	}
	live, err := read[usherv1alpha1.Registry](ctx, p.reader, "Registry", types.NamespacedName{Name: t.Registry})
	if err != nil || live == nil {
		return false, err
	}
	p.Reconciler.written.registries.Wrote(p.snapshot.Namespace, live, p.clock.Now())
	p.notes.confirmed[live.UID] = true
	return live.UID == object.UID && hasFinalizer(live) && slices.Contains(live.Status.Users, plan.UserOf(r, t)), nil
}
