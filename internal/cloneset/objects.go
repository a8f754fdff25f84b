// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/store"
)

// This file reads, patches and adopts objects, whether Pods, claims or revisions.

// named returns an empty object with the name of another one of its kind.
func named[T client.Object](object T) T {
	out := reflect.New(reflect.TypeOf(object).Elem()).Interface().(T)
	out.SetNamespace(object.GetNamespace())
	out.SetName(object.GetName())
	return out
}

func kindOf(object client.Object) string { return reflect.TypeOf(object).Elem().Name() }

// send sends a write, counts it, and learns from it how many the API server takes at a time.
func (r *Reconciler) send(verb string, request func() error) error {
	r.Width.Begin()
	sent := r.Clock.Now()
	err := request()
	// A deletion that is answered with 429 has to wait for a Pod, not for the server.
	tooMany := verb != "delete" && apierrors.IsTooManyRequests(err)
	if err == nil || tooMany {
		r.Width.Done(verb, r.Clock.Now().Sub(sent), tooMany)
	} else {
		r.Width.Failed()
	}
	return r.metrics.wrote(verb, err)
}

// sendPatch patches an object, or a subresource of it, and returns the API server's
// answer.
func sendPatch[T client.Object](ctx context.Context, r *Reconciler, subresource string, object T, kind types.PatchType, data []byte) (T, error) {
	answer := named(object)
	if subresource == "" {
		return answer, r.send("patch", func() error { return r.Client.Patch(ctx, answer, client.RawPatch(kind, data)) })
	}
	return answer, r.send("patch_"+subresource, func() error {
		return r.Client.SubResource(subresource).Patch(ctx, answer, client.RawPatch(kind, data))
	})
}

// remove deletes an object that is still what was observed.
func (r *Reconciler) remove(ctx context.Context, object client.Object, observed client.Preconditions) error {
	return r.send("delete", func() error { return r.Client.Delete(ctx, named(object), observed) })
}

// strict has the API server refuse fields of raw templates that it does not know.
const strict = client.FieldValidation(metav1.FieldValidationStrict)

// dryRun asks the API server whether it would create what a manifest describes.
func (r *Reconciler) dryRun(ctx context.Context, manifest client.Object) error {
	return r.send("dry_run", func() error { return r.Client.Create(ctx, manifest, strict, client.DryRunAll) })
}

// mergeVersion merges a change into an object, or a subresource of it, that is still what
// was observed, and returns the API server's answer.
func mergeVersion[T client.Object](ctx context.Context, r *Reconciler, subresource string, object T, change map[string]any) (T, error) {
	metadata := map[string]any{"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion()}
	more, _ := change["metadata"].(map[string]any)
	maps.Copy(metadata, more)
	change["metadata"] = metadata
	return sendPatch(ctx, r, subresource, object, types.MergePatchType, encode.JSON(change))
}

// writeSet merges a change into a set, or its status, and returns the set as it is then; nil if it
// is gone.
func (r *Reconciler) writeSet(ctx context.Context, subresource string, set *apps.CloneSet, change map[string]any) (*apps.CloneSet, error) {
	written, err := mergeVersion(ctx, r, subresource, set, change)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// The set has changed or is gone, and its own events trigger another pass; until then, do
		// not trust the cache.
		r.passState(keyOf(set)).stale = true
	}
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	r.shared(keyOf(written)).keepAnswer(written)
	return written, nil
}

// getLive reads an object from the API server. It returns false if the object is gone,
// whether or not another one has its name.
func getLive[T client.Object](ctx context.Context, reader client.Reader, object T) (T, bool, error) {
	live := named(object)
	err := reader.Get(ctx, client.ObjectKeyFromObject(object), live)
	if client.IgnoreNotFound(err) != nil {
		return live, false, fmt.Errorf("look up %s %s: %w", kindOf(object), object.GetName(), err)
	}
	return live, err == nil && live.GetUID() == object.GetUID(), nil
}

// create creates what a manifest describes, and reads the API server's answer into an
// object.
func create[T client.Object](
	ctx context.Context, r *Reconciler, o overlay[T], set *apps.CloneSet, manifest *unstructured.Unstructured, object T, options ...client.CreateOption,
) error {
	err := r.send("create", func() error { return r.Client.Create(ctx, manifest, append(options, strict)...) })
	if err != nil {
		return err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(manifest.Object, object); err != nil {
		return fmt.Errorf("read the created %s %s: %w", kindOf(object), manifest.GetName(), err)
	}
	o.noteCreated(set, object, r.Clock.Now())
	return nil
}

// listOwned returns a set's objects as the cache shows them, overlaid with this
// controller's last writes. It verifies the entries that the cache has contradicted for
// too long.
func listOwned[T client.Object](ctx context.Context, reader client.Reader, o overlay[T], list Lister[T], set *apps.CloneSet, now time.Time) ([]T, error) {
	for verified := false; ; verified = true {
		cached, err := list(ctx, set.Namespace, string(set.UID))
		if err != nil {
			return nil, err
		}
		objects, unverified := o.Merge(set.UID, cached, now)
		if len(unverified) == 0 || verified {
			return objects, nil
		}
		for _, entry := range unverified {
			if err := verify(ctx, reader, o, set, entry, now); err != nil {
				return nil, err
			}
		}
		// Overlay again: a Pod that turned out to be gone, or to belong to someone else,
		// must not count in the budgets of the very pass that found out. List again too:
		// the watch may have dropped an answer meanwhile that an older list needs.
	}
}

// verify asks the API server about an object that the cache has contradicted for too
// long: a lost watch event must not freeze the set.
func verify[T client.Object](ctx context.Context, reader client.Reader, o overlay[T], set *apps.CloneSet, entry store.Answer[T], now time.Time) error {
	live, exists, err := getLive(ctx, reader, entry.Object)
	if err != nil {
		return err
	}
	o.Forget(entry.Object.GetUID())
	// An object that is gone stays hidden until the cache shows its deletion.
	entry.At, entry.Deleted = now, !exists || !metav1.IsControlledBy(live, set)
	if exists {
		entry.Object = live
	}
	o.Note(set.UID, entry)
	return nil
}

// relist records which of a set's objects the API server has, after an answer was lost. An object that
// was seen but is not in the list is gone, or its labels have changed and it may still belong to the
// set.
func relist[T client.Object](ctx context.Context, reader client.Reader, o overlay[T], set *apps.CloneSet, seen, listed []T, now time.Time) error {
	found := list.By(listed, func(object T) types.UID { return object.GetUID() })
	seen = append(o.All(set.UID), seen...) // created objects too: the cache may never show them
	for _, object := range seen {
		if _, ok := found[object.GetUID()]; ok {
			continue
		}
		live, exists, err := getLive(ctx, reader, object)
		if err != nil {
			return fmt.Errorf("after a lost answer: %w", err)
		}
		if exists {
			found[live.GetUID()] = live
		}
	}
	// Note them all at once: if the watch reports the removal of an object meanwhile, it
	// would be forgotten, while the list from the cache still shows it.
	for _, object := range found {
		if metav1.IsControlledBy(object, set) {
			o.noteCreated(set, object, now)
		}
	}
	for _, object := range seen {
		if live, ok := found[object.GetUID()]; !ok {
			o.noteDeleted(set, object, now)
		} else if !metav1.IsControlledBy(live, set) {
			o.noteLive(set, live, now)
		}
	}
	return nil
}

// adopt makes the set the controller of an object that has none, and returns the object as
// it is then; nil if the set must not adopt it, or it is gone.
func adopt[T client.Object](ctx context.Context, r *Reconciler, o overlay[T], set *apps.CloneSet, object T) (adopted T, err error) {
	// The cache may be old: a set that is being deleted, or that has been replaced by
	// another of the same name, adopts nothing.
	live, err := r.liveSet(ctx, set)
	if err != nil || live.UID != set.UID || live.DeletionTimestamp != nil {
		return adopted, err
	}
	owners := append(slices.Clone(object.GetOwnerReferences()), *metav1.NewControllerRef(set, apps.KindCloneSet))
	answer, err := mergeVersion(ctx, r, "", object, map[string]any{"metadata": map[string]any{"ownerReferences": owners}})
	if apierrors.IsNotFound(err) {
		// It may have been adopted before, and the cache may lag behind that too.
		o.noteDeleted(set, object, r.Clock.Now())
		return adopted, nil
	}
	if err != nil {
		return adopted, fmt.Errorf("adopt %s %s: %w", kindOf(object), object.GetName(), err)
	}
	o.noteCreated(set, answer, r.Clock.Now())
	return answer, nil
}

// liveSet reads the set from the API server; it may be another one of the same name.
func (r *Reconciler) liveSet(ctx context.Context, set *apps.CloneSet) (*apps.CloneSet, error) {
	live := named(set)
	if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(set), live); err != nil {
		return nil, fmt.Errorf("get CloneSet: %w", err)
	}
	r.shared(keyOf(live)).keepAnswer(live)
	return live, nil
}
