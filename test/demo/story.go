// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/demo/manifests"
)

const (
	namespace = "demo"
	prefix    = "services"
	imageV1   = "example.com/web:v1"
	imageV2   = "example.com/web:v2"
	// port is where the web program listens if its container names no port.
	port = "8080"
)

// story is one CloneSet's life.
type story struct {
	// name is the name of the CloneSet, the Registration and the service.
	name string
	// about describes what it demonstrates.
	about string
	// joinsOnly marks a CloneSet whose YAML has no hook before deletion: losses from
	// leaving Pods do not count against the hooks.
	joinsOnly bool
	// file is its manifest, without the extension.
	file string
	// steps are what the phases do to it; a phase without one leaves it alone.
	steps map[string]step
}

// stories are the CloneSets of a run.
func stories(hooks bool) []story {
	web := story{
		name: "web", file: "seed1", about: "in-place update and deletion behind hooks",
		steps: map[string]step{
			phaseCreate:   {Text: "2 Pods", Pods: 2},
			phaseInPlace:  {Text: "image web:v1 → web:v2", Patch: setImage(imageV2), Pods: 2},
			phaseRecreate: {Text: "a new variable in the template", Patch: setEnv("RELEASE", "2"), Pods: 2},
			phaseOut:      {Text: "2 → 5 Pods", Scale: true, Pods: 5},
			phaseIn:       {Text: "5 → 2 Pods", Scale: true, Pods: 2},
			phaseDelete:   {Text: "2 → 0 Pods, then the CloneSet"},
		},
	}
	surging := map[string]step{
		phaseCreate:   {Text: "3 Pods", Pods: 3},
		phaseRecreate: {Text: "image web:v1 → web:v2, one Pod more at a time", Patch: setImage(imageV2), Pods: 3},
		phaseOut:      {Text: "3 → 5 Pods", Scale: true, Pods: 5},
		phaseIn:       {Text: "5 → 3 Pods", Scale: true, Pods: 3},
		phaseDelete:   {Text: "3 → 0 Pods, then the CloneSet"},
	}
	joins := story{
		name: "prenormal", file: "seed3", joinsOnly: hooks, steps: surging,
		about: "preNormal alone, as in the proposal: Pods join behind a hook and leave without",
	}
	if !hooks {
		web.about, joins.about = "the same CloneSet without its lifecycle", "the same CloneSet without its lifecycle"
		return []story{web, joins}
	}
	drained := story{
		name: "prenormal-drain", file: "seed3-predelete", steps: surging,
		about: "the same with a preDelete hook beside it",
	}
	return []story{web, drained, joins}
}

// objects returns the story's CloneSet and Registration. Without hooks, the CloneSet
// loses its lifecycle and the Registration its hooks; everything else stays.
func (s story) objects(hooks bool, o Options) (set, registration *unstructured.Unstructured, err error) {
	if set, err = readManifest(s.file + ".yaml"); err != nil {
		return nil, nil, err
	}
	if registration, err = readManifest(s.file + "-registration.yaml"); err != nil {
		return nil, nil, err
	}
	if o.Place != nil {
		if err := withProbe(set); err != nil {
			return nil, nil, err
		}
	}
	if !hooks {
		unstructured.RemoveNestedField(set.Object, "spec", "lifecycle")
		unstructured.RemoveNestedField(registration.Object, "spec", "hooks")
	}
	wait := metav1.Duration{Duration: o.Propagation}
	err = unstructured.SetNestedField(registration.Object, wait.Duration.String(), "spec", "drain", "propagation")
	return set, registration, err
}

// registryObject is the Registry for an etcd.
func registryObject(endpoint string) (*unstructured.Unstructured, error) {
	object, err := readManifest("registry.yaml")
	if err != nil {
		return nil, err
	}
	return object, unstructured.SetNestedStringSlice(object.Object, []string{endpoint}, "spec", "etcd", "endpoints")
}

func readManifest(name string) (*unstructured.Unstructured, error) {
	text, err := manifests.Read(name)
	if err != nil {
		return nil, err
	}
	objects, err := checkout.ReadObjects(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", name, err)
	}
	if len(objects) != 1 {
		return nil, fmt.Errorf("manifest %s: it has %d objects, want one", name, len(objects))
	}
	return objects[0], nil
}
