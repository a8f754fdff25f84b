// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Lag is how long a watch takes to deliver an event, drawn separately for each event.
type Lag struct {
	Least, Most time.Duration
	// Stall is the probability that the watch hangs for StallFor. When it comes back,
	// it may deliver only the last state of each object, as after a relist.
	Stall    float64
	StallFor time.Duration
}

// cache is one process's delayed copy of the objects of one kind.
type cache struct {
	world  *World
	server *Server
	kind   Kind
	lag    Lag
	// applied is how much of the server's log the copy has.
	applied int
	objects map[types.NamespacedName]client.Object
	// shown holds the objects that the copy has ever had.
	shown map[types.UID]bool
	// due is when the latest planned delivery happens: watches preserve the order.
	due time.Time
	// heard is when the latest event reaches its handler.
	heard time.Time
	// stopped is true once the process has ended.
	stopped bool
	// changed is called after each change of the copy.
	changed func(before, after client.Object)
}

// newCache lists the objects as they are now and reports each of them.
func newCache(w *World, s *Server, kind Kind, lag Lag) *cache {
	c := &cache{world: w, server: s, kind: kind, lag: lag, objects: map[types.NamespacedName]client.Object{}, shown: map[types.UID]bool{}}
	for key, object := range s.objects[kind] {
		c.put(key, object)
	}
	c.applied = len(s.log[kind])
	return c
}

func (c *cache) put(at types.NamespacedName, object client.Object) {
	c.objects[at], c.shown[object.GetUID()] = object, true
}

// start reports what the first list returned.
func (c *cache) start() {
	for _, object := range sorted(c.objects) {
		c.changed(nil, object)
	}
}

// hear receives a commit from the server and plans its delivery.
func (c *cache) hear() {
	if c.stopped {
		return
	}
	at := c.world.now().Add(c.world.between(c.lag.Least, c.lag.Most))
	relist := false
	if c.world.roll(c.lag.Stall) {
		at = at.Add(c.world.between(0, c.lag.StallFor))
		relist = c.world.roll(0.5)
	}
	if at.Before(c.due) {
		at = c.due
	}
	c.due = at
	upTo := len(c.server.log[c.kind]) // the commit is already in the log
	c.world.after(at.Sub(c.world.now()), func() { c.deliver(upTo, relist) })
}

// deliver moves the copy forward, either event by event or in one jump to the present,
// as a relist does.
func (c *cache) deliver(upTo int, relist bool) {
	if c.stopped {
		return
	}
	if relist {
		c.jump()
		return
	}
	for c.applied < upTo {
		commit := c.server.log[c.kind][c.applied]
		c.applied++
		key := client.ObjectKeyFromObject(commit.object())
		before := c.objects[key]
		if commit.New == nil {
			delete(c.objects, key)
			c.changed(before, nil)
			continue
		}
		c.put(key, commit.New)
		c.changed(before, commit.New)
	}
}

// jump replaces the copy with the present state. An object that was removed and
// recreated under the same name shows as an update.
func (c *cache) jump() {
	before := c.objects
	c.applied = len(c.server.log[c.kind])
	c.objects = map[types.NamespacedName]client.Object{}
	for key, object := range c.server.objects[c.kind] {
		c.put(key, object)
	}
	for _, object := range sorted(before) {
		if _, ok := c.objects[client.ObjectKeyFromObject(object)]; !ok {
			c.changed(object, nil)
		}
	}
	for _, object := range sorted(c.objects) {
		was := before[client.ObjectKeyFromObject(object)]
		if was == nil || was.GetResourceVersion() != object.GetResourceVersion() {
			c.changed(was, object)
		}
	}
}
