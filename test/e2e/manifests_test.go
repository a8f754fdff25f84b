// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/stage"
)

// The usual manifests and those of registries contain nothing that the API would drop.
func TestManifestsHaveOnlyKnownFields(t *testing.T) {
	story := Options{Stories: []Story{{Name: "a-story"}}}.chosen()[0]
	set, err := newWorkload(story, stage.CloneSet{}, []string{cloneSet, "spec: {replicas: 7}"})
	registrytest.NoError(t, err)
	typed := &appsv1alpha1.CloneSet{}
	decodeStrictly(t, set, typed)
	if *typed.Spec.Replicas != 7 || typed.Namespace != "a-story" || typed.Name != SetName {
		t.Errorf("the set is %s/%s with %d replicas", typed.Namespace, typed.Name, *typed.Spec.Replicas)
	}
	made, err := newRegistration(story, []string{registration, hooks, "spec: {hooks: {created: null}}"})
	registrytest.NoError(t, err)
	decodeStrictly(t, made, &usherv1alpha1.Registration{})
	for _, kind := range []Registry{Etcd, OwnEtcd, Consul, HAProxy} {
		object, err := registryObject(kind)
		registrytest.NoError(t, err)
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
