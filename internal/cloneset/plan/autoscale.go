// SPDX-License-Identifier: Apache-2.0

package plan

import apps "github.com/usher-dev/usher/api/apps/v1alpha1"

// idling are the states of Pods that take no new requests, in the order in which they are left out: those
// that go, then those on their way out of service, then those on their way into it.
var idling = []apps.LifecycleState{
	apps.StatePreparingDelete, apps.StateUpdating, apps.StatePreparingUpdate, apps.StateUpdated, apps.StatePreparingNormal,
}

// uncounted returns the states whose Pods an autoscaler is not to count, of so many Pods above replicas.
//
// An autoscaler divides the load of the Pods that it counts by their number, and knows a tolerance. With
// more Pods than replicas it takes that for the wanted number, and scales up in each round. With fewer,
// the tolerance is of no use. So whole states are left out as long as replicas remain.
func uncounted(pods map[apps.LifecycleState]int, above int) (states []apps.LifecycleState) {
	for _, state := range idling {
		if n := pods[state]; n > 0 && n <= above {
			states = append(states, state)
			above -= n
		}
	}
	return states
}
