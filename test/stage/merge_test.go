// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
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
		object, expected := parse(t, base), parse(t, want)
		got, err := Merge(object, CloneSet{}, change)
		registrytest.NoError(t, err)
		if !reflect.DeepEqual(got, expected) || !reflect.DeepEqual(object, parse(t, base)) {
			t.Errorf("%s:\n got %v\nwant %v\nfrom %v", change, got, expected, object)
		}
	}
}

func parse(t *testing.T, document string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	registrytest.NoError(t, yaml.Unmarshal([]byte(document), &object.Object))
	return object
}
