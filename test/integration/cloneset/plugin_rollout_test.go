// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// `rollout status` finishes when the Pods are there, and not before.
func TestPluginRolloutStatus(t *testing.T) {
	const image = `spec: {template: {spec: {containers: [{name: main, image: "example.test/web:v2"}]}}}`
	for _, test := range []struct {
		name     string
		edits    []any
		request  string
		lastWord string
		// updated Pods are ready, with the new image in the case of an update.
		image   string
		updated int
	}{
		{"in place", nil, image, "successfully rolled out", "web:v2", 3},
		{"recreated", []any{"spec.updateStrategy.type", "ReCreate"}, image, "successfully rolled out", "web:v2", 3},
		{"partition", []any{"spec.updateStrategy.partition", 1}, image, "partitioned roll out complete: 2 new Pods", "web:v2", 2},
		{"partition in percent", []any{"spec.updateStrategy.partition", "50%"}, image, "partitioned roll out complete: 1 new Pods", "web:v2", 1},
		{"scaled", nil, `spec: {replicas: 5}`, "successfully rolled out", "web:v1", 5},
		{"stuck", nil, strings.Replace(strings.Replace(image, "web:v2", "missing:v1", 1), "{", "{progressDeadlineSeconds: 1, ", 1),
			"exceeded its progress deadline", "missing:v1", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, _ := tool(t)
			s.create(plain, test.edits...)
			if says := s.rolloutStatus(); !strings.Contains(says, "roll") {
				t.Fatalf("of the new set: %s", says)
			}
			s.patch("%s", test.request)
			if says := s.rolloutStatus(); says != test.lastWord {
				t.Errorf("its last word is %q", says)
			}
			updated := slices.DeleteFunc(s.pods(), func(p corev1.Pod) bool {
				return p.Spec.Containers[0].Image != "example.test/"+test.image || conditionOf(&p, corev1.PodReady) != corev1.ConditionTrue
			})
			if len(updated) != test.updated {
				t.Errorf("%d Pods are ready with %s\n%s", len(updated), test.image, s.picture())
			}
		})
	}
}

// While paused, a new template touches no Pod, even if the set is scaled; after
// resuming, the update continues.
func TestPluginPauseAndResume(t *testing.T) {
	t.Parallel()
	s, _ := tool(t)
	s.create(tooled, "spec.progressDeadlineSeconds", 600)
	s.settled(3)
	before := s.identities()
	s.patch(`spec: {updateStrategy: {paused: true}}`)
	s.setImage("web:v2")
	s.until("the pause to be told", func() bool {
		set := s.set()
		return set.Status.ObservedGeneration == set.Generation && s.condition(apps.ConditionProgressing).Reason == "CloneSetPaused"
	})
	s.still()
	if got := s.restarts(); got != "0+0 0+0 0+0" || s.set().Status.UpdatedReplicas != 0 {
		t.Errorf("restarts %s, updated %d", got, s.set().Status.UpdatedReplicas)
	}
	s.patch(`spec: {updateStrategy: {paused: false}}`)
	if says := s.rolloutStatus(); says != "successfully rolled out" {
		t.Error(says)
	}
	if got := s.restarts(); got != "1+0 1+0 1+0" || !maps.Equal(before, s.identities()) {
		t.Errorf("restarts %s of %v, which were %v", got, s.identities(), before)
	}
}

// `rollout restart` sets a new annotation on sets that recreate their Pods, and a new
// environment variable on others: a set that updates in place changes annotations in
// place, without a restart.
func TestPluginRestart(t *testing.T) {
	annotate := func(s *story) {
		s.patch(`spec: {template: {metadata: {annotations: {kubectl.kubernetes.io/restartedAt: "2026-01-02T03:04:05Z"}}}}`)
	}
	env := func(s *story) {
		s.setContainers(func(t *corev1.PodTemplateSpec) {
			for i := range t.Spec.Containers {
				c := &t.Spec.Containers[i]
				c.Env = append(c.Env, corev1.EnvVar{Name: "RESTARTED_AT", Value: "2026-01-02T03:04:05Z"})
			}
		})
	}
	for _, test := range []struct {
		name, strategy string
		request        func(*story)
		restarted      bool
	}{
		{"ReCreate, annotation", "ReCreate", annotate, true},
		{"InPlaceIfPossible, annotation", "InPlaceIfPossible", annotate, false},
		{"InPlaceIfPossible, environment", "InPlaceIfPossible", env, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, revisions := tool(t)
			s.create(tooled, "spec.updateStrategy.type", test.strategy)
			s.settled(3)
			before := s.identities()
			test.request(s)
			if says := s.rolloutStatus(); says != "successfully rolled out" {
				t.Error(says)
			}
			for name, uid := range s.identities() {
				if (before[name] != uid) != test.restarted {
					t.Errorf("Pod %s is new: %v, want %v", name, before[name] != uid, test.restarted)
				}
			}
			if got := s.restarts(); got != "0+0 0+0 0+0" || revisions.Load() != 2 {
				t.Errorf("restarts %s, %d revisions", got, revisions.Load())
			}
			s.still()
		})
	}
}

// A set that may not recreate its Pods reports that it cannot be restarted this way.
// The other way, a ContainerRecreateRequest, is a separate API, which is not installed.
func TestPluginRestartThatCannotBe(t *testing.T) {
	t.Parallel()
	s, _ := tool(t)
	s.create(tooled, "spec.updateStrategy.type", "InPlaceOnly")
	s.settled(3)
	before := s.versions()
	s.setContainers(func(t *corev1.PodTemplateSpec) {
		t.Spec.Containers[0].Env = append(t.Spec.Containers[0].Env, corev1.EnvVar{Name: "RESTARTED_AT", Value: "now"})
	})
	s.until("the condition FailedUpdate to name the field", func() bool {
		c := s.condition(apps.ConditionFailedUpdate)
		return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "spec.template.spec.containers[main].env differs")
	})
	for name, version := range s.versions() {
		if strings.HasPrefix(name, "Pod ") && before[name] != version {
			t.Errorf("%s was written: %s, then %s", name, before[name], version)
		}
	}
	_, err := s.client.RESTMapper().RESTMapping(schema.GroupKind{Group: apps.GroupVersion.Group, Kind: "ContainerRecreateRequest"})
	if !meta.IsNoMatchError(err) {
		t.Errorf("ContainerRecreateRequest: %v", err)
	}
}
