// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/demo/view"
	"github.com/usher-dev/usher/test/traffic"
)

// board is what is known of the cluster and of the registry. Each piece of news is
// logged as it arrives, and waiters check their condition again.
type board struct {
	now     func() time.Time
	started time.Time
	log     func(...string)

	mu            sync.Mutex
	wake          chan struct{} // closed at the next change
	pods          map[string]*corev1.Pod
	sets          map[string]*appsv1alpha1.CloneSet
	registrations map[string]*usherv1alpha1.Registration
	entries       map[string]listing   // by address
	deleted       map[string]time.Time // by address: when its Pod was first seen being deleted
	waiting       map[string]*longWait // by Pod
}

// longWait is what a Pod has been waiting for, and since when.
type longWait struct {
	what  string
	since time.Time
	told  bool
}

// longWaitTime is how long a wait stays unmentioned.
const longWaitTime = 3 * time.Second

func newBoard(now func() time.Time, log func(...string)) *board {
	return &board{
		now: now, started: now(), log: log,
		wake:          make(chan struct{}),
		pods:          map[string]*corev1.Pod{},
		sets:          map[string]*appsv1alpha1.CloneSet{},
		registrations: map[string]*usherv1alpha1.Registration{},
		entries:       map[string]listing{},
		deleted:       map[string]time.Time{},
		waiting:       map[string]*longWait{},
	}
}

// say logs a sentence with the time.
func (b *board) say(subject, format string, args ...any) {
	b.log(view.Line(b.now().Sub(b.started), subject, fmt.Sprintf(format, args...)))
}

// changed wakes waiters. The caller holds mu.
func (b *board) changed() {
	close(b.wake)
	b.wake = make(chan struct{})
}

func (b *board) podIs(pod *corev1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.row(pod.Name)
	b.pods[pod.Name] = pod
	addr := address(pod)
	if _, known := b.deleted[addr]; addr != "" && pod.DeletionTimestamp != nil && !known {
		b.deleted[addr] = b.now()
	}
	b.tell(pod.Name, before, b.row(pod.Name))
	b.changed()
}

func (b *board) podGone(pod *corev1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.row(pod.Name)
	delete(b.pods, pod.Name)
	b.tell(pod.Name, before, nil)
	b.changed()
}

func (b *board) setIs(set *appsv1alpha1.CloneSet) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sets[set.Name] = set
	b.changed()
}

func (b *board) setGone(set *appsv1alpha1.CloneSet) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sets, set.Name)
	b.changed()
}

func (b *board) registrationIs(registration *usherv1alpha1.Registration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.registrations[registration.Name] = registration
	b.changed()
}

func (b *board) registrationGone(registration *usherv1alpha1.Registration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.registrations, registration.Name)
	b.changed()
}

// registryChanged receives registry changes from a traffic client.
func (b *board) registryChanged(change traffic.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	pod := b.podAt(change.Addr)
	var before *view.Pod
	if pod != nil {
		before = b.row(pod.Name)
	}
	b.entries[change.Addr] = listing{listed: change.Joined, since: change.At}
	if change.Joined {
		delete(b.deleted, change.Addr) // the address has a new Pod
	}
	if pod != nil {
		b.tell(pod.Name, before, b.row(pod.Name))
	}
	b.changed()
}

// podAt finds the Pod with an address, preferring one that stays over one that leaves.
func (b *board) podAt(addr string) *corev1.Pod {
	var found *corev1.Pod
	for _, pod := range b.pods {
		if address(pod) == addr && (found == nil || found.DeletionTimestamp != nil) {
			found = pod
		}
	}
	return found
}

// row is the Pod's row without the request counters; nil if there is no such Pod.
func (b *board) row(name string) *view.Pod {
	pod := b.pods[name]
	if pod == nil {
		return nil
	}
	row := describe(pod, b.entries[address(pod)])
	return &row
}

// tell logs what happened to a Pod. Every step involves short waits; tellLongWaits
// reports the long ones.
func (b *board) tell(name string, before, after *view.Pod) {
	for _, row := range []*view.Pod{before, after} {
		if row != nil && row.Waits != waitCallers {
			row.Waits = ""
		}
	}
	sentences := view.Changes(before, after, b.now())
	if len(sentences) > 0 {
		b.say(namespace+"/"+name, "%s", strings.Join(sentences, "; "))
	}
}

// tellLongWaits logs what has kept Pods waiting for a long time.
func (b *board) tellLongWaits() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for _, name := range slices.Sorted(maps.Keys(b.pods)) {
		what := b.row(name).Waits
		wait := b.waiting[name]
		if wait == nil || wait.what != what {
			b.waiting[name] = &longWait{what: what, since: now, told: what == "" || what == waitCallers}
			continue
		}
		if !wait.told && now.Sub(wait.since) >= longWaitTime {
			wait.told = true
			b.say(namespace+"/"+name, "has waited %s for %s", seconds(now.Sub(wait.since)), what)
		}
	}
}

// podsOf lists a set's Pods, the oldest first. The caller holds mu.
func (b *board) podsOf(set string) []*corev1.Pod {
	pods := []*corev1.Pod{}
	for _, pod := range b.pods {
		if owner(pod) == set {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return pods
}

// settledAt reports whether a set has exactly that many Pods and no operation is in
// progress on any of them, after its spec has reached a generation.
func (b *board) settledAt(name string, pods int, generation int64) bool {
	set := b.sets[name]
	if set == nil || set.Status.ObservedGeneration < generation {
		return false
	}
	there := b.podsOf(name)
	for _, pod := range there {
		if !settled(pod, b.entries[address(pod)]) {
			return false
		}
	}
	s := set.Status
	return len(there) == pods && int(s.Replicas) == pods && int(s.UpdatedReplicas) == pods && int(s.AvailableReplicas) == pods
}

// underWay reports whether an operation is in progress on a Pod of the sets.
func (b *board) underWay(sets []string) bool {
	for _, name := range sets {
		for _, pod := range b.podsOf(name) {
			if !settled(pod, b.entries[address(pod)]) {
				return true
			}
		}
	}
	return false
}

// draining reports whether a Pod of a set is held before its update.
func (b *board) draining(set string) bool {
	return slices.ContainsFunc(b.podsOf(set), func(pod *corev1.Pod) bool {
		return pod.Labels[appsv1alpha1.LabelLifecycleState] == string(appsv1alpha1.StatePreparingUpdate) &&
			!b.entries[address(pod)].listed
	})
}

// leftAt returns when the Pod of an address was first seen being deleted.
func (b *board) leftAt(addr string) (time.Time, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.deleted[addr]
	return at, ok
}

// waitingFor is what the sets and Registrations themselves report that they wait for.
func (b *board) waitingFor() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := []string{}
	for name, set := range b.sets {
		for _, c := range set.Status.Conditions {
			if c.Type != appsv1alpha1.ConditionProgressing && c.Status == corev1.ConditionTrue {
				lines = append(lines, fmt.Sprintf("CloneSet %s: %s: %s", name, c.Type, c.Message))
			}
		}
	}
	for name, registration := range b.registrations {
		if c := meta.FindStatusCondition(registration.Status.Conditions, usherv1alpha1.ConditionWaiting); c != nil && c.Status == "True" {
			lines = append(lines, fmt.Sprintf("Registration %s: %s", name, c.Message))
		}
		if c := meta.FindStatusCondition(registration.Status.Conditions, usherv1alpha1.ConditionReady); c != nil && c.Status == "False" {
			lines = append(lines, fmt.Sprintf("Registration %s is not ready: %s", name, c.Message))
		}
	}
	slices.Sort(lines)
	return lines
}

// fingerprint lists everything about the Pods that an update or a deletion would
// change.
func (b *board) fingerprint() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := []string{}
	for _, pod := range b.pods {
		row := describe(pod, listing{})
		lines = append(lines, fmt.Sprintf("%s %s image %s, restarts %d, leaving %t",
			pod.Name, pod.UID, pod.Spec.Containers[0].Image, row.Restarts, row.Leaving))
	}
	slices.Sort(lines)
	return lines
}

// await waits until a condition, which may query the board, holds. At the bound the
// error is a *WaitError.
func (b *board) await(ctx context.Context, bound time.Duration, what string, holds func() bool) error {
	limit := time.NewTimer(bound)
	defer limit.Stop()
	for {
		b.mu.Lock()
		done, wake := holds(), b.wake
		b.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit.C:
			return &WaitError{What: what, Bound: bound}
		}
	}
}

// WaitError reports that something did not happen in time.
type WaitError struct {
	// What was waited for, and for how long.
	What  string
	Bound time.Duration
	// State is the state of the Pods at that time, Waiting what the objects reported
	// that they waited for, Log the last lines of Usher's log and LogFile its path.
	State, Waiting, Log []string
	LogFile             string
}

// Error gives all details in several lines.
func (e *WaitError) Error() string {
	text := strings.Builder{}
	fmt.Fprintf(&text, "waited %s for: %s", e.Bound, e.What)
	section := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&text, "\n\n%s\n    %s", title, strings.Join(lines, "\n    "))
		}
	}
	section("The last state:", e.State)
	section("What the objects say:", e.Waiting)
	section("The end of Usher's log ("+e.LogFile+"):", e.Log)
	return text.String()
}
