// SPDX-License-Identifier: Apache-2.0

// Package manifests holds the CloneSets that the demo and the stories on a real node
// start from, as their authors published them, and Registrations for them.
package manifests

import (
	"embed"
	"fmt"
	"time"

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

// Workload returns a workload, for instance seed1, and its Registration with a propagation. Without
// hooks, a CloneSet loses its lifecycle and the Registration its hooks; everything else stays.
func Workload(name string, hooks bool, propagation time.Duration) (workload, registration *unstructured.Unstructured, err error) {
	workload, registration = &unstructured.Unstructured{}, &unstructured.Unstructured{}
	for file, object := range map[string]*unstructured.Unstructured{name + ".yaml": workload, name + "-registration.yaml": registration} {
		text, err := Read(file)
		if err == nil {
			err = yaml.Unmarshal([]byte(text), object)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if !hooks {
		unstructured.RemoveNestedField(workload.Object, "spec", "lifecycle")
		unstructured.RemoveNestedField(registration.Object, "spec", "hooks")
	}
	return workload, registration, unstructured.SetNestedField(registration.Object, propagation.String(), "spec", "drain", "propagation")
}
