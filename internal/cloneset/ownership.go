// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"weak"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
)

// owned are the Pods and claims of a set.
type owned struct {
	pods     []*corev1.Pod
	podInfos []*plan.PodInfo
	claims   []*corev1.PersistentVolumeClaim
}

// claimOwnership adopts the set's revisions, Pods and claims that have no owner, releases
// the Pods that its selector no longer matches, and returns what the set then owns.
func (r *Reconciler) claimOwnership(ctx context.Context, set *apps.CloneSet, now time.Time) (*owned, error) {
	selector, err := selectorOf(set)
	if err != nil {
		return nil, err
	}
	refused := r.passState(keyOf(set)).adoptionsRefused
	maps.DeleteFunc(refused, func(_ types.UID, until time.Time) bool { return !now.Before(until) })
	if err := r.claimRevisions(ctx, set, selector); err != nil {
		return nil, err
	}
	if err := r.adoptOrphans(ctx, set); err != nil {
		return nil, err
	}
	pods, err := r.claimPods(ctx, set, now)
	if err != nil {
		return nil, err
	}
	pods, infos, err := r.releaseUnmatched(ctx, set, selector, pods)
	if err != nil {
		return nil, err
	}
	if err := r.adoptClaims(ctx, set, pods); err != nil {
		return nil, err
	}
	claims, err := listOwned(ctx, r.Reader, r.claims, r.listClaims, set, now)
	if err != nil {
		return nil, err
	}
	_, err = renameOwners(ctx, r, r.claims, set, claims)
	return &owned{pods: pods, podInfos: infos, claims: claims}, err
}

// claimRevisions makes the set the owner of its revisions, by this version of its API.
func (r *Reconciler) claimRevisions(ctx context.Context, set *apps.CloneSet, selector labels.Selector) error {
	if err := r.adoptRevisions(ctx, set, selector); err != nil {
		return err
	}
	revisions, err := r.listRevisions(ctx, set.Namespace, string(set.UID))
	if err != nil {
		return err
	}
	_, err = renameOwners(ctx, r, r.revisions, set, revisions)
	return err
}

// claimPods returns the set's Pods, after their references to the set have this version of its API.
func (r *Reconciler) claimPods(ctx context.Context, set *apps.CloneSet, now time.Time) ([]*corev1.Pod, error) {
	pods, err := r.ownPods(ctx, set, now)
	if err != nil {
		return nil, err
	}
	if found, err := renameOwners(ctx, r, r.pods, set, pods); !found || err != nil {
		return pods, err
	}
	return r.ownPods(ctx, set, now)
}

// renameOwners writes this API version into the references to the set, and reports whether there were others.
// OpenKruise's next version writes its own there, which the garbage collector cannot find once the CRD does not have it
// any more: it would neither delete the object after the set, nor finish a deletion in the foreground.
func renameOwners[T client.Object](
	ctx context.Context, r *Reconciler, o overlay[T], set *apps.CloneSet, objects []T,
) (found bool, err error) {
	others := renamed(set)
	for _, object := range objects { // in each pass, all Pods of the set
		if !slices.ContainsFunc(object.GetOwnerReferences(), others) || object.GetDeletionTimestamp() != nil {
			continue
		}
		found = true
		if err := r.unlessRefused(set, object, func() error { return renameOwner(ctx, r, o, set, object) }); err != nil {
			return true, err
		}
	}
	return found, nil
}

// renamed finds references to the set by another version of its API.
func renamed(set *apps.CloneSet) func(metav1.OwnerReference) bool {
	version := apps.GroupVersion.String()
	return func(owner metav1.OwnerReference) bool {
		return owner.APIVersion != version && owner.UID == set.UID && owner.Kind == apps.KindCloneSet.Kind
	}
}

// renameOwner reads the object, since the cache may have left out some of its owners. A conflict is left to the event of
// whatever has changed the object.
func renameOwner[T client.Object](ctx context.Context, r *Reconciler, o overlay[T], set *apps.CloneSet, object T) error {
	live, exists, err := getLive(ctx, r.Reader, object)
	if err != nil || !exists {
		return err
	}
	owners := slices.Clone(live.GetOwnerReferences())
	for i := range owners {
		if renamed(set)(owners[i]) {
			owners[i].APIVersion = apps.GroupVersion.String()
		}
	}
	answer, err := mergeVersion(ctx, r, "", live, map[string]any{"metadata": map[string]any{"ownerReferences": owners}})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("write the version %s into the owners of %s %s: %w", apps.GroupVersion, kindOf(object), object.GetName(), err)
	}
	o.noteLive(set, answer, r.Clock.Now())
	return nil
}

// adoptOrphans adopts Pods that match the selector and have no owner. It never touches
// Pods of other owners, and does not look twice at Pods that did not match.
func (r *Reconciler) adoptOrphans(ctx context.Context, set *apps.CloneSet) error {
	orphans, err := r.ListPods(ctx, set.Namespace, orphanKey)
	if err != nil || len(orphans) == 0 {
		return err
	}
	kept, looked := r.passState(keyOf(set)), orphanList{set.UID, set.Generation, weak.Make(&orphans[0])}
	if looked == kept.orphans {
		return nil
	}
	for _, orphan := range list.Only(orphans, func(pod *corev1.Pod) bool { return adoptable(set, pod) }) {
		looked = orphanList{}
		if err := r.unlessRefused(set, orphan, func() error { return r.adoptPod(ctx, set, orphan) }); err != nil {
			return err
		}
	}
	kept.orphans = looked
	return nil
}

// unlessRefused adopts or releases an object with the given write. If the API server refuses that, an
// event names the object, it is not written again for a while, and the pass continues with other
// objects.
func (r *Reconciler) unlessRefused(set *apps.CloneSet, object client.Object, write func() error) error {
	refused := r.passState(keyOf(set)).adoptionsRefused
	if !refused[object.GetUID()].IsZero() {
		return nil
	}
	err := write()
	if kube.Conflicts(err) || !kube.Refused(err) {
		return err
	}
	refused[object.GetUID()] = r.Clock.Now().Add(refusedFor)
	r.warn(set, "FailedUpdatePod", "Own", "%v", err)
	return nil
}

// adoptAt returns when the API server is next asked about an object that it refused; zero if there is none.
func (s *passState) adoptAt() (first time.Time) {
	for _, until := range s.adoptionsRefused {
		first = list.Earliest(first, until)
	}
	return first
}

// orphanList is a list of ownerless Pods that contains none that the set of this generation selects. Lists
// from the cache never change, so an equal pointer means an equal list.
type orphanList struct {
	set        types.UID
	generation int64
	pods       weak.Pointer[*corev1.Pod]
}

// adoptEach adopts the ownerless objects of the set's namespace that fit.
func adoptEach[T client.Object](
	ctx context.Context, r *Reconciler, set *apps.CloneSet, list Lister[T], fits func(T) bool, adopt func(T) (T, error),
) error {
	orphans, err := list(ctx, set.Namespace, orphanKey)
	if err != nil {
		return err
	}
	for _, orphan := range orphans {
		if !fits(orphan) {
			continue
		}
		err := r.unlessRefused(set, orphan, func() error {
			_, err := adopt(orphan)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func selectorOf(set *apps.CloneSet) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector.AsMeta())
	if err != nil {
		return nil, invalid(fmt.Errorf("spec.selector: %w", err))
	}
	return selector, nil
}

// adoptable reports whether the set adopts a Pod without an owner: one with the marks of a set's Pod, a revision and an
// instance. Such a Pod was a set's before. A Pod that somebody made by hand, to debug or from a backup, is left alone, as
// OpenKruise leaves it, although the selector matches it: the set would scale in for it, or replace it.
func adoptable(set *apps.CloneSet, pod *corev1.Pod) bool {
	marked := pod.Labels[apps.LabelRevision] != "" && pod.Labels[apps.LabelInstanceID] != ""
	return marked && pod.DeletionTimestamp == nil && metav1.GetControllerOfNoCopy(pod) == nil && selects(set, pod.Labels)
}

// adoptPod adopts a Pod. On a conflict it reads the Pod again: a kubelet writes status all
// the time, and such a change does not trigger another pass.
func (r *Reconciler) adoptPod(ctx context.Context, set *apps.CloneSet, pod *corev1.Pod) error {
	whole, err := r.whole(ctx, set, pod)
	if apierrors.IsNotFound(err) {
		return nil // the watch reports it
	}
	if err == nil {
		_, err = adopt(ctx, r, r.pods, set, whole)
	}
	if !apierrors.IsConflict(err) {
		return err
	}
	live, exists, err := getLive(ctx, r.Reader, pod)
	if err != nil || !exists || !adoptable(set, live) {
		return err // if there is none, the watch reports the change, and triggers another pass
	}
	_, err = adopt(ctx, r, r.pods, set, live)
	return err
}

// releaseUnmatched releases the set's Pods that its selector no longer matches, and returns the others.
// Someone took the Pods out to inspect them: the Pods keep running and are replaced, even one that
// cannot be released. A terminating Pod is deleted with its set.
func (r *Reconciler) releaseUnmatched(
	ctx context.Context, set *apps.CloneSet, selector labels.Selector, pods []*corev1.Pod,
) ([]*corev1.Pod, []*plan.PodInfo, error) {
	read, text := plan.ReadPods(pods, r.passState(keyOf(set)).podInfos), selector.String()
	var released []*corev1.Pod
	for _, info := range read {
		if info.Terminating() || info.Matches(selector, text) {
			continue
		}
		if err := r.unlessRefused(set, info.Pod(), func() error { return r.release(ctx, set, info.Pod()) }); err != nil {
			return nil, nil, err
		}
		released = append(released, info.Pod())
	}
	if len(released) > 0 {
		pods = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return slices.Contains(released, pod) })
		read = plan.ReadPods(pods, read)
	}
	return pods, read, nil
}

// release removes the set from the Pod's owners. A conflict fails the pass: it must be
// known whether the Pod still holds a place before another Pod is created for it.
func (r *Reconciler) release(ctx context.Context, set *apps.CloneSet, pod *corev1.Pod) error {
	err := r.retryUnchanged(ctx, set, pod, func(pod *corev1.Pod) error {
		released, err := sendPatch(ctx, r, "", pod, types.JSONPatchType, write.Release(pod, set.UID))
		if err == nil {
			r.pods.noteDeleted(set, released, r.Clock.Now())
		}
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil // gone, as the pass knows by now
	}
	if err != nil {
		return fmt.Errorf("release Pod %s, which no longer matches spec.selector: %w", pod.Name, err)
	}
	r.normal(set, "PodReleased", "Release", "Pod %s no longer matches spec.selector: it keeps running and is replaced", pod.Name)
	return nil
}

// adoptRevisions adopts ownerless revisions with this set's name and labels: a set of
// this name was deleted without its Pods. Its Pods are adopted too, and a Pod whose
// revision the set does not know would be recreated.
func (r *Reconciler) adoptRevisions(ctx context.Context, set *apps.CloneSet, selector labels.Selector) error {
	return adoptEach(ctx, r, set, r.listRevisions, func(object *appsv1.ControllerRevision) bool {
		hash, ours := strings.CutPrefix(object.Name, set.Name+"-")
		return ours && !strings.Contains(hash, "-") && object.DeletionTimestamp == nil && selector.Matches(labels.Set(object.Labels))
	}, func(object *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
		return r.adoptRevision(ctx, set, object)
	})
}

// adoptRevision returns nil if the set is gone or terminating, or the revision has
// changed since it was observed.
func (r *Reconciler) adoptRevision(ctx context.Context, set *apps.CloneSet, object *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	adopted, err := adopt(ctx, r, r.revisions, set, object)
	if apierrors.IsConflict(err) {
		return nil, nil // findRevision and the next pass look for it again
	}
	return adopted, err
}

// adoptClaims adopts claims without a controller, but only those of the set's own Pods.
// So a set that was deleted with --cascade=orphan and recreated finds Pods and claims as
// they were. A released claim without a Pod is left alone: someone released it to keep
// it, and adopting it could mean deleting it.
func (r *Reconciler) adoptClaims(ctx context.Context, set *apps.CloneSet, pods []*corev1.Pod) error {
	if len(set.Spec.VolumeClaimTemplates) == 0 {
		return nil
	}
	ours := labels.SelectorFromSet(set.Spec.Selector.AsMeta().MatchLabels) // as the set gives to its claims
	return adoptEach(ctx, r, set, r.listClaims, func(claim *corev1.PersistentVolumeClaim) bool {
		id := plan.InstanceOfClaim(set.Name, claim)
		used := slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			return pod.DeletionTimestamp == nil && pod.Name == plan.PodName(set.Name, id)
		})
		return id != "" && claim.DeletionTimestamp == nil && used && ours.Matches(labels.Set(claim.Labels))
	}, func(claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
		return adopt(ctx, r, r.claims, set, claim)
	})
}
