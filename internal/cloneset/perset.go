// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// perSet remembers a value for each set, by name. Passes over one set never overlap, so a
// pass may get, change and put the value.
type perSet[V any] struct{ values sync.Map }

func (p *perSet[V]) get(set types.NamespacedName) V {
	value, _ := p.values.Load(set)
	out, _ := value.(V)
	return out
}

func (p *perSet[V]) put(set types.NamespacedName, value V) { p.values.Store(set, value) }

// forget drops a set that is gone.
func (p *perSet[V]) forget(set types.NamespacedName) { p.values.Delete(set) }
