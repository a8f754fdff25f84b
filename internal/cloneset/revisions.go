// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/kube"
)

// revisions are the revisions of a set.
type revisions struct {
	current, update *revision.Revision
	byHash          map[string]*revision.Revision
	objects         []*appsv1.ControllerRevision
	// gone are the hashes of those that the API server does not have.
	gone map[string]bool
	// collisions is the set's new collision count.
	collisions int32
	// changes are the changes to the update revision that plans have computed.
	changes plan.Changes
	// set, generation and listed identify the set and the objects from which they were read.
	set        types.UID
	generation int64
	listed     []*appsv1.ControllerRevision
}

// labelRevisionHash is the label by which Kubernetes finds a ControllerRevision.
const labelRevisionHash = "controller.kubernetes.io/hash"

// syncRevisions reads the set's ControllerRevisions and ensures that one holds the
// template. It also finds the revisions that Pods have. Until something changes, the passes of a rollout share
// what the first one read.
func (r *Reconciler) syncRevisions(ctx context.Context, set *apps.CloneSet, pods []*plan.PodInfo) (*revisions, error) {
	objects, err := listOwned(ctx, r.Reader, r.revisions, r.listRevisions, set, r.Clock.Now())
	if err != nil {
		return nil, err
	}
	kept := r.passState(keyOf(set))
	if !kept.revisions.readFrom(set, objects) {
		read, err := r.readRevisions(ctx, set, objects)
		if err != nil {
			return nil, err
		}
		kept.revisions = read
	}
	out := *kept.revisions
	out.byHash = maps.Clone(out.byHash) // a Pod that returns may read those of the last pass
	if err := r.findRevision(ctx, set, &out, set.Status.CurrentRevision); err != nil {
		return nil, err
	}
	out.current = out.byHash[revision.Short(set.Status.CurrentRevision)]
	if out.current == nil || out.current.Template == nil {
		out.current = out.update
	}
	last := ""
	for _, pod := range pods {
		if pod.Revision() == last {
			continue
		}
		last = pod.Revision()
		if err := r.findRevision(ctx, set, &out, last); err != nil {
			return nil, err
		}
	}
	return &out, nil
}

// readRevisions reads ControllerRevisions, and finds or creates the one that holds the template.
func (r *Reconciler) readRevisions(ctx context.Context, set *apps.CloneSet, objects []*appsv1.ControllerRevision) (*revisions, error) {
	out := &revisions{
		byHash: map[string]*revision.Revision{}, gone: map[string]bool{}, collisions: ptr.Deref(set.Status.CollisionCount, 0),
		changes: plan.Changes{}, set: set.UID, generation: set.Generation, listed: objects,
	}
	for _, object := range objects {
		out.add(object)
	}
	template, err := revision.Decode(set.Spec.Template.Raw())
	if err != nil {
		return nil, fmt.Errorf("spec.template: %w", err)
	}
	return out, r.findUpdate(ctx, set, out, template)
}

// readFrom reports whether they were read from these objects, for the set's present template.
func (v *revisions) readFrom(set *apps.CloneSet, objects []*appsv1.ControllerRevision) bool {
	return v != nil && v.set == set.UID && v.generation == set.Generation && v.collisions == ptr.Deref(set.Status.CollisionCount, 0) &&
		slices.EqualFunc(v.listed, objects, func(a, b *appsv1.ControllerRevision) bool {
			return a.UID == b.UID && a.ResourceVersion == b.ResourceVersion
		})
}

// add reads a ControllerRevision.
func (v *revisions) add(object *appsv1.ControllerRevision) *revision.Revision {
	found := revision.Of(object.Name, object.Revision, object.Data.Raw)
	v.byHash[revision.Short(object.Name)] = found
	v.objects = append(v.objects, object)
	return found
}

func (r *Reconciler) findUpdate(ctx context.Context, set *apps.CloneSet, known *revisions, template map[string]any) error {
	slices.SortFunc(known.objects, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), strings.Compare(a.Name, b.Name))
	})
	same, last := revision.Newest(known.byHash, template)
	if same == nil {
		return r.createRevision(ctx, set, known, template, last+1)
	}
	known.update = same
	if same.Number == last {
		return nil
	}
	at := slices.IndexFunc(known.objects, func(o *appsv1.ControllerRevision) bool { return o.Name == same.Name })
	if err := r.renumber(ctx, set, known.objects[at], last+1); err != nil {
		return fmt.Errorf("renumber revision %s: %w", same.Name, err)
	}
	return nil
}

// renumber makes an old revision the newest again, as a rollback does. It does not do so
// for a template that only the cache still shows: two processes, one with an old
// CloneSet, would renumber in turns.
func (r *Reconciler) renumber(ctx context.Context, set *apps.CloneSet, object *appsv1.ControllerRevision, number int64) error {
	live, err := r.liveSet(ctx, set)
	if err != nil {
		return err
	}
	if live.UID != set.UID || live.Generation != set.Generation {
		return apierrors.NewConflict(apps.GroupVersion.WithResource("clonesets").GroupResource(), set.Name, errChanged)
	}
	renumbered, err := sendPatch(ctx, r, "", object, types.MergePatchType, fmt.Appendf(nil, `{"revision":%d}`, number))
	if err != nil {
		return err
	}
	r.revisions.noteLive(set, renumbered, r.Clock.Now())
	return nil
}

// errChanged means that the CloneSet is no longer what the pass began with.
var errChanged = errors.New("the CloneSet has changed since the pass began; the next pass decides again")

// findRevision asks the API server for a revision that is in use but not in the cache: a
// Pod whose revision seems to be gone would be recreated instead of updated in place.
func (r *Reconciler) findRevision(ctx context.Context, set *apps.CloneSet, known *revisions, name string) error {
	hash := revision.Short(name)
	if name == "" || known.byHash[hash] != nil || known.gone[hash] {
		return nil
	}
	object := &appsv1.ControllerRevision{}
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: set.Namespace, Name: set.Name + "-" + hash}, object)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get revision %s: %w", name, err)
	}
	if err == nil && metav1.IsControlledBy(object, set) {
		r.revisions.noteCreated(set, object, r.Clock.Now())
		known.add(object)
		return nil
	}
	known.gone[hash] = true
	return nil
}

// errCollision means that another template has the name that this one hashes to.
var errCollision = errors.New("revision name is taken")

// errAltered means that a revision was created from the template but holds another one.
// Creating one more would not help, and would repeat forever.
var errAltered = errors.New("it does not hold the template that it was created from: " +
	"look for a webhook that changes ControllerRevisions, and delete this one")

func (r *Reconciler) createRevision(ctx context.Context, set *apps.CloneSet, known *revisions, template map[string]any, number int64) error {
	for range 8 {
		object, err := r.tryCreateRevision(ctx, set, template, number, known.collisions)
		if errors.Is(err, errCollision) {
			known.collisions++
			continue
		}
		if err != nil {
			return err
		}
		r.revisions.noteCreated(set, object, r.Clock.Now())
		known.update = known.add(object)
		return nil
	}
	return fmt.Errorf("create revision: %w eight times in a row", errCollision)
}

func (r *Reconciler) tryCreateRevision(
	ctx context.Context, set *apps.CloneSet, template map[string]any, number int64, collisions int32,
) (*appsv1.ControllerRevision, error) {
	hash := revision.Hash(template, collisions)
	data, err := revision.Data(template)
	if err != nil {
		return nil, unusable(fmt.Errorf("spec.template: %w", err))
	}
	annotations := maps.Clone(set.Annotations) // so that its change-cause shows in the rollout history
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	object := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: set.Name + "-" + hash, Labels: historyLabels(set, hash), Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, apps.KindCloneSet)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: number,
	}
	err = r.send("create", func() error { return r.Client.Create(ctx, object) })
	if apierrors.IsAlreadyExists(err) {
		return r.takeRevision(ctx, set, template, object, collisions)
	}
	if err != nil {
		return nil, fmt.Errorf("create revision %s: %w", object.Name, err)
	}
	if !holds(object, template) {
		return nil, unusable(fmt.Errorf("ControllerRevision %s: %w", object.Name, errAltered))
	}
	return object, nil
}

// historyLabels returns the template's labels that the selector asks about, so that it finds the
// revision as it finds the Pods.
func historyLabels(set *apps.CloneSet, hash string) map[string]string {
	labels := map[string]string{labelRevisionHash: hash}
	maps.Copy(labels, set.Spec.Selector.AsMeta().MatchLabels)
	for _, expression := range set.Spec.Selector.MatchExpressions {
		if value, there := set.Spec.Template.Metadata.Labels[expression.Key]; there {
			labels[expression.Key] = string(value)
		}
	}
	return labels
}

// holds reports whether a revision holds the template.
func holds(object *appsv1.ControllerRevision, template map[string]any) bool {
	found, err := revision.Template(object.Data.Raw)
	return err == nil && revision.Equal(found, template)
}

// takeRevision handles an existing object of a revision's name: the cache has not shown
// our own yet, nobody owns it, or the name is taken.
func (r *Reconciler) takeRevision(
	ctx context.Context, set *apps.CloneSet, template map[string]any, object *appsv1.ControllerRevision, collisions int32,
) (*appsv1.ControllerRevision, error) {
	existing := &appsv1.ControllerRevision{}
	if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(object), existing); err != nil {
		return nil, fmt.Errorf("get revision %s: %w", object.Name, err)
	}
	ours, orphan := metav1.IsControlledBy(existing, set), metav1.GetControllerOf(existing) == nil
	switch same := holds(existing, template); {
	case same && ours:
		return existing, nil
	case same && orphan:
		adopted, err := r.adoptRevision(ctx, set, existing)
		if err == nil && adopted == nil {
			err = fmt.Errorf("adopt revision %s: it has changed, or CloneSet %s is being deleted", existing.Name, set.Name)
		}
		return adopted, err
	case ours && !collides(existing, object, collisions):
		return nil, unusable(fmt.Errorf("ControllerRevision %s: %w", object.Name, errAltered))
	}
	return nil, errCollision
}

// collides reports whether a revision rightly has the name of another one: it holds a
// template that hashes to the same name.
func collides(existing, wanted *appsv1.ControllerRevision, collisions int32) bool {
	template, err := revision.Template(existing.Data.Raw)
	if err != nil {
		return false
	}
	for count := range collisions + 1 {
		if revision.Hash(template, count) == wanted.Labels[labelRevisionHash] {
			return true
		}
	}
	return false
}

// pruneRevisions deletes the oldest unused revisions beyond the limit.
func (r *Reconciler) pruneRevisions(ctx context.Context, set *apps.CloneSet, known *revisions, pods []*corev1.Pod) error {
	limit := int(ptr.Deref(set.Spec.RevisionHistoryLimit, 10))
	used := map[string]bool{revision.Short(known.current.Name): true, revision.Short(known.update.Name): true}
	if len(known.objects)-len(used) <= limit {
		return nil // whatever the Pods have
	}
	for _, pod := range pods {
		used[revision.Short(pod.Labels[apps.LabelRevision])] = true
		used[pod.Labels[apps.LabelTemplateHash]] = true
	}
	unused := slices.DeleteFunc(slices.Clone(known.objects), func(o *appsv1.ControllerRevision) bool { return used[revision.Short(o.Name)] })
	for _, object := range unused[:max(len(unused)-limit, 0)] {
		err := r.remove(ctx, object, client.Preconditions{UID: &object.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete revision %s: %w", object.Name, err)
		}
	}
	return nil
}

// refusal is the API server's answer about a template, so that it is asked about each template only
// once.
type refusal struct {
	// set and revision identify the template; a later set may have the same name.
	set               types.UID
	revision, message string
	// until is when to ask the API server again; zero means never.
	until time.Time
}

// refusedFor is how long a refusal stands before the API server is asked again: a policy
// may have changed.
const refusedFor = 30 * time.Second

// unknownFor is how long to wait before retrying an API server that gave no answer.
const unknownFor = 5 * time.Second

// askAgain returns the API server's answer about a template: the last one if it was about this template
// and still stands, or else that to another try. The try names what was refused.
func (f refusal) askAgain(set types.UID, revision string, now time.Time, try func() (what string, err error)) refusal {
	if f.set == set && f.revision == revision && (f.until.IsZero() || now.Before(f.until)) {
		return f
	}
	f = refusal{set: set, revision: revision}
	switch what, err := try(); {
	case accepted(err):
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err):
		f.message, f.until = fmt.Sprintf("the API server refuses %s: %v", what, err), now.Add(refusedFor)
	default:
		// A webhook is down, or the request timed out. Everything else in the set
		// continues.
		f.message, f.until = fmt.Sprintf("cannot find out whether the API server accepts %s: %v", what, err), now.Add(unknownFor)
	}
	return f
}

// accepted reports whether a dry run says that the content of an object is right.
func accepted(err error) bool {
	return err == nil || apierrors.IsAlreadyExists(err) || kube.ExceedsQuota(err)
}

// checkTemplates returns what the API server says about the Pod template and the claim templates. It asks in
// a dry run: a rollout to a template that cannot run must not cost the first Pod, and a refused
// claim no Pod that could then not be replaced. This also refuses fields that the API server
// does not know.
func (r *Reconciler) checkTemplates(
	ctx context.Context, set *apps.CloneSet, update *revision.Revision, pods []*plan.PodInfo,
) (template, claim refusal) {
	kept, now := r.passState(keyOf(set)), r.Clock.Now()
	kept.templateRefusal = kept.templateRefusal.askAgain(set.UID, update.Name, now, func() (string, error) {
		if slices.ContainsFunc(pods, func(pod *plan.PodInfo) bool { return revision.Same(pod.Revision(), update.Name) }) {
			return "", nil // such Pods exist, so it accepts them
		}
		return "Pods of spec.template", r.dryRun(ctx, write.PodManifest(set, update, r.NewID(), now))
	})
	claims := set.Spec.VolumeClaimTemplates
	kept.claimRefusal = kept.claimRefusal.askAgain(set.UID, string(encode.JSON(claims)), now, func() (string, error) {
		for i := range claims {
			manifest, err := write.ClaimManifest(set, &claims[i], r.NewID())
			if err == nil {
				err = r.dryRun(ctx, manifest)
			}
			if !accepted(err) {
				return "the claim of spec.volumeClaimTemplates " + claims[i].Metadata.Name, err
			}
		}
		return "", nil
	})
	return kept.templateRefusal, kept.claimRefusal
}
