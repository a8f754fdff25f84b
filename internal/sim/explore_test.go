// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"testing"
	"time"
)

var exploreMost = flag.Int("states", 30000, "how many states TestExplore visits of each model at most")

// TestExplore visits every state of small worlds, whatever the order in which
// the controller, the kubelets, the hook operator and the user act and wherever
// the controller crashes.
func TestExplore(t *testing.T) {
	for _, model := range models() {
		t.Run(model.Name, func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			e := Explore(model, *exploreMost)
			t.Logf("%v in %v", e, time.Since(begun).Round(time.Millisecond))
			if e.Violation != nil {
				t.Fail()
			}
		})
	}
}
