// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/demo/manifests"
)

// The manifests contain nothing that the API would drop.
func TestManifestsAreWhollyUnderstood(t *testing.T) {
	for file, into := range map[string]any{
		"registry.yaml":                     &usherv1alpha1.Registry{},
		"seed1.yaml":                        &appsv1alpha1.CloneSet{},
		"seed1-registration.yaml":           &usherv1alpha1.Registration{},
		"seed3.yaml":                        &appsv1alpha1.CloneSet{},
		"seed3-registration.yaml":           &usherv1alpha1.Registration{},
		"seed3-predelete.yaml":              &appsv1alpha1.CloneSet{},
		"seed3-predelete-registration.yaml": &usherv1alpha1.Registration{},
	} {
		text, err := manifests.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if lines := strings.Count(text, "\n"); strings.HasSuffix(file, "-registration.yaml") && lines > 15 {
			t.Errorf("%s has %d lines, a Registration for the seeds shall do with 15", file, lines)
		}
	}
}

// The run without hooks differs from the one with hooks only in the hooks.
func TestHooksOffTakesTheHooksAwayAndNothingElse(t *testing.T) {
	for _, s := range stories(true) {
		set, registration, err := s.objects(true, Options{Propagation: 7 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		bareSet, bareRegistration, err := s.objects(false, Options{Propagation: 7 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for what, pair := range map[string][2]*unstructured.Unstructured{
			"lifecycle": {set, bareSet}, "hooks": {registration, bareRegistration},
		} {
			if _, there, _ := unstructured.NestedMap(pair[0].Object, "spec", what); !there {
				t.Errorf("%s: spec.%s is missing with hooks", s.name, what)
			}
			unstructured.RemoveNestedField(pair[0].Object, "spec", what)
			if !reflect.DeepEqual(pair[0], pair[1]) {
				t.Errorf("%s: more than spec.%s differs without hooks", s.name, what)
			}
		}
		if wait, _, _ := unstructured.NestedString(registration.Object, "spec", "drain", "propagation"); wait != "7s" {
			t.Errorf("%s: propagation %q, want the one asked for", s.name, wait)
		}
	}
}

func TestStoriesFitTheirManifests(t *testing.T) {
	for _, hooks := range []bool{true, false} {
		for _, s := range stories(hooks) {
			set, registration, err := s.objects(hooks, Options{Propagation: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			replicas, _, _ := unstructured.NestedInt64(set.Object, "spec", "replicas")
			service, _, _ := unstructured.NestedString(registration.Object, "spec", "instance", "service")
			if set.GetName() != s.name || registration.GetName() != s.name || service != s.name {
				t.Errorf("story %s: CloneSet %s, Registration %s, service %s", s.name, set.GetName(), registration.GetName(), service)
			}
			if int(replicas) != s.steps[phaseCreate].Pods {
				t.Errorf("story %s begins with %d Pods, its manifest says %d", s.name, s.steps[phaseCreate].Pods, replicas)
			}
			for phase := range s.steps {
				if !slices.Contains(phaseNames(), phase) {
					t.Errorf("story %s has a step for %q, which is no phase", s.name, phase)
				}
			}
		}
	}
}

func TestEncodePatch(t *testing.T) {
	got, err := encodePatch(append(setImage(imageV2), setEnv("RELEASE", `"2"`)...))
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"example.com/web:v2"},` +
		`{"op":"add","path":"/spec/template/spec/containers/0/env","value":[{"name":"RELEASE","value":"\"2\""}]}]`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestDefaultOptions(t *testing.T) {
	o, err := Options{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if o.Rate != 500 || o.Hooks != HooksBoth || o.Propagation != 4*time.Second || !slices.Equal(o.Phases, phaseNames()) {
		t.Errorf("defaults %+v", o)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		name    string
		options Options
		want    string
	}{
		{"hooks", Options{Hooks: "maybe"}, "--hooks=maybe"},
		{"rate", Options{Rate: -3}, "--rate=-3"},
		{"phase", Options{Phases: []string{"explode"}}, `no phase "explode": the phases are create, in-place`},
		{"propagation", Options{Propagation: time.Second}, "propagation of 1s is shorter"},
		{"stop without hooks", Options{Hooks: HooksOff, StopRegistry: true}, "--stop-registry"},
		{"stop without its phase", Options{Phases: []string{phaseOut}, StopRegistry: true}, `add it to --phases`},
	} {
		if _, err := c.options.withDefaults(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one that says %q", c.name, err, c.want)
		}
	}
}

func TestCreateAndDeleteAlwaysRun(t *testing.T) {
	some, err := Options{Phases: []string{phaseOut}}.withDefaults()
	if err != nil || !some.runs(phaseCreate) || !some.runs(phaseDelete) || !some.runs(phaseOut) || some.runs(phaseIn) {
		t.Errorf("of the other phases only those run that were asked for: %v", err)
	}
}
