// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/demo/manifests"
)

// The manifests contain nothing that the API would drop.
func TestManifestsHaveOnlyKnownFields(t *testing.T) {
	for file, into := range map[string]any{
		"registry.yaml":                     &usherv1alpha1.Registry{},
		"seed1.yaml":                        &appsv1alpha1.CloneSet{},
		"seed1-registration.yaml":           &usherv1alpha1.Registration{},
		"seed3.yaml":                        &appsv1alpha1.CloneSet{},
		"seed3-registration.yaml":           &usherv1alpha1.Registration{},
		"seed3-predelete.yaml":              &appsv1alpha1.CloneSet{},
		"seed3-predelete-registration.yaml": &usherv1alpha1.Registration{},
		"deployment.yaml":                   &appsv1.Deployment{},
		"deployment-registration.yaml":      &usherv1alpha1.Registration{},
	} {
		text, err := manifests.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if lines := strings.Count(text, "\n"); strings.HasSuffix(file, "-registration.yaml") && lines > 15 {
			t.Errorf("%s has %d lines, 15 should do for a Registration", file, lines)
		}
	}
}

// The stories fit their manifests.
func TestStoriesFitTheirManifests(t *testing.T) {
	for _, s := range (Options{}).stories(true) {
		set, registration := objectsOf(t, s, true)
		replicas, _, _ := unstructured.NestedInt64(set.Object, "spec", "replicas")
		service, _, _ := unstructured.NestedString(registration.Object, "spec", "instance", "service")
		if set.GetName() != s.name || registration.GetName() != s.name || service != s.name || int(replicas) != s.steps[phaseCreate].pods {
			t.Errorf("story %s: %s with %d Pods, Registration %s, service %s", s.name, set.GetKind()+" "+set.GetName(), replicas, registration.GetName(), service)
		}
		for name := range s.steps {
			if !slices.Contains(phases(), name) {
				t.Errorf("story %s has a step for %q, which is no phase", s.name, name)
			}
		}
		if propagation, _, _ := unstructured.NestedString(registration.Object, "spec", "drain", "propagation"); propagation != "7s" {
			t.Errorf("%s: propagation %q, want the given one", s.name, propagation)
		}
	}
}

func objectsOf(t *testing.T, s story, hooks bool) (set, registration *unstructured.Unstructured) {
	t.Helper()
	set, registration, err := s.objects(hooks, Options{pace: pace{propagation: 7 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	return set, registration
}

// Without hooks, only the hooks are missing.
func TestWithoutHooks(t *testing.T) {
	for _, s := range cloneSets(true) {
		set, registration := objectsOf(t, s, true)
		bareSet, bareRegistration := objectsOf(t, s, false)
		for what, pair := range map[string][2]*unstructured.Unstructured{"lifecycle": {set, bareSet}, "hooks": {registration, bareRegistration}} {
			if _, there, _ := unstructured.NestedMap(pair[0].Object, "spec", what); !there {
				t.Errorf("%s: spec.%s is missing with hooks", s.name, what)
			}
			unstructured.RemoveNestedField(pair[0].Object, "spec", what)
			if !reflect.DeepEqual(pair[0], pair[1]) {
				t.Errorf("%s: more than spec.%s differs without hooks", s.name, what)
			}
		}
	}
}
