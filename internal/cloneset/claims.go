// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
)

// errClaimTaken means that an instance cannot have its claim: someone else owns the name,
// or the claim of that name is being deleted.
var errClaimTaken = errors.New("the claim cannot be used")

// errClaimBusy means that a claim keeps changing.
var errClaimBusy = errors.New("the claim keeps changing")

// newID draws an unused instance id.
func (r *Reconciler) newID(taken sets.Set[string]) string {
	id := r.NewID()
	for n := 0; taken.Has(id) && n < idTries; n++ {
		id = r.NewID()
	}
	return id
}

// lookup returns the set's existing claim that an instance can use; nil if there is none. takeOver
// finds claims for an instance's next Pod, findClaim those for a Pod that lacks some. A new instance
// has no existing claims, and so no lookup.
type lookup func(ctx context.Context, set *apps.CloneSet, name string) (*corev1.PersistentVolumeClaim, error)

// provide ensures that an instance has its claims, and returns those that it created. It
// looks up existing claims first: a Pod whose claim is gone or terminating would wait
// forever.
func (r *Reconciler) provide(ctx context.Context, set *apps.CloneSet, id string, exists lookup) ([]*corev1.PersistentVolumeClaim, error) {
	var made []*corev1.PersistentVolumeClaim
	for i := range set.Spec.VolumeClaimTemplates {
		template := &set.Spec.VolumeClaimTemplates[i]
		claim, err := r.provideClaim(ctx, set, template, id, exists)
		if err != nil {
			return made, fmt.Errorf("create the claim of volumeClaimTemplates %s: %w", template.Metadata.Name, err)
		}
		if claim != nil {
			made = append(made, claim)
		}
	}
	return made, nil
}

// provideClaim creates a claim; it returns nil if the claim existed.
func (r *Reconciler) provideClaim(
	ctx context.Context, set *apps.CloneSet, template *apps.ClaimTemplate, id string, exists lookup,
) (*corev1.PersistentVolumeClaim, error) {
	manifest, err := write.ClaimManifest(set, template, id)
	if err != nil {
		return nil, err
	}
	if exists != nil {
		if there, err := exists(ctx, set, manifest.GetName()); there != nil || err != nil {
			return nil, err
		}
	}
	claim := &corev1.PersistentVolumeClaim{}
	err = create(ctx, r, r.claims, set, manifest, claim)
	if apierrors.IsAlreadyExists(err) {
		err = fmt.Errorf("%w: %s exists", errClaimTaken, manifest.GetName())
	}
	return claim, err
}

// deleteUnusedClaims deletes the claims created for an instance whose name turned out to be taken,
// unless a Pod or claim of this very set took it: another process that believes it leads
// may have found the claims waiting and created the Pod for them.
func (r *Reconciler) deleteUnusedClaims(ctx context.Context, set *apps.CloneSet, id string, made []*corev1.PersistentVolumeClaim) error {
	if len(made) == 0 {
		return nil
	}
	objects := map[string]client.Object{plan.PodName(set.Name, id): &corev1.Pod{}}
	for i := range set.Spec.VolumeClaimTemplates {
		objects[plan.ClaimName(set.Spec.VolumeClaimTemplates[i].Metadata.Name, set.Name, id)] = &corev1.PersistentVolumeClaim{}
	}
	for _, claim := range made {
		delete(objects, claim.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		err := r.Reader.Get(ctx, client.ObjectKey{Namespace: set.Namespace, Name: name}, objects[name])
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("look up %s, whose name is taken: %w", name, err)
		}
		if err == nil && metav1.IsControlledBy(objects[name], set) {
			return nil
		}
	}
	return r.deleteClaims(ctx, set, id, made)
}

// findClaim asks the API server for a claim of the set. It returns nil if none has that
// name, and errClaimTaken if the claim cannot be used.
func (r *Reconciler) findClaim(ctx context.Context, set *apps.CloneSet, name string) (*corev1.PersistentVolumeClaim, error) {
	live := &corev1.PersistentVolumeClaim{}
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: set.Namespace, Name: name}, live)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get claim %s: %w", name, err)
	case !metav1.IsControlledBy(live, set):
		return nil, fmt.Errorf("%w: %s does not belong to CloneSet %s", errClaimTaken, name, set.Name)
	case live.DeletionTimestamp != nil:
		return nil, fmt.Errorf("%w: %s is being deleted", errClaimTaken, name)
	}
	r.claims.noteCreated(set, live, r.Clock.Now())
	return live, nil
}

// deleteInstance deletes a Pod and then its claims.
//
// The Pod is deleted first, with its preconditions: in the other order, a Pod that turns out to be
// needed would remain with terminating claims. sharedState.deletions bridges the time between the two.
// A process that dies there forgets it: then the Pod's own marks show the next process what to do, or
// the claims stay and the next Pod takes them over. A crash never loses data; at worst it keeps a claim
// that could have been deleted.
func (r *Reconciler) deleteInstance(ctx context.Context, set *apps.CloneSet, a plan.Action) error {
	if len(a.Claims) == 0 {
		return r.deletePod(ctx, set, a)
	}
	id := plan.InstanceOf(set.Name, a.Pod)
	r.shared(keyOf(set)).recordDeletion(id, a.Claims)
	err := r.deletePod(ctx, set, a)
	if err != nil {
		if !kube.Unanswered(err) {
			r.shared(keyOf(set)).forgetDeletion(id)
		}
		return err
	}
	return r.deleteClaims(ctx, set, id, a.Claims)
}

// discard deletes the claims of an instance whose Pod is gone or terminating. It asks the
// API server first: the Pod cache may be older than the claim cache.
func (r *Reconciler) discard(ctx context.Context, set *apps.CloneSet, a plan.Action) error {
	live := &corev1.Pod{}
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: set.Namespace, Name: plan.PodName(set.Name, a.Instance)}, live)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("look up the Pod of instance %s before its claims are deleted: %w", a.Instance, err)
	}
	if err == nil && live.DeletionTimestamp == nil {
		r.shared(keyOf(set)).forgetDeletion(a.Instance)
		if metav1.IsControlledBy(live, set) {
			r.pods.noteCreated(set, live, r.Clock.Now())
		}
		return nil
	}
	r.shared(keyOf(set)).recordDeletion(a.Instance, a.Claims)
	return r.deleteClaims(ctx, set, a.Instance, a.Claims)
}

func (r *Reconciler) deleteClaims(ctx context.Context, set *apps.CloneSet, id string, claims []*corev1.PersistentVolumeClaim) error {
	for _, claim := range claims {
		err := r.deleteClaim(ctx, set, claim)
		if errors.Is(err, errTakenOver) {
			break
		}
		if err != nil {
			return fmt.Errorf("delete claim %s: %w", claim.Name, err)
		}
	}
	r.shared(keyOf(set)).forgetDeletion(id)
	return nil
}

// deleteClaim deletes a claim in the version in which it was observed. A claim that the
// user has since released, to keep it, is not the set's to delete; a claim that was taken
// over belongs to the next Pod.
func (r *Reconciler) deleteClaim(ctx context.Context, set *apps.CloneSet, claim *corev1.PersistentVolumeClaim) error {
	for range 2 {
		err := r.remove(ctx, claim, client.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
		live, exists := claim, false
		if apierrors.IsConflict(err) {
			if live, exists, err = getLive(ctx, r.Reader, claim); err != nil {
				return err
			}
		}
		if !exists {
			r.claims.noteDeleted(set, claim, r.Clock.Now())
			return nil
		}
		r.claims.noteLive(set, live, r.Clock.Now())
		if !metav1.IsControlledBy(live, set) || live.DeletionTimestamp != nil {
			return nil
		}
		if !sameUse(live, claim) {
			return errTakenOver
		}
		claim = live // it was bound or labelled meanwhile, and is deleted nevertheless
	}
	return fmt.Errorf("two attempts: %w", errClaimBusy)
}

// annotationTakenOver holds since when a claim belongs to its present Pod, if it belonged
// to another one before.
//
// Between the deletion of a Pod and that of its claims another process may become leader: this one was
// suspended there, or its request was slow. The new leader sees claims that wait for their next Pod,
// and creates that Pod. If this process then deleted the claims, the Pod would run on, and its data
// would be lost when it ends. So a process that takes claims over first writes this annotation to each
// of them, and a process deletes claims only if they have not changed since it decided to delete the
// Pod. If the deletion comes first, the claim is not taken over; if the annotation comes first, the
// claim is not deleted.
const annotationTakenOver = "usher.dev/taken-over"

// errTakenOver means that a claim to be deleted belongs to the next Pod by now.
var errTakenOver = errors.New("the claim was taken over")

// sameUse reports whether two versions of a claim belong to the same Pod.
func sameUse(a, b *corev1.PersistentVolumeClaim) bool {
	return a.UID == b.UID && a.Annotations[annotationTakenOver] == b.Annotations[annotationTakenOver]
}

// takeOverTries bounds how often a claim that changes meanwhile is read again.
const takeOverTries = 3

// takeOver assigns a claim to the next Pod. It returns nil if there is no such claim,
// and errClaimTaken if it cannot be used.
func (r *Reconciler) takeOver(ctx context.Context, set *apps.CloneSet, name string) (*corev1.PersistentVolumeClaim, error) {
	for range takeOverTries {
		claim, err := r.findClaim(ctx, set, name)
		if claim == nil || err != nil {
			return nil, err
		}
		now := r.Clock.Now()
		mark := map[string]string{annotationTakenOver: now.UTC().Format(time.RFC3339Nano)}
		taken, err := mergeVersion(ctx, r, "", claim, map[string]any{"metadata": map[string]any{"annotations": mark}})
		switch {
		case err == nil:
			r.claims.noteCreated(set, taken, now)
			return taken, nil
		case !apierrors.IsConflict(err) && !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("take over claim %s: %w", name, err)
		}
	}
	return nil, fmt.Errorf("take over claim %s: %w", name, errClaimBusy)
}

// releasedInstances returns the instances whose Pod exists but no longer belongs to the set.
// Without it, each pass would try to delete their claims, or to create a Pod under a
// taken name.
func (r *Reconciler) releasedInstances(
	ctx context.Context, set *apps.CloneSet, pods []*corev1.Pod, claims []*corev1.PersistentVolumeClaim,
) (map[string]bool, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	own := list.By(pods, (*corev1.Pod).GetName)
	out := map[string]bool{}
	for _, claim := range claims {
		id := plan.InstanceOfClaim(set.Name, claim)
		name := plan.PodName(set.Name, id)
		if id == "" || own[name] != nil || out[id] {
			continue
		}
		cached := &corev1.Pod{}
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: set.Namespace, Name: name}, cached)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("look for Pod %s of claim %s: %w", name, claim.Name, err)
		}
		if err != nil || metav1.IsControlledBy(r.pods.Newest(set.UID, cached), set) {
			continue // gone, or the cache does not show the deletion yet
		}
		out[id] = true
	}
	return out, nil
}
