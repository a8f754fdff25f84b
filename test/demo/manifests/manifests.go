// SPDX-License-Identifier: Apache-2.0

// Package manifests holds the CloneSets that the demo and the stories on a real node
// start from, as their authors published them, and Registrations for them.
package manifests

import (
	"embed"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

//go:embed *.yaml
var files embed.FS

// Read returns the text of a manifest, for instance seed1.yaml.
func Read(name string) (string, error) {
	text, err := files.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("manifest %s: %w", name, err)
	}
	return string(text), nil
}

// Object returns what a manifest describes, for instance seed1.
func Object(name string) (*unstructured.Unstructured, error) {
	text, err := Read(name + ".yaml")
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	return object, yaml.Unmarshal([]byte(text), object)
}
