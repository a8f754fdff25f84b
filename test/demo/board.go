// SPDX-License-Identifier: Apache-2.0

package demo

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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// board is what is known of the cluster and of the registry. Each change is logged as it
// arrives.
type board struct {
	stage.Watched
	now     func() time.Time
	started time.Time
	log     func(...string)

	pods          map[string]*corev1.Pod
	workloads     map[string]*workload
	registrations map[string]*usherv1alpha1.Registration
	entries       map[string]listing   // by address
	deleted       map[string]time.Time // by address: when its Pod was first seen being deleted
	waiting       map[string]*longWait // by Pod
}

// longWait is what a Pod has been waiting for, and since when.
type longWait struct {
	what   string
	since  time.Time
	logged bool
}

const (
	// longWaitTime is how long a wait is not mentioned.
	longWaitTime = 3 * time.Second
	// subjectWidth is the width of the log's second column: Pod names fit.
	subjectWidth = 26
)

func newBoard(now func() time.Time, log func(...string)) *board {
	return &board{
		now: now, started: now(), log: log,
		pods: map[string]*corev1.Pod{}, workloads: map[string]*workload{}, registrations: map[string]*usherv1alpha1.Registration{},
		entries: map[string]listing{}, deleted: map[string]time.Time{}, waiting: map[string]*longWait{},
	}
}

// say logs a line with the time.
func (b *board) say(format string, args ...any) {
	b.log(fmt.Sprintf("%6.1fs  ", b.now().Sub(b.started).Seconds()) + fmt.Sprintf(format, args...))
}

// sayOf logs a sentence about an object, unless it is empty.
func (b *board) sayOf(name, sentence string) {
	if sentence != "" {
		b.say("%-*s  %s", subjectWidth, namespace+"/"+name, sentence)
	}
}

// watched is what the board watches.
func (b *board) watched() []stage.Follow {
	return []stage.Follow{
		stage.On(&corev1.Pod{}, b.podIs, b.podGone),
		stage.On(&appsv1alpha1.CloneSet{},
			func(set *appsv1alpha1.CloneSet) { b.workloadIs(set.Name, ofCloneSet(set)) },
			func(set *appsv1alpha1.CloneSet) { b.workloadGone(set.Name) }),
		stage.On(&appsv1.Deployment{},
			func(d *appsv1.Deployment) { b.workloadIs(d.Name, ofDeployment(d)) },
			func(d *appsv1.Deployment) { b.workloadGone(d.Name) }),
		stage.On(&usherv1alpha1.Registration{},
			func(r *usherv1alpha1.Registration) { b.Change(func() { b.registrations[r.Name] = r }) },
			func(r *usherv1alpha1.Registration) { b.Change(func() { delete(b.registrations, r.Name) }) }),
	}
}

func (b *board) podIs(pod *corev1.Pod) {
	b.logged(pod.Name, func() {
		b.pods[pod.Name] = pod
		addr := address(pod)
		if _, known := b.deleted[addr]; addr != "" && pod.DeletionTimestamp != nil && !known {
			b.deleted[addr] = b.now()
		}
	})
}

func (b *board) podGone(pod *corev1.Pod) {
	b.logged(pod.Name, func() { delete(b.pods, pod.Name) })
}

// registryChanged receives registry changes from a traffic client.
func (b *board) registryChanged(change traffic.Change) {
	name := ""
	b.Read(func() { name = b.podAt(change.Addr) })
	b.logged(name, func() {
		b.entries[change.Addr] = listing{listed: change.Joined, since: change.At}
		if change.Joined {
			delete(b.deleted, change.Addr) // the address has a new Pod
		}
	})
}

// logged makes a change and logs what happened to a Pod.
func (b *board) logged(name string, change func()) {
	b.Change(func() {
		before := b.row(name)
		change()
		if after := b.row(name); before != nil || after != nil {
			b.sayOf(name, changes(before, after, b.now()))
		}
	})
}

// podAt finds the Pod with an address, preferring one that stays over one that leaves.
func (b *board) podAt(addr string) (name string) {
	for _, pod := range b.pods {
		if address(pod) == addr && (name == "" || b.pods[name].DeletionTimestamp != nil) {
			name = pod.Name
		}
	}
	return name
}

// row is the Pod's row; nil if there is no such Pod.
func (b *board) row(name string) *row {
	pod := b.pods[name]
	if pod == nil {
		return nil
	}
	r := describe(pod, b.entries[address(pod)])
	return &r
}

// rowsOf lists a workload's Pods, the oldest first; "" is all workloads.
func (b *board) rowsOf(set string) []row {
	rows := []row{}
	for name := range b.pods {
		if r := b.row(name); set == "" || r.set == set {
			rows = append(rows, *r)
		}
	}
	slices.SortFunc(rows, func(x, y row) int {
		return cmp.Or(b.pods[x.name].CreationTimestamp.Compare(b.pods[y.name].CreationTimestamp.Time), strings.Compare(x.name, y.name))
	})
	return rows
}

// logLongWaits logs what has kept Pods waiting for a long time.
func (b *board) logLongWaits() {
	b.Read(func() {
		now := b.now()
		for _, name := range slices.Sorted(maps.Keys(b.pods)) {
			what, wait := b.row(name).waits, b.waiting[name]
			if wait == nil || wait.what != what {
				b.waiting[name] = &longWait{what: what, since: now, logged: what == "" || what == waitCallers}
			} else if !wait.logged && now.Sub(wait.since) >= longWaitTime {
				wait.logged = true
				b.sayOf(name, fmt.Sprintf("has waited %s for %s", seconds(now.Sub(wait.since)), what))
			}
		}
	})
}

// settledAt reports whether a workload has exactly that many Pods and no operation is in
// progress on any of them, after its spec has reached a generation. One that is gone has
// none.
func (b *board) settledAt(name string, pods int, generation int64) bool {
	w, want := b.workloads[name], int32(pods)
	if w == nil {
		return pods == 0 && len(b.rowsOf(name)) == 0
	}
	return w.observed >= generation && !b.underWay(name) && len(b.rowsOf(name)) == pods &&
		w.replicas == want && w.updated == want && w.available == want
}

// underWay reports whether an operation is in progress on a Pod of a workload; "" is any.
func (b *board) underWay(set string) bool {
	return slices.ContainsFunc(b.rowsOf(set), func(r row) bool { return !r.settled() })
}

// draining reports whether a Pod of a set has left the registry before its update.
func (b *board) draining(set string) bool {
	return slices.ContainsFunc(b.rowsOf(set), func(r row) bool {
		return r.state == string(appsv1alpha1.StatePreparingUpdate) && !r.listed
	})
}

// leftAt returns when the Pod of an address was first seen being deleted; zero if it was
// not.
func (b *board) leftAt(addr string) (at time.Time) {
	b.Read(func() { at = b.deleted[addr] })
	return at
}

// waitingFor is what the workloads and Registrations themselves report that they wait for.
func (b *board) waitingFor() []string {
	lines := []string{}
	b.Read(func() {
		for _, w := range b.workloads {
			lines = append(lines, w.complaints...)
		}
		for name, registration := range b.registrations {
			all := registration.Status.Conditions
			if c := meta.FindStatusCondition(all, usherv1alpha1.ConditionWaiting); c != nil && c.Status == metav1.ConditionTrue {
				lines = append(lines, fmt.Sprintf("Registration %s: %s", name, c.Message))
			}
			if c := meta.FindStatusCondition(all, usherv1alpha1.ConditionReady); c != nil && c.Status == metav1.ConditionFalse {
				lines = append(lines, fmt.Sprintf("Registration %s is not ready: %s", name, c.Message))
			}
		}
	})
	slices.Sort(lines)
	return lines
}

// fingerprint lists everything about the Pods that an update or a deletion would
// change.
func (b *board) fingerprint() []string {
	lines := []string{}
	b.Read(func() {
		for _, pod := range b.pods {
			r := describe(pod, listing{})
			lines = append(lines, fmt.Sprintf("%s %s image %s, restarts %d, leaving %t",
				pod.Name, pod.UID, pod.Spec.Containers[0].Image, r.restarts, r.leaving))
		}
	})
	slices.Sort(lines)
	return lines
}

// errLate means that something did not happen in time.
var errLate = errors.New("it did not happen")

// await waits until a condition, which may query the board, holds.
func (b *board) await(ctx context.Context, bound time.Duration, what string, holds func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("%w within %s", errLate, seconds(bound)))
	defer cancel()
	return b.Await(ctx, func() string {
		if holds() {
			return ""
		}
		return "wait for " + what
	})
}
