// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestDeletionOf: the hook, and how the set is deleted, decide.
func TestDeletionOf(t *testing.T) {
	const ours, other = apps.FinalizerPreDelete, "example.com/other"
	empty := &apps.Lifecycle{PreDelete: &apps.LifecycleHook{MarkPodNotReady: true}}
	hooked := &apps.Lifecycle{PreDelete: &apps.LifecycleHook{LabelsHandler: map[string]string{keyDelete: "true"}}}
	for _, test := range []struct {
		name       string
		hooks      *apps.Lifecycle
		deleted    bool
		finalizers []string
		how        Deletion
		hold       bool
	}{
		{name: "no hook"},
		{name: "no hook any more", finalizers: []string{ours}},
		{name: "a hook without keys", hooks: empty},
		{name: "a hook", hooks: hooked, hold: true},
		{name: "in background", hooks: hooked, deleted: true, finalizers: []string{other, ours}, how: Drain, hold: true},
		{name: "in background, without a hook", deleted: true, finalizers: []string{ours}, how: LetGo},
		{name: "in background, the finalizer taken off", hooks: hooked, deleted: true, finalizers: []string{other}, how: LetGo},
		{name: "in foreground", hooks: hooked, deleted: true, finalizers: []string{ours, metav1.FinalizerDeleteDependents}, how: Drain},
		{name: "in foreground, without a hook", deleted: true, finalizers: []string{metav1.FinalizerDeleteDependents}, how: LetGo},
		{name: "without its Pods", hooks: hooked, deleted: true, finalizers: []string{ours, metav1.FinalizerOrphanDependents}, how: LetGo},
	} {
		t.Run(test.name, func(t *testing.T) {
			set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Finalizers: test.finalizers}}
			set.Spec.Lifecycle = test.hooks
			if test.deleted {
				set.DeletionTimestamp = &metav1.Time{Time: now}
			}
			if how, hold := DeletionOf(set); how != test.how || hold != test.hold {
				t.Errorf("%q, holds %t; want %q, %t", how, hold, test.how, test.hold)
			}
		})
	}
}

func deletion(how Deletion) option { return func(s *Snapshot) { s.Deletion = how } }

// TestDeparted: the set goes when its last Pod has passed the gate.
func TestDeparted(t *testing.T) {
	for name, test := range map[string]struct {
		how  Deletion
		pods []*corev1.Pod
		want bool
	}{
		"no Pods":          {Drain, nil, true},
		"terminating ones": {Drain, []*corev1.Pod{pod("a", 1, terminating, registered)}, true},
		"one at the gate":  {Drain, []*corev1.Pod{pod("a", 1, terminating), pod("b", 1, state(apps.StatePreparingDelete))}, false},
		"one that ended":   {Drain, []*corev1.Pod{pod("a", 1, phase(corev1.PodSucceeded))}, false},
		"it stays":         {NotDeleted, nil, false},
	} {
		s := snap(0, deletion(test.how), with(test.pods...))
		s.PodInfos = ReadPods(s.Pods, nil)
		if got := s.Departed(); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestDeletionWaits: a deleted set says what it waits for, and what to do.
func TestDeletionWaits(t *testing.T) {
	s := snap(0, deletion(Drain), hooks(preDelete()), with(
		pod("a", 1, finalizers(keyDelete), state(apps.StatePreparingDelete)), pod("b", 1, finalizers(keyDelete)), pod("c", 1, terminating),
	))
	blocked := waiting(s)
	if len(blocked) != 1 {
		t.Fatalf("%v wait, want the Pod at the gate", blocked)
	}
	for _, part := range []string{"Pod a is in PreparingDelete", keyDelete + " since 2026-01-02T02:04:05Z", "before the CloneSet is deleted", "remove spec.lifecycle.preDelete"} {
		if text := blocked[0].String(); !strings.Contains(text, part) {
			t.Errorf("%q lacks %q", text, part)
		}
	}
	if deletion(LetGo)(s); len(waiting(s)) > 0 {
		t.Error("nobody waits for Pods that others see to")
	}
}

// deferred makes the API server defer the deletion of Pods for some time.
func deferred(until time.Duration, names ...string) option {
	return func(s *Snapshot) {
		s.Deferred = map[types.UID]Deferral{}
		for _, name := range names {
			s.Deferred[types.UID("uid-"+name)] = Deferral{Since: now.Add(-time.Minute), Until: now.Add(until), Message: "it drains."}
		}
	}
}

// TestDeferredDeletion: it says who asks to wait, and since when.
func TestDeferredDeletion(t *testing.T) {
	blocked := waiting(snap(0, with(pod("a", 1)), deferred(time.Second, "a")))
	if len(blocked) != 1 || blocked[0].String() != "Pod a is to be deleted, and the API server asks to wait since 2026-01-02T03:03:05Z: it drains" {
		t.Errorf("waits %v", blocked)
	}
	if p := Make(snap(0, with(pod("a", 1)), deferred(0, "a"))); count(p, func(a Action) bool { return a.Verb == Delete }) != 1 {
		t.Errorf("its time has come, and the plan is %v", p.Actions)
	}
}
