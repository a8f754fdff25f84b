// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

func (s *simulation) calls(name string, since memory.Calls) memory.Calls {
	now := s.stores[name].Calls()
	return memory.Calls{List: now.List - since.List, Apply: now.Apply - since.Apply, Ping: now.Ping - since.Ping}
}

func TestManyPodsCostOneBatch(t *testing.T) {
	s := newSimulation(t)
	s.populate(60)
	s.passes(1)
	if have, want := s.calls("discovery", memory.Calls{}), (memory.Calls{List: 2, Apply: 1}); have != want {
		t.Errorf("60 Pods cost %+v, want %+v", have, want)
	}
	for _, pod := range s.pods() {
		if pod.Labels[keyCreated] != "false" {
			t.Fatalf("%s still waits after one pass", pod.Name)
		}
	}
}

// TestNothingIsRegisteredUnheld meets a Registry that somebody else, such as
// the probe, has written to since the cache saw it.
func TestNothingIsRegisteredUnheld(t *testing.T) {
	s := newSimulation(t)
	s.populate(1)
	s.refresh()
	s.probe()
	s.pass()
	if have := s.listedIn("discovery"); have != 0 {
		t.Fatalf("%d entries were made from a cache that lags", have)
	}
	// Every write checks that entries are held.
	s.passes(2)
	if have := s.listedIn("discovery"); have != 1 {
		t.Errorf("discovery lists %d Pods, want 1", have)
	}
}

func TestSettledPodsCostNothing(t *testing.T) {
	s := newSimulation(t)
	s.populate(5)
	s.passes(2)
	before, writes := s.stores["discovery"].Calls(), len(s.trace)
	s.passes(5)
	if have := s.calls("discovery", before); have != (memory.Calls{}) {
		t.Errorf("five passes with nothing to do cost %+v", have)
	}
	if have := len(s.trace) - writes; have != 5 {
		t.Errorf("five passes with nothing to do wrote: %v", s.trace[writes:])
	}
}

func TestRepairs(t *testing.T) {
	s := newSimulation(t)
	s.populate(5)
	s.passes(2)
	pod := s.pods()[0]
	s.drift(pod)
	s.passes(1)
	if s.listedIn("discovery") != 4 {
		t.Fatal("the loss was noticed before the repair interval: the test proves nothing")
	}
	s.wait(repairInterval)
	s.passes(1)
	if have := s.listedIn("discovery"); have != 5 {
		t.Errorf("after a repair interval %d Pods are listed, want 5", have)
	}
}

// listedIn counts our entries.
func (s *simulation) listedIn(name string) int { return len(s.stores[name].Entries(service)) - 1 }

func TestADeadRegistryIsNotAskedAgainBeforeItsTime(t *testing.T) {
	s := newSimulation(t)
	s.stores["backup"].Break(memory.Down)
	s.populate(3)
	s.passes(1)
	before := s.stores["backup"].Calls()
	s.passes(10)
	if have := s.calls("backup", before); have != (memory.Calls{}) {
		t.Errorf("ten passes asked the dead registry: %+v", have)
	}
	if s.listedIn("discovery") != 3 {
		t.Errorf("the other registry lists %d Pods, want 3", s.listedIn("discovery"))
	}
	s.stores["backup"].Break(memory.None)
	s.probe()
	s.passes(1)
	if s.listedIn("backup") != 3 {
		t.Errorf("the registry that is back lists %d Pods, want 3", s.listedIn("backup"))
	}
}

func TestAHangingRegistryCostsOneTimeout(t *testing.T) {
	s := newSimulation(t)
	edit(s, "", "backup", func(r *usher.Registry) { r.Spec.Timeout = &metav1.Duration{Duration: 20 * time.Millisecond} })
	s.stores["backup"].Break(memory.Hang)
	s.populate(3)
	s.passes(3)
	if have := s.stores["backup"].Calls().List; have != 1 {
		t.Errorf("three passes waited %d times for the registry that hangs, want once", have)
	}
	if s.listedIn("discovery") != 3 {
		t.Errorf("the other registry lists %d Pods, want 3", s.listedIn("discovery"))
	}
}

// A Pod whose patch met a conflict after its entry was removed still says that
// it is registered: the next pass must not believe it.
func TestAPodThatWasNotToldIsListedAgain(t *testing.T) {
	s := newSimulation(t)
	s.populate(1)
	s.passes(2)
	pod := s.pods()[0]
	s.crash(pod)
	s.refresh()
	s.change(pod, "is changed by somebody", func(pod *corev1.Pod) { pod.Annotations = map[string]string{"somebody": "else"} })
	s.pass() // the cache has not seen that: the patch of the Pod meets a conflict
	if s.listedIn("discovery") != 0 {
		t.Fatal("the Pod that is not ready is still listed")
	}
	pod = s.pods()[0]
	s.kubelet(s.pod(pod.Name))
	s.passes(2)
	if s.listedIn("discovery") != 1 {
		t.Error("the Pod is ready again, and not listed")
	}
}

// TestAnOldCacheIsNotTakenForANewOne lets a pass see a Pod at the API server and
// write to it, and then shows it what was between that and the cache.
func TestAnOldCacheIsNotTakenForANewOne(t *testing.T) {
	s := newSimulation(t)
	s.populate(1)
	s.passes(2)
	pod := s.pods()[0]
	s.drift(pod)
	s.wait(repairInterval)
	s.refresh()
	s.crash(pod)
	between := s.server.Objects.Clone()
	s.kubelet(s.pod(pod.Name))
	s.change(pod, "is hooked again", func(pod *corev1.Pod) { pod.Labels[keyCreated] = "true" })
	s.pass()
	if pod = s.pods()[0]; pod.Labels[keyCreated] != "false" || s.listedIn("discovery") != 1 {
		t.Fatal("the pass did not register the Pod, and write to it: the test proves nothing")
	}
	s.cached = between
	s.pass()
	if have := s.listedIn("discovery"); have != 1 {
		t.Errorf("discovery lists %d Pods, want 1: a cache that is older than an answer was believed", have)
	}
}

// TestOutagesOutliveUsher restarts Usher after an outage that it has seen: the status
// keeps it. That the next process waits for callers because of it is what the mutant
// "forgets outages when it restarts" shows.
func TestOutagesOutliveUsher(t *testing.T) {
	s := newSimulation(t)
	s.populate(1)
	s.passes(2)
	s.breaks("discovery", memory.Down)
	s.wait(20 * time.Second)
	s.refresh()
	s.probe()
	s.breaks("discovery", memory.None)
	s.wait(5*time.Second + time.Millisecond)
	for range 2 {
		s.refresh()
		s.probe()
		s.restart()
		s.passes(1)
		o := s.registry("discovery").Status.LastOutage
		if o == nil || !o.From.Time.Equal(epoch) || o.To == nil || !o.To.Time.Equal(epoch.Add(26*time.Second)) { // in whole seconds
			t.Errorf("after a restart its status has %+v", o)
		}
	}
	if o := s.registry("backup").Status.LastOutage; o != nil {
		t.Errorf("backup was never away, and its status has %+v", o)
	}
}
