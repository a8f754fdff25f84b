// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"sync"
	"time"

	"github.com/usher-dev/usher/test/cluster/node"
)

// nodes simulate containers with the times of the present step.
type nodes struct {
	node.Runtime

	mu            sync.Mutex
	restart, pull time.Duration
	pulled        map[[2]string]time.Time // when, by node and image
}

// begin sets how long containers take to restart, and images to be pulled.
func (n *nodes) begin(restart, pull time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.restart, n.pull = restart, pull
}

// Traits implements node.Runtime.
func (n *nodes) Traits() node.Traits {
	traits := n.Runtime.Traits()
	n.mu.Lock()
	defer n.mu.Unlock()
	traits.UpdateDelay = n.restart
	return traits
}

// Pull implements node.Runtime. Nodes have Usher's own image, which they pull once and not with each update.
func (n *nodes) Pull(name, image string) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	key, now := [2]string{name, image}, time.Now()
	if n.pulled[key].IsZero() && image != usherImage {
		n.pulled[key] = now.Add(n.pull)
	}
	if until := n.pulled[key]; until.After(now) {
		return "", &node.Pulling{Until: until}
	}
	return n.Runtime.Pull(name, image)
}
