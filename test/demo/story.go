// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/demo/manifests"
)

const (
	namespace = "demo"
	prefix    = "services"
	// port is where the web program listens.
	port = "8080"
)

// phase is a phase of a workload's life.
type phase string

const (
	phaseCreate   phase = "create"
	phaseInPlace  phase = "in-place update"
	phaseRecreate phase = "recreate update"
	phaseOut      phase = "scale out"
	phaseIn       phase = "scale in"
	phaseDrain    phase = "node drain"
	phaseDelete   phase = "delete"
)

// phases are all of them, in their order.
func phases() []phase {
	return []phase{phaseCreate, phaseInPlace, phaseRecreate, phaseOut, phaseIn, phaseDrain, phaseDelete}
}

// phases are those that have something to do.
func (o Options) phases() []phase {
	return slices.DeleteFunc(phases(), func(name phase) bool {
		return !slices.ContainsFunc(o.stories(true), func(s story) bool { return s.steps[name].about != "" })
	})
}

// step is what a phase does to one workload.
type step struct {
	// about describes it to people.
	about string
	// change is a YAML document that changes the workload; empty to change the replicas
	// through the scale subresource instead.
	change string
	// pods is the number of Pods at the end.
	pods int
}

// story is one workload's life.
type story struct {
	// name is the name of the workload, the Registration and the service.
	name string
	// deployment marks a Deployment, which the guard protects. The others are CloneSets.
	deployment bool
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

// life is what happens to every workload, and changes that only some have.
func life(pods int, changes map[phase]step) map[phase]step {
	const most = 5
	steps := map[phase]step{
		phaseCreate: {about: fmt.Sprintf("%d Pods", pods), pods: pods},
		phaseOut:    {about: fmt.Sprintf("%d → %d Pods", pods, most), pods: most},
		phaseIn:     {about: fmt.Sprintf("%d → %d Pods", most, pods), pods: pods},
		phaseDelete: {about: fmt.Sprintf("%d → 0 Pods, and its end", pods)},
	}
	for name, step := range changes {
		step.pods = pods
		steps[name] = step
	}
	return steps
}

const v2 = `spec: {template: {spec: {containers: [{name: main, image: "example.com/web:v2"}]}}}`

// stories are the workloads of a run.
func (o Options) stories(hooks bool) []story {
	if o.KillUsher {
		// While Usher is dead, nothing guards the Pods of a Deployment.
		return cloneSets(hooks)
	}
	shop := story{
		name: "shop", file: "deployment", deployment: true,
		about: "a plain Deployment, drained by the guard",
		steps: life(3, map[phase]step{
			phaseRecreate: {about: "image web:v1 → web:v2, a rollout", change: v2},
			phaseDrain:    {about: "its Pods on one of two nodes, as kubectl drain does"},
		}),
	}
	if !hooks {
		shop.about = "the same without the guard"
	}
	return append(cloneSets(hooks), shop)
}

// cloneSets are the CloneSets of a run.
func cloneSets(hooks bool) []story {
	web := story{
		name: "web", file: "seed1", about: "updated in place and deleted behind hooks",
		steps: life(2, map[phase]step{
			phaseInPlace: {about: "image web:v1 → web:v2", change: v2},
			// No in-place update can change a variable: the Pods have to be recreated.
			phaseRecreate: {about: "a new variable in the template",
				change: `spec: {template: {spec: {containers: [{name: main, env: [{name: RELEASE, value: "2"}]}]}}}`},
		}),
	}
	joins := story{
		name: "prenormal", file: "seed3", joinsOnly: hooks,
		about: "Pods join behind a hook, and leave without",
		steps: life(3, map[phase]step{phaseRecreate: {about: "image web:v1 → web:v2, one Pod more at a time", change: v2}}),
	}
	if !hooks {
		web.about, joins.about = "the same without its lifecycle", "the same without its lifecycle"
		return []story{web, joins}
	}
	drained := story{name: "prenormal-drain", file: "seed3-predelete", steps: joins.steps, about: "behind preNormal and preDelete hooks"}
	return []story{web, drained, joins}
}

// typed names the workload.
func (s story) typed() client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: s.name}
	if s.deployment {
		return &appsv1.Deployment{ObjectMeta: meta}
	}
	return &appsv1alpha1.CloneSet{ObjectMeta: meta}
}

// objects returns the story's workload and Registration. Without hooks, the CloneSet
// loses its lifecycle and the Registration its hooks; everything else stays.
func (s story) objects(hooks bool, o Options) (set, registration *unstructured.Unstructured, err error) {
	if set, err = readManifest(s.file + ".yaml"); err != nil {
		return nil, nil, err
	}
	if registration, err = readManifest(s.file + "-registration.yaml"); err != nil {
		return nil, nil, err
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
