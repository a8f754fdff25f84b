// SPDX-License-Identifier: Apache-2.0

package bench

// phase is a named change.
type phase struct {
	name   string
	kind   Kind
	change change
	aside  bool // it only prepares the next one, and is not reported
}

// phases are the changes of one CloneSet of n Pods, in order. Each begins where the
// previous one ended.
func phases(n int) []phase {
	return []phase{
		{name: phaseScaleOut, kind: KindScale, change: change{replicas: n, version: 1}},
		{name: phaseInPlace, kind: KindInPlace, change: change{replicas: n, version: 2}},
		{name: phaseInPlaceHook, kind: KindInPlace, change: change{replicas: n, version: 3, updateHook: true}},
		{name: "recreate", kind: KindRecreate, change: change{replicas: n, version: 4, recreate: true}},
		{name: phaseScaleInHook, kind: KindScale, change: change{version: 4, deleteHook: true}},
		{name: "scale out again", kind: KindScale, change: change{replicas: n, version: 4}, aside: true},
		{name: phaseScaleIn, kind: KindScale, change: change{version: 4}},
	}
}
