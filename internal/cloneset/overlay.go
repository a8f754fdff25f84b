// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
)

// overlay remembers the API server's answers to this controller's own writes until the cache shows
// them: each pass sees its objects at least as new as the previous pass left them. Nothing waits for
// the cache, and nothing can leak: an entry is dropped when the cache has caught up. If the cache shows
// later versions but not the object itself, or contradicts an entry for longer than verifyAfter, the
// object is looked up at the API server, in a pass of its own if no event triggers one.
type overlay[T client.Object] struct {
	mu   sync.Mutex
	sets map[types.UID]map[types.UID]overlayEntry[T]
	// keep returns the part to keep of an answer, as the cache does.
	keep func(T) T
}

// overlayEntry is the answer to a write.
type overlayEntry[T client.Object] struct {
	object T
	// created means that the cache has not shown the object yet.
	created bool
	// deleted means that the object's deletion was requested.
	deleted bool
	at      time.Time
}

// verifyAfter is how long the cache may lag before an entry is looked up.
const verifyAfter = 10 * time.Second

// forgetAfter is how long an object stays hidden that was deleted before the cache showed
// it; a watch that merges events may never show it.
const forgetAfter = 5 * time.Minute

// newOverlay returns an overlay without answers. If keep is nil, it keeps whole objects.
func newOverlay[T client.Object](keep func(T) T) *overlay[T] {
	if keep == nil {
		keep = func(object T) T { return object }
	}
	return &overlay[T]{sets: map[types.UID]map[types.UID]overlayEntry[T]{}, keep: keep}
}

// all returns the objects of all answers, by name.
func (w *overlay[T]) all(set types.UID) []T {
	w.mu.Lock()
	defer w.mu.Unlock()
	entries := slices.SortedFunc(maps.Values(w.sets[set]), byObject[T])
	return list.Map(entries, func(entry overlayEntry[T]) T { return entry.object })
}

// note keeps the answer to a write.
func (w *overlay[T]) note(set types.UID, entry overlayEntry[T]) {
	entry.object = w.keep(entry.object)
	w.mu.Lock()
	defer w.mu.Unlock()
	objects := w.sets[set]
	if objects == nil {
		objects = map[types.UID]overlayEntry[T]{}
		w.sets[set] = objects
	}
	uid := entry.object.GetUID()
	if known, ok := objects[uid]; ok {
		entry.created = entry.created || known.created
		// A later version counts more than a requested deletion.
		entry.deleted = entry.deleted || (known.deleted && !kube.Newer(entry.object, known.object))
		if kube.Newer(known.object, entry.object) { // an older version, as cached, was found gone
			entry.object = known.object
		}
	}
	objects[uid] = entry
}

// noteCreated keeps an object that the cache may not show yet.
func (w *overlay[T]) noteCreated(set *apps.CloneSet, object T, at time.Time) {
	w.note(set.UID, overlayEntry[T]{object: object, created: true, at: at})
}

// noteDeleted records that an object is gone, or no longer the set's.
func (w *overlay[T]) noteDeleted(set *apps.CloneSet, object T, at time.Time) {
	w.note(set.UID, overlayEntry[T]{object: object, deleted: true, at: at})
}

// noteLive keeps an object as the API server has it, so that the next pass does not
// decide on a stale cache.
func (w *overlay[T]) noteLive(set *apps.CloneSet, live T, at time.Time) {
	w.note(set.UID, overlayEntry[T]{object: live, deleted: !metav1.IsControlledBy(live, set), at: at})
}

// newest returns the later of the cached object and the version in the answers.
func (w *overlay[T]) newest(set types.UID, cached T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	if entry, ok := w.sets[set][cached.GetUID()]; ok && kube.Newer(entry.object, cached) {
		return entry.object
	}
	return cached
}

// forget drops an object that the watch reported as deleted.
func (w *overlay[T]) forget(object types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for set, objects := range w.sets {
		delete(objects, object)
		if len(objects) == 0 {
			delete(w.sets, set)
		}
	}
}

// drop forgets all objects of a set that is gone.
func (w *overlay[T]) drop(set types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sets, set)
}

// merge overlays the cache, which is in name order, with the answers. Unverified entries must
// be looked up: the cache has contradicted them for too long.
func (w *overlay[T]) merge(set types.UID, cached []T, now time.Time) (objects []T, unverified []overlayEntry[T]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	entries := w.sets[set]
	if len(entries) == 0 {
		return cached, nil
	}
	unseen := maps.Clone(entries)
	objects = make([]T, 0, len(cached)+len(entries))
	for _, object := range cached {
		uid := object.GetUID()
		entry, answered := entries[uid]
		if !answered {
			objects = append(objects, object)
			continue
		}
		delete(unseen, uid)
		shown, caughtUp := entry.over(object)
		objects = append(objects, shown...)
		entry.created = false
		entries[uid] = entry
		if caughtUp {
			delete(entries, uid)
		} else if now.Sub(entry.at) >= verifyAfter {
			unverified = append(unverified, entry)
		}
	}
	objects, late := addUnseen(objects, entries, unseen, cached, now)
	return objects, append(unverified, late...)
}

// addUnseen adds the answers about objects that the cache does not show; it returns those that
// must be looked up.
func addUnseen[T client.Object](objects []T, entries, unseen map[types.UID]overlayEntry[T], cached []T, now time.Time) (all []T, unverified []overlayEntry[T]) {
	latest := sync.OnceValue(func() string { return latestVersion(cached) })
	for _, entry := range slices.SortedFunc(maps.Values(unseen), byObject[T]) {
		switch {
		case !entry.created, // the cache has seen the object, and its deletion
			entry.deleted && now.Sub(entry.at) > forgetAfter:
			delete(entries, entry.object.GetUID())
		case entry.deleted: // deleted before the cache showed it, which it still may
		default:
			at, _ := slices.BinarySearchFunc(objects, entry.object, kube.ByName[T])
			objects = slices.Insert(objects, at, entry.object)
			if now.Sub(entry.at) >= verifyAfter || kube.Later(latest(), entry.object.GetResourceVersion()) {
				unverified = append(unverified, entry)
			}
		}
	}
	return objects, unverified
}

func byObject[T client.Object](a, b overlayEntry[T]) int {
	return cmp.Or(kube.ByName(a.object, b.object), cmp.Compare(a.object.GetUID(), b.object.GetUID()))
}

// verifyAt returns when the first answer that the cache has not confirmed must be looked
// up; zero if there is none. An object that is created and deleted while a watch is
// interrupted leaves no event that would trigger a pass.
func (w *overlay[T]) verifyAt(set types.UID) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	var first time.Time
	for _, entry := range w.sets[set] {
		if entry.deleted && entry.created {
			continue // hidden, whatever the cache shows
		}
		first = list.Earliest(first, entry.at.Add(verifyAfter))
	}
	return first
}

// latestVersion returns the latest version that the cache shows. A watch reports one kind in version
// order, so an object that is missing there and is older is gone, even if the cache never had it: it
// was created and deleted while the watch was interrupted. Look such an object up rather than trust
// this: an informer may put a new list into its store object by object.
func latestVersion[T client.Object](cached []T) (latest string) {
	for _, object := range cached {
		if version := object.GetResourceVersion(); latest == "" || kube.Later(version, latest) {
			latest = version
		}
	}
	return latest
}

// over lays an entry over the cached object. It returns the object that a pass sees, none if it is
// gone, and whether the cache has caught up.
func (e overlayEntry[T]) over(cached T) (shown []T, caughtUp bool) {
	switch {
	case e.deleted && cached.GetDeletionTimestamp() == nil && !e.cameBack(cached):
		return nil, false
	case e.deleted || !kube.Newer(e.object, cached):
		return []T{cached}, true
	}
	return []T{e.object}, false
}

// cameBack reports whether the object was seen without an owner or with another one, and
// now belongs to the set again.
func (e overlayEntry[T]) cameBack(cached T) bool {
	was, is := metav1.GetControllerOfNoCopy(e.object), metav1.GetControllerOfNoCopy(cached)
	return is != nil && (was == nil || was.UID != is.UID) && kube.Newer(cached, e.object)
}
