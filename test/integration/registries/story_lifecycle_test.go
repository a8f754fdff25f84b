// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// TestStoryFinalizerHooks does with finalizers what the seeds do with labels.
func TestStoryFinalizerHooks(t *testing.T) {
	const hook = "example.com/drained"
	s := newStoryOf(t, []string{"lifecycle.yaml",
		"labelsHandler:\n        example.com/unready-blocker-inplace: \"true\"", "finalizersHandler: [" + hook + "]",
		"labelsHandler:\n        example.com/unready-blocker-delete: \"true\"", "finalizersHandler: [" + hook + "]",
	}, "spec: {hooks: {created: null, inPlaceUpdate: "+hook+", preDelete: "+hook+"}}")
	name := s.podOf(s.set, "aaaaa")
	s.Change(s.Pod(name), "metadata: {finalizers: [%s]}", hook)
	s.kubelet(name, "10.0.0.1")
	s.lists("10.0.0.1:80")
	s.condition(usherv1alpha1.ConditionHooksMatched, "True")

	finalizer := func(has bool) {
		t.Helper()
		s.Until("the hook", func() string {
			have := s.Pod(name).Finalizers
			return registrytest.Unless(slices.Contains(have, hook) == has, fmt.Sprintf("the finalizers are %v", have))
		})
	}
	s.state(name, appsv1alpha1.StatePreparingUpdate)
	finalizer(false)
	s.lists()
	s.state(name, appsv1alpha1.StateUpdated)
	finalizer(true)
	s.lists("10.0.0.1:80")

	// Somebody other than the CloneSet deletes it: the hook must not hold it forever.
	s.delete(name)
	s.lists()
}

// TestStoryHooksThatDoNotMatch reports a hook that only one side names to both sides.
func TestStoryHooksThatDoNotMatch(t *testing.T) {
	s := newStory(t, "spec: {hooks: {preDelete: example.com/misspelt}}")
	s.condition(usherv1alpha1.ConditionHooksMatched, metav1.ConditionFalse, "example.com/misspelt", s.set.Name, keyDelete)
	s.Event(s.set, "HookUnanswered", keyDelete)
	s.Event(s.set, "HookUnused", "example.com/misspelt")
}
