// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/model"
)

// TestPodThatNoWatchShows: a Pod that is created and removed while the watch is
// interrupted produces no event; its absence is noticed all the same.
func TestPodThatNoWatchShows(t *testing.T) {
	s := New(steady(), Demo(1).Build())
	watch := s.processes[0].caches[model.Pods]
	watch.stopped = true
	s.World.runUntil(epoch.Add(time.Second))
	pods := s.Pods()
	if len(pods) != 1 {
		t.Fatalf("%d Pods", len(pods))
	}
	if err := s.Server.Delete("user", model.Pods, client.ObjectKeyFromObject(pods[0]), model.Deletion{Now: true}); err != nil {
		t.Fatal(err)
	}
	watch.stopped = false
	watch.Relist()
	if v := s.Settle(); v != nil {
		t.Errorf("%s%v", s.World.Story(), v)
	}
}
