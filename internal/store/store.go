// SPDX-License-Identifier: Apache-2.0

// Package store keeps the API server's answers to a controller's own writes until the cache shows them, for both
// halves: each pass sees its objects at least as new as the previous pass left them. Nothing waits for the cache, and
// nothing can leak: an answer is dropped when the cache has caught up.
package store

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
)

// Store has the answers of one kind of objects, by what a pass is over: a set or a namespace. An answer that the
// cache has passed, or contradicts for longer than VerifyAfter, can be looked up at the API server, in a pass of its
// own if no event triggers one. Passes, background writes and event handlers may call its methods at the same time.
type Store[K comparable, T client.Object] struct {
	mu      sync.Mutex
	answers map[K]map[types.UID]Answer[T]
	// keep is what is kept of an answer, as the cache keeps it.
	keep func(T) T
}

// Answer is the answer to a write.
type Answer[T client.Object] struct {
	Object T
	// Created means that the cache has not shown the object yet.
	Created bool
	// Deleted means that the object's deletion was requested.
	Deleted bool
	// At is when the answer came.
	At time.Time
}

// VerifyAfter is how long the cache may lag before an entry is looked up.
const VerifyAfter = 10 * time.Second

// forgetAfter is how long an object stays hidden that was deleted before the cache showed
// it; a watch that merges events may never show it.
const forgetAfter = 5 * time.Minute

// New returns a Store without answers. Without keep it keeps them whole.
func New[K comparable, T client.Object](keep func(T) T) *Store[K, T] {
	if keep == nil {
		keep = func(object T) T { return object }
	}
	return &Store[K, T]{answers: map[K]map[types.UID]Answer[T]{}, keep: keep}
}

// Kept is what is kept of an object, as the cache keeps it.
func (s *Store[K, T]) Kept(object T) T { return s.keep(object) }

// All returns the objects of all answers about a set or a namespace, by name.
func (s *Store[K, T]) All(of K) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries := slices.SortedFunc(maps.Values(s.answers[of]), byObject[T])
	return list.Map(entries, func(entry Answer[T]) T { return entry.Object })
}

// Note keeps the answer to a write.
func (s *Store[K, T]) Note(of K, entry Answer[T]) {
	entry.Object = s.keep(entry.Object)
	s.mu.Lock()
	defer s.mu.Unlock()
	objects := s.answers[of]
	if objects == nil {
		objects = map[types.UID]Answer[T]{}
		s.answers[of] = objects
	}
	uid := entry.Object.GetUID()
	if known, ok := objects[uid]; ok {
		entry.Created = entry.Created || known.Created
		// A later version counts more than a requested deletion.
		entry.Deleted = entry.Deleted || (known.Deleted && !kube.Newer(entry.Object, known.Object))
		if kube.Newer(known.Object, entry.Object) { // an older version, as cached, was found gone
			entry.Object = known.Object
		}
	}
	objects[uid] = entry
}

// Wrote keeps an object that the cache has shown, as a write has left it.
func (s *Store[K, T]) Wrote(of K, object T, at time.Time) {
	s.Note(of, Answer[T]{Object: object, At: at})
}

// Empty reports whether the cache has caught up with all answers.
func (s *Store[K, T]) Empty(of K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.answers[of]) == 0
}

// Newest returns the later of the cached object and the version in the answers.
func (s *Store[K, T]) Newest(of K, cached T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if entry, ok := s.answers[of][cached.GetUID()]; ok && kube.Newer(entry.Object, cached) {
		return entry.Object
	}
	return cached
}

// Forget drops an object that the watch reported as deleted.
func (s *Store[K, T]) Forget(object types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for of, objects := range s.answers {
		delete(objects, object)
		if len(objects) == 0 {
			delete(s.answers, of)
		}
	}
}

// Drop forgets all answers about the objects of a set, or a namespace, that is gone.
func (s *Store[K, T]) Drop(of K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.answers, of)
}

// Merge lays the answers over the cache, which is in name order. Unverified answers must be looked up: the cache has
// contradicted them for too long.
func (s *Store[K, T]) Merge(of K, cached []T, now time.Time) (objects []T, unverified []Answer[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries := s.answers[of]
	if len(entries) == 0 {
		delete(s.answers, of)
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
		entry.Created = false
		entries[uid] = entry
		if caughtUp {
			delete(entries, uid)
		} else if now.Sub(entry.At) >= VerifyAfter {
			unverified = append(unverified, entry)
		}
	}
	objects, late := addUnseen(objects, entries, unseen, cached, now)
	return objects, append(unverified, late...)
}

// addUnseen adds the answers about objects that the cache does not show; it returns those that
// must be looked up.
func addUnseen[T client.Object](objects []T, entries, unseen map[types.UID]Answer[T], cached []T, now time.Time) (all []T, unverified []Answer[T]) {
	latest := sync.OnceValue(func() string { return latestVersion(cached) })
	for _, entry := range slices.SortedFunc(maps.Values(unseen), byObject[T]) {
		switch {
		case !entry.Created, // the cache has seen the object, and its deletion
			entry.Deleted && now.Sub(entry.At) > forgetAfter:
			delete(entries, entry.Object.GetUID())
		case entry.Deleted: // deleted before the cache showed it, which it still may
		default:
			at, _ := slices.BinarySearchFunc(objects, entry.Object, kube.ByName[T])
			objects = slices.Insert(objects, at, entry.Object)
			if now.Sub(entry.At) >= VerifyAfter || kube.Later(latest(), entry.Object.GetResourceVersion()) {
				unverified = append(unverified, entry)
			}
		}
	}
	return objects, unverified
}

func byObject[T client.Object](a, b Answer[T]) int {
	return cmp.Or(kube.ByName(a.Object, b.Object), cmp.Compare(a.Object.GetUID(), b.Object.GetUID()))
}

// VerifyAt returns when the first answer that the cache has not confirmed must be looked
// up; zero if there is none. An object that is created and deleted while a watch is
// interrupted leaves no event that would trigger a pass.
func (s *Store[K, T]) VerifyAt(of K) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first time.Time
	for _, entry := range s.answers[of] {
		if entry.Deleted && entry.Created {
			continue // hidden, whatever the cache shows
		}
		first = list.Earliest(first, entry.At.Add(VerifyAfter))
	}
	return first
}

// latestVersion is the latest version that the cache shows. A watch reports one kind in version
// order, so an object that is missing there and is older is gone, even if the cache never had
// it: it was created and deleted while the watch was interrupted. Look such an object up rather
// than trust this: an informer may put a new list into its store object by object.
func latestVersion[T client.Object](cached []T) (latest string) {
	for _, object := range cached {
		if version := object.GetResourceVersion(); latest == "" || kube.Later(version, latest) {
			latest = version
		}
	}
	return latest
}

// over lays an entry over the cached object. It returns what a pass sees of it, nothing
// if it is gone, and whether the cache has caught up.
func (e Answer[T]) over(cached T) (shown []T, caughtUp bool) {
	older := kube.Newer(e.Object, cached) // a list of an API server that lags, of an object that was terminating already
	switch {
	case e.Deleted && (older || cached.GetDeletionTimestamp() == nil) && !e.cameBack(cached):
		return nil, false
	case e.Deleted || !older:
		return []T{cached}, true
	}
	return []T{e.Object}, false
}

// cameBack reports whether the object was seen without an owner or with another one, and
// now belongs to the set again.
func (e Answer[T]) cameBack(cached T) bool {
	was, is := metav1.GetControllerOfNoCopy(e.Object), metav1.GetControllerOfNoCopy(cached)
	return is != nil && (was == nil || was.UID != is.UID) && kube.Newer(cached, e.Object)
}
