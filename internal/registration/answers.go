// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// answers are those of the API server to our last writes, which the cache may not
// show yet.
type answers[T client.Object] map[types.UID]T

// wrote remembers the answer to our latest write of an object.
func (a answers[T]) wrote(answer T) { a[answer.GetUID()] = answer }

// overlay replaces objects that the cache shows as they were before our last write,
// and returns the answers that this took. A cache can be older than what the write
// was based on: a pass may have asked the API server itself.
func (a answers[T]) overlay(objects []T) answers[T] {
	seen := answers[T]{}
	for i, object := range objects {
		if answer, ok := a[object.GetUID()]; ok && newer(answer, object) {
			objects[i] = answer
			seen[object.GetUID()] = answer
		}
	}
	return seen
}

// newer says whether a is a later version of the object than b.
func newer(a, b client.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
