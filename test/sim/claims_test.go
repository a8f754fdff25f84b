// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestCrashBetweenAPodAndItsClaims ends the process after each single write of a
// scale-in. If the Pod shows that the controller wanted it deleted, the next process
// deletes its claims; if not, the Pods of the next scale-out take them over. Either way
// none is left over in the end.
func TestCrashBetweenAPodAndItsClaims(t *testing.T) {
	hook := &apps.Lifecycle{PreDelete: LabelHooks().PreDelete}
	for name, c := range map[string]scenario{
		"its state shows it": {set: func() *apps.CloneSet { return Demo(3).Claims("data", "log").Hooks(hook).Build() },
			steps: []step{{time.Minute, scaleTo(1)}}},
		"nothing shows it": {set: func() *apps.CloneSet { return Demo(3).Claims("data", "log").Build() },
			steps: []step{{time.Minute, scaleTo(1)}, {time.Minute, scaleTo(3)}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play := func(crashAt int) *Simulation {
				config := steady()
				config.Process.CrashAt, config.Restart, config.Nodes.Stop = crashAt, 50*time.Millisecond, 20*time.Second
				s, v := c.play(config)
				if v != nil {
					t.Fatalf("crash after write %d: %v\n%s", crashAt, v, s.World.Story())
				}
				return s
			}
			for n := range play(0).processes[0].writes + 1 {
				s := play(n)
				if pods, claims := len(s.Pods()), len(s.Claims()); claims != 2*pods {
					t.Fatalf("crash after write %d leaves %d claims of %d Pods\n%s", n, claims, pods, s.World.Story())
				}
			}
		})
	}
}
