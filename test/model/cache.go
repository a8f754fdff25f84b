// SPDX-License-Identifier: Apache-2.0

package model

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Cache is a copy of a server's objects of one kind, up to a position in its log.
type Cache struct {
	Objects map[types.NamespacedName]client.Object
	// Shown holds the objects that the copy has ever had.
	Shown map[types.UID]bool
	// Applied is how much of the server's log the copy has.
	Applied int
	// Changed is called after each change of the copy.
	Changed func(before, after client.Object)

	server *Server
	kind   Kind
}

// NewCache is a copy of the objects as they are now.
func NewCache(s *Server, kind Kind, changed func(before, after client.Object)) *Cache {
	c := &Cache{server: s, kind: kind, Shown: map[types.UID]bool{}, Changed: func(_, _ client.Object) {}}
	c.Relist()
	c.Changed = changed
	return c
}

// Report reports every object as new, as the first list does.
func (c *Cache) Report() {
	for _, object := range Sorted(c.Objects) {
		c.Changed(nil, object)
	}
}

// Deliver moves the copy forward to a position in the log, event by event.
func (c *Cache) Deliver(upTo int) {
	for c.Applied < upTo {
		commit := c.server.Log[c.kind][c.Applied]
		c.Applied++
		at := client.ObjectKeyFromObject(commit.Object())
		before := c.Objects[at]
		if commit.New == nil {
			delete(c.Objects, at)
		} else {
			c.put(at, commit.New)
		}
		c.Changed(before, commit.New)
	}
}

// Relist replaces the copy with the present state. An object that was removed and
// recreated under the same name shows as an update.
func (c *Cache) Relist() {
	before := c.Objects
	c.Applied, c.Objects = len(c.server.Log[c.kind]), map[types.NamespacedName]client.Object{}
	for at, object := range c.server.Objects[c.kind] {
		c.put(at, object)
	}
	for _, object := range Sorted(before) {
		if c.Objects[client.ObjectKeyFromObject(object)] == nil {
			c.Changed(object, nil)
		}
	}
	for _, object := range Sorted(c.Objects) {
		was := before[client.ObjectKeyFromObject(object)]
		if was == nil || was.GetResourceVersion() != object.GetResourceVersion() {
			c.Changed(was, object)
		}
	}
}

func (c *Cache) put(at types.NamespacedName, object client.Object) {
	c.Objects[at], c.Shown[object.GetUID()] = object, true
}
