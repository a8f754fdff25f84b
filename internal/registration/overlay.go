// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// overlay has the API server's answers to our last writes, which the cache may not show
// yet.
type overlay[T client.Object] map[types.UID]T

// wrote stores the answer to our last write of an object.
func (o overlay[T]) wrote(answer T) { o[answer.GetUID()] = answer }

// cover replaces objects that the cache shows as they were before our last write, and
// returns what it used. A cache may be older than the version that we wrote to, because a
// pass may have read that from the API server.
func (o overlay[T]) cover(objects []T) overlay[T] {
	used := overlay[T]{}
	for i, object := range objects {
		if answer, ok := o[object.GetUID()]; ok && newer(answer, object) {
			objects[i] = answer
			used[object.GetUID()] = answer
		}
	}
	return used
}

// newer reports whether a is a later version of the object than b.
func newer(a, b client.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
