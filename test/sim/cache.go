// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Lag is how long a watch takes to bring an event, drawn anew for each event.
type Lag struct {
	Least, Most time.Duration
	// Stall is the probability that the watch hangs for StallFor; it may bring
	// only the last state of each object when it comes back, as after a relist.
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
	// shown are the objects that the copy ever had.
	shown map[types.UID]bool
	// due is when the latest planned delivery happens: watches keep the order.
	due time.Time
	// heard is when the latest event reaches its handler.
	heard time.Time
	// stopped says that the process is gone.
	stopped bool
	// changed is told of what the copy has got, after it has.
	changed func(before, after client.Object)
}

// newCache lists the objects as they are now, and tells of each of them.
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

// start tells of what the first list brought.
func (c *cache) start() {
	for _, object := range sorted(c.objects) {
		c.changed(nil, object)
	}
}

// hear is told of a commit at the server, and plans its delivery.
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
	upTo := len(c.server.log[c.kind]) // the commit is in the log already
	c.world.after(at.Sub(c.world.now()), func() { c.deliver(upTo, relist) })
}

// deliver brings the copy forward, event by event, or in one jump to the
// present as a relist does.
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

// jump replaces the copy by the present state. What was removed and made again
// under the same name shows as a change from the one to the other.
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
