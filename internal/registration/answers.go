// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// answers are those of the API server to our last writes, which the cache may not
// show yet.
type answers[T client.Object] map[types.UID]written[T]

// written is the answer to our latest patch of an object.
type written[T client.Object] struct {
	object T
	// before are the versions that a cache shows which has not seen it.
	before map[string]bool
}

// wrote remembers the answer to a patch of old.
func (a answers[T]) wrote(old, answer T) {
	before := map[string]bool{old.GetResourceVersion(): true}
	if earlier, ok := a[old.GetUID()]; ok && earlier.object.GetResourceVersion() == old.GetResourceVersion() {
		for version := range earlier.before {
			before[version] = true
		}
	}
	a[old.GetUID()] = written[T]{object: answer, before: before}
}

// overlay replaces objects that the cache shows as they were before our last
// write, and returns the answers that this took. A version that is neither is
// newer: another cannot be written between a patch and the version it names.
func (a answers[T]) overlay(objects []T) answers[T] {
	seen := answers[T]{}
	for i, object := range objects {
		if w, ok := a[object.GetUID()]; ok && w.before[object.GetResourceVersion()] {
			objects[i] = w.object
			seen[object.GetUID()] = w
		}
	}
	return seen
}
