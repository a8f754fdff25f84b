// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// overlay remembers what the API server answered to this controller's own writes
// until the cache shows it: each pass sees its objects at least as new as the
// pass before it left them. Nothing waits for the cache, and nothing can leak: an
// entry goes when the cache has caught up, and one that the cache has gone past, or
// contradicts for longer than doubtAfter, is looked up at the API server, by a pass
// of its own if no event brings one.
type overlay[T client.Object] struct {
	mu   sync.Mutex
	sets map[types.UID]map[types.UID]answer[T]
}

// answer is the answer to a write.
type answer[T client.Object] struct {
	object T
	// created says that the cache has not shown the object yet.
	created bool
	// deleted says that the object was asked to go.
	deleted bool
	at      time.Time
}

// The overlays of Pods and of claims, and what they hold.
type (
	writes       = overlay[*corev1.Pod]
	written      = answer[*corev1.Pod]
	claimWrites  = overlay[*corev1.PersistentVolumeClaim]
	claimWritten = answer[*corev1.PersistentVolumeClaim]
)

// doubtAfter is how long the cache may lag before an entry is looked up.
const doubtAfter = 10 * time.Second

// forgetAfter is how long an object stays hidden that went before the cache showed
// it; watch events that are brought together may never show it.
const forgetAfter = 5 * time.Minute

func newOverlay[T client.Object]() *overlay[T] {
	return &overlay[T]{sets: map[types.UID]map[types.UID]answer[T]{}}
}

// all are those that there is an answer about, by name.
func (w *overlay[T]) all(set types.UID) []T {
	w.mu.Lock()
	defer w.mu.Unlock()
	objects := make([]T, 0, len(w.sets[set]))
	for _, entry := range w.sets[set] {
		objects = append(objects, entry.object)
	}
	slices.SortFunc(objects, func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) })
	return objects
}

// note keeps the answer to a write.
func (w *overlay[T]) note(set types.UID, entry answer[T]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	objects := w.sets[set]
	if objects == nil {
		objects = map[types.UID]answer[T]{}
		w.sets[set] = objects
	}
	uid := entry.object.GetUID()
	if known, ok := objects[uid]; ok {
		entry.created = entry.created || known.created
		// What a later version shows counts more than that a deletion was asked for.
		entry.deleted = entry.deleted || (known.deleted && !newer(entry.object, known.object))
		if newer(known.object, entry.object) { // found gone by an older version, as the cache shows it
			entry.object = known.object
		}
	}
	objects[uid] = entry
}

// newest gives the later one of an object that the cache shows and what is known
// of it by the answers.
func (w *overlay[T]) newest(set types.UID, cached T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	if entry, ok := w.sets[set][cached.GetUID()]; ok && newer(entry.object, cached) {
		return entry.object
	}
	return cached
}

// forget drops an object that the watch reported as gone.
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

// merge lays what was written over what the cache shows. Entries in doubt are
// the ones to look up: the cache has contradicted them for too long.
func (w *overlay[T]) merge(set types.UID, cached []T, now time.Time) (objects []T, doubtful []answer[T]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	entries := w.sets[set]
	objects = make([]T, 0, len(cached)+len(entries))
	unseen := maps.Clone(entries)
	for _, object := range cached {
		uid := object.GetUID()
		entry, ok := entries[uid]
		if !ok {
			objects = append(objects, object)
			continue
		}
		delete(unseen, uid)
		shown, settled := entry.over(object)
		objects = append(objects, shown...)
		entry.created = false
		entries[uid] = entry
		if settled {
			delete(entries, uid)
		} else if now.Sub(entry.at) >= doubtAfter {
			doubtful = append(doubtful, entry)
		}
	}
	for uid, entry := range unseen {
		if !entry.created {
			delete(entries, uid) // the cache has seen it, and seen it go
			continue
		}
		if entry.deleted { // gone before the cache has shown it at all, which it still may
			if now.Sub(entry.at) > forgetAfter {
				delete(entries, uid)
			}
			continue
		}
		objects = append(objects, entry.object)
		if now.Sub(entry.at) >= doubtAfter || beyond(cached, entry.object) {
			doubtful = append(doubtful, entry)
		}
	}
	slices.SortFunc(objects, func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) })
	return objects, doubtful
}

// doubtAt is when the first answer is due to be looked up that the cache has not
// borne out; zero if there is none. An object that is made and removed again
// while a watch is interrupted leaves no event that would lead to a pass.
func (w *overlay[T]) doubtAt(set types.UID) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	var first time.Time
	for _, entry := range w.sets[set] {
		if entry.deleted && entry.created {
			continue // hidden, whatever the cache shows
		}
		first = earlier(first, entry.at.Add(doubtAfter))
	}
	return first
}

// beyond says that what the cache shows is later than a version of an object. A
// watch tells of one kind in the order of its versions, so an object that is missing
// there is gone, even if the cache never had it: it was made and removed while the
// watch was interrupted. Only to be looked up, not to be believed: an informer may
// put a new list into its store object by object.
func beyond[T client.Object](cached []T, version client.Object) bool {
	return slices.ContainsFunc(cached, func(object T) bool { return newer(object, version) })
}

// over lays an entry over the object that the cache shows: what a pass is to see
// of it, nothing if it is gone, and whether the cache has caught up.
func (e answer[T]) over(cached T) (shown []T, settled bool) {
	switch {
	case e.deleted && cached.GetDeletionTimestamp() == nil && !e.cameBack(cached):
		return nil, false
	case e.deleted || !newer(e.object, cached):
		return []T{cached}, true
	}
	return []T{e.object}, false
}

// cameBack says that the object was seen to belong to somebody else, or to nobody,
// and that the set has it again by now.
func (e answer[T]) cameBack(cached T) bool {
	was, is := metav1.GetControllerOfNoCopy(e.object), metav1.GetControllerOfNoCopy(cached)
	return is != nil && (was == nil || was.UID != is.UID) && newer(cached, e.object)
}

// newer says whether a is a later version of the object than b.
func newer(a, b client.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
