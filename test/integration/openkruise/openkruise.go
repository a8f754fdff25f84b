// SPDX-License-Identifier: Apache-2.0

// Package openkruise creates what an OpenKruise 1.9 manager leaves in a cluster.
package openkruise

import (
	"cmp"
	"context"
	_ "embed" // for the files in testdata
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/integration/scene"
)

//go:embed testdata/set.yaml
var set string

//go:embed testdata/pod.yaml
var pod string

//go:embed testdata/states.yaml
var states string

// FarAway is the node of the Pod. There is no such node: the test is its kubelet.
const FarAway = "far-away"

// Arguments are those of a control plane that leaves the Pod alone: otherwise, Pods of nodes that do not
// exist are deleted within a minute or so.
var Arguments = cluster.ExtraArgs{build.ControllerManager: {"--controllers=-pod-garbage-collector-controller"}}

// Leave creates in a namespace the CloneSet web with a merge patch, its revisions, and
// one Pod in a state of states.yaml.
func Leave(ctx context.Context, c client.Client, namespace, state, patch string) error {
	changes := map[string]json.RawMessage{}
	if err := yaml.Unmarshal([]byte(states), &changes); err != nil {
		return err
	}
	change, ok := changes[state]
	if !ok {
		return fmt.Errorf("states.yaml has no state %q", state)
	}
	names := []string{"NAMESPACE", namespace}
	put := func(text string, patches ...string) (*unstructured.Unstructured, error) {
		object, err := scene.Parse(strings.NewReplacer(names...).Replace(text), patches...)
		if err != nil {
			return nil, err
		}
		return object, create(ctx, c, object)
	}
	documents := strings.Split(set, "\n---\n")
	owner, err := put(documents[0], cmp.Or(patch, "{}"))
	if err != nil {
		return err
	}
	names = append(names, "UID", string(owner.GetUID()))
	for _, revision := range documents[1:] {
		if _, err := put(revision); err != nil {
			return err
		}
	}
	_, err = put(pod, strings.NewReplacer(names...).Replace(string(change)))
	return err
}

// create creates an object together with its status.
func create(ctx context.Context, c client.Client, object *unstructured.Unstructured) error {
	status := object.Object["status"]
	if err := c.Create(ctx, object); err != nil || status == nil {
		return err
	}
	object.Object["status"] = status
	return c.Status().Update(ctx, object)
}
