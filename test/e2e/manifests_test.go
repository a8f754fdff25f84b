// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// Stories change containers and variables by name, remove with null, and replace other
// lists.
func TestMerge(t *testing.T) {
	const base = `{spec: {replicas: 3, scaleStrategy: {podsToDelete: [a, b]}, template: {metadata: {labels: {x: "1"}}, spec: {
		containers: [{name: main, image: v1, env: [{name: A, value: "1"}]}, {name: other, image: v1}]}}}}`
	for change, want := range map[string]string{
		``: base,
		`{spec: {replicas: 5, scaleStrategy: {podsToDelete: [c]}, template: {metadata: {labels: {x: null, y: "2"}}}}}`: `{spec: {replicas: 5,
			scaleStrategy: {podsToDelete: [c]}, template: {metadata: {labels: {y: "2"}}, spec: {
			containers: [{name: main, image: v1, env: [{name: A, value: "1"}]}, {name: other, image: v1}]}}}}`,
		`{spec: {scaleStrategy: null, template: {spec: {containers: [{name: main, env: [{name: A, value: "2"}]}, {name: new}]}}}}`: `{spec: {
			replicas: 3, template: {metadata: {labels: {x: "1"}}, spec: {
			containers: [{name: main, image: v1, env: [{name: A, value: "2"}]}, {name: new}, {name: other, image: v1}]}}}}`,
		// The order stays: another one would be a change that is not possible in place.
		`{spec: {scaleStrategy: null, template: {spec: {containers: [{name: other, image: v2}]}}}}`: `{spec: {
			replicas: 3, template: {metadata: {labels: {x: "1"}}, spec: {
			containers: [{name: main, image: v1, env: [{name: A, value: "1"}]}, {name: other, image: v2}]}}}}`,
	} {
		object, err := build(shapeOfSet{}, base)
		if err != nil {
			t.Fatal(err)
		}
		before := object.DeepCopy()
		got, err := merge(object.Object, change, shapeOfSet{})
		if err != nil {
			t.Fatal(err)
		}
		var expected map[string]any
		if err := yaml.Unmarshal([]byte(want), &expected); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, expected) || !reflect.DeepEqual(before, object) {
			t.Errorf("%s:\n got %v\nwant %v\nfrom %v", change, got, expected, object.Object)
		}
	}
}

// The usual manifests and those of registries contain nothing that the API would drop.
func TestManifestsHaveOnlyKnownFields(t *testing.T) {
	story := Options{Stories: []Story{{Name: "a-story"}}}.chosen()[0]
	set, err := newCloneSet(story, cloneSet, []string{"spec: {replicas: 7}"})
	if err != nil {
		t.Fatal(err)
	}
	typed := &appsv1alpha1.CloneSet{}
	decodeStrictly(t, set, typed)
	if *typed.Spec.Replicas != 7 || typed.Namespace != "a-story" || typed.Name != SetName {
		t.Errorf("the set is %s/%s with %d replicas", typed.Namespace, typed.Name, *typed.Spec.Replicas)
	}
	made, err := newRegistration(story, []string{registration, "spec: {hooks: {created: null}}"})
	if err != nil {
		t.Fatal(err)
	}
	decodeStrictly(t, made, &usherv1alpha1.Registration{})
	for _, kind := range []Registry{Etcd, OwnEtcd, Consul, HAProxy} {
		object, err := registryObject(kind)
		if err != nil {
			t.Fatal(err)
		}
		decodeStrictly(t, object, &usherv1alpha1.Registry{})
	}
}

func decodeStrictly(t *testing.T, object *unstructured.Unstructured, into any) {
	t.Helper()
	text, err := yaml.Marshal(object.Object)
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Errorf("%s: %v", object.GetKind(), err)
	}
}
