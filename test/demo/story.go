// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/demo/manifests"
	"github.com/usher-dev/usher/test/stage"
)

const (
	namespace = "demo"
	prefix    = "services"
	// port is where the web program listens.
	port = "8080"
)

// phase is a phase of a CloneSet's life.
type phase string

const (
	phaseCreate   phase = "create"
	phaseInPlace  phase = "in-place update"
	phaseRecreate phase = "recreate update"
	phaseOut      phase = "scale out"
	phaseIn       phase = "scale in"
	phaseDelete   phase = "delete"
)

// phases are all of them, in their order.
func phases() []phase {
	return []phase{phaseCreate, phaseInPlace, phaseRecreate, phaseOut, phaseIn, phaseDelete}
}

// step is what a phase does to one CloneSet.
type step struct {
	// about describes it to people.
	about string
	// change is a YAML document that changes the CloneSet; empty to change the replicas
	// through the scale subresource instead.
	change string
	// pods is the number of Pods at the end.
	pods int
}

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
	steps map[phase]step
}

// stories are the CloneSets of a run.
func stories(hooks bool) []story {
	const v2 = `spec: {template: {spec: {containers: [{name: main, image: "example.com/web:v2"}]}}}`
	web := story{
		name: "web", file: "seed1", about: "in-place update and deletion behind hooks",
		steps: map[phase]step{
			phaseCreate:  {about: "2 Pods", pods: 2},
			phaseInPlace: {about: "image web:v1 → web:v2", change: v2, pods: 2},
			// No in-place update can change a variable: the Pods have to be recreated.
			phaseRecreate: {about: "a new variable in the template", pods: 2,
				change: `spec: {template: {spec: {containers: [{name: main, env: [{name: RELEASE, value: "2"}]}]}}}`},
			phaseOut:    {about: "2 → 5 Pods", pods: 5},
			phaseIn:     {about: "5 → 2 Pods", pods: 2},
			phaseDelete: {about: "2 → 0 Pods, then the CloneSet"},
		},
	}
	surging := map[phase]step{
		phaseCreate:   {about: "3 Pods", pods: 3},
		phaseRecreate: {about: "image web:v1 → web:v2, one Pod more at a time", change: v2, pods: 3},
		phaseOut:      {about: "3 → 5 Pods", pods: 5},
		phaseIn:       {about: "5 → 3 Pods", pods: 3},
		phaseDelete:   {about: "3 → 0 Pods, then the CloneSet"},
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
		// On a real node, a Pod without a probe is ready as soon as its container has
		// started, even if it does not listen yet.
		const probe = `spec: {template: {spec: {containers: [{name: main, readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}}]}}}`
		if set, err = stage.Merge(set, stage.CloneSet{}, probe); err != nil {
			return nil, nil, err
		}
	}
	if !hooks {
		unstructured.RemoveNestedField(set.Object, "spec", "lifecycle")
		unstructured.RemoveNestedField(registration.Object, "spec", "hooks")
	}
	err = unstructured.SetNestedField(registration.Object, o.pace.propagation.String(), "spec", "drain", "propagation")
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
	return objects[0], nil
}
