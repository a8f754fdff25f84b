// SPDX-License-Identifier: Apache-2.0

// Package manifest reads the objects of a story from YAML.
package manifest

import (
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Parse parses one object and applies JSON merge patches, which are YAML too.
func Parse(text string, patches ...string) (*unstructured.Unstructured, error) {
	object, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%w in\n%s", err, text)
	}
	for _, patch := range patches {
		change, err := yaml.YAMLToJSON([]byte(patch))
		if err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, patch)
		}
		if object, err = jsonpatch.MergePatch(object, change); err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, patch)
		}
	}
	out := &unstructured.Unstructured{}
	return out, out.UnmarshalJSON(object)
}
