// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"fmt"
)

// The phases of a CloneSet's life, in their order.
const (
	phaseCreate   = "create"
	phaseInPlace  = "in-place"
	phaseRecreate = "recreate"
	phaseOut      = "scale-out"
	phaseIn       = "scale-in"
	phaseDelete   = "delete"
)

func phaseNames() []string {
	return []string{phaseCreate, phaseInPlace, phaseRecreate, phaseOut, phaseIn, phaseDelete}
}

func phaseTitle(name string) string {
	return map[string]string{
		phaseCreate:   "create",
		phaseInPlace:  "in-place update",
		phaseRecreate: "recreate update",
		phaseOut:      "scale out",
		phaseIn:       "scale in",
		phaseDelete:   "delete",
	}[name]
}

// step is what a phase does to one CloneSet. Exactly one of Patch and Scale is set,
// except for create and delete, which need neither.
type step struct {
	// Text describes it to people.
	Text string
	// Patch is a JSON patch of the CloneSet.
	Patch []patchOp
	// Scale changes the replicas through the scale subresource.
	Scale bool
	// Pods is the number of Pods at the end.
	Pods int
}

// patchOp is one operation of a JSON patch (RFC 6902).
type patchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func encodePatch(ops []patchOp) ([]byte, error) {
	data, err := json.Marshal(ops)
	if err != nil {
		return nil, fmt.Errorf("encode a patch: %w", err)
	}
	return data, nil
}

const firstContainer = "/spec/template/spec/containers/0"

func setImage(image string) []patchOp {
	return []patchOp{{Op: "replace", Path: firstContainer + "/image", Value: image}}
}

// setEnv sets a container variable, which no in-place update can change: the Pods have
// to be recreated.
func setEnv(name, value string) []patchOp {
	return []patchOp{{
		Op: "add", Path: firstContainer + "/env",
		Value: []map[string]string{{"name": name, "value": value}},
	}}
}
