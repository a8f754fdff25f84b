// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
