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
)

// writes remembers what the API server answered to this controller's own writes
// until the cache shows it: each pass sees its Pods at least as new as the pass
// before it left them. Nothing waits for the cache, and nothing can leak: an
// entry goes when the cache has caught up, and one that the cache contradicts
// for longer than doubtAfter is looked up at the API server.
type writes struct {
	mu   sync.Mutex
	sets map[types.UID]map[types.UID]written
}

// written is the answer to a write.
type written struct {
	pod *corev1.Pod
	// created says that the cache has not shown the Pod yet.
	created bool
	// deleted says that the Pod was asked to go.
	deleted bool
	at      time.Time
}

// doubtAfter is how long the cache may lag before an entry is looked up.
const doubtAfter = 10 * time.Second

// forgetAfter is how long a Pod stays hidden that went before the cache showed
// it; watch events that are brought together may never show it.
const forgetAfter = 5 * time.Minute

func newWrites() *writes { return &writes{sets: map[types.UID]map[types.UID]written{}} }

// note keeps the answer to a write.
func (w *writes) note(set types.UID, entry written) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pods := w.sets[set]
	if pods == nil {
		pods = map[types.UID]written{}
		w.sets[set] = pods
	}
	if known, ok := pods[entry.pod.UID]; ok {
		entry.created = entry.created || known.created
		// What a later version shows counts more than that a deletion was asked for.
		entry.deleted = entry.deleted || (known.deleted && !newer(entry.pod, known.pod))
	}
	pods[entry.pod.UID] = entry
}

// pods are those that there is an answer about, by name.
func (w *writes) pods(set types.UID) []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	pods := make([]*corev1.Pod, 0, len(w.sets[set]))
	for _, entry := range w.sets[set] {
		pods = append(pods, entry.pod)
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

// forget drops a Pod that the watch reported as gone.
func (w *writes) forget(pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for set, pods := range w.sets {
		delete(pods, pod)
		if len(pods) == 0 {
			delete(w.sets, set)
		}
	}
}

// merge lays what was written over what the cache shows. Entries in doubt are
// the ones to look up: the cache has contradicted them for too long.
func (w *writes) merge(set types.UID, cached []*corev1.Pod, now time.Time) (pods []*corev1.Pod, doubtful []written) {
	w.mu.Lock()
	defer w.mu.Unlock()
	entries := w.sets[set]
	pods = make([]*corev1.Pod, 0, len(cached)+len(entries))
	unseen := maps.Clone(entries)
	for _, pod := range cached {
		entry, ok := entries[pod.UID]
		if !ok {
			pods = append(pods, pod)
			continue
		}
		delete(unseen, pod.UID)
		shown, settled := entry.over(pod)
		if shown != nil {
			pods = append(pods, shown)
		}
		entry.created = false
		entries[pod.UID] = entry
		if settled {
			delete(entries, pod.UID)
		} else if now.Sub(entry.at) > doubtAfter {
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
		pods = append(pods, entry.pod)
		if now.Sub(entry.at) > doubtAfter {
			doubtful = append(doubtful, entry)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods, doubtful
}

// over lays an entry over the Pod that the cache shows: what a pass is to see of
// it, nil if it is gone, and whether the cache has caught up.
func (e written) over(cached *corev1.Pod) (shown *corev1.Pod, settled bool) {
	switch {
	case e.deleted && cached.DeletionTimestamp == nil && !e.cameBack(cached):
		return nil, false
	case e.deleted || !newer(e.pod, cached):
		return cached, true
	}
	return e.pod, false
}

// cameBack says that the Pod was seen to belong to somebody else, or to nobody,
// and that the set has it again by now.
func (e written) cameBack(cached *corev1.Pod) bool {
	was, is := metav1.GetControllerOfNoCopy(e.pod), metav1.GetControllerOfNoCopy(cached)
	return is != nil && (was == nil || was.UID != is.UID) && newer(cached, e.pod)
}

// newer says whether a is a later version of the object than b.
func newer(a, b *corev1.Pod) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order > 0
}
