// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

// populate creates ready Pods that wait to be registered.
func (s *simulation) populate(pods int) {
	s.Helper()
	for n := range pods {
		pod := newPod(fmt.Sprintf("nginx-%03d", n), appsv1alpha1.StateNormal, corev1.ConditionTrue)
		pod.Status.PodIP = fmt.Sprintf("10.0.%d.%d", n/250, n%250+1)
		status := pod.Status
		if err := s.live.Create(s.Context(), pod); err != nil {
			s.Fatal(err)
		}
		base := pod.DeepCopy()
		pod.Status = status
		if err := s.live.Status().Patch(s.Context(), pod, client.MergeFrom(base)); err != nil {
			s.Fatal(err)
		}
	}
	s.current = nil
}

// passes runs passes with an up-to-date cache.
func (s *simulation) passes(n int) {
	s.Helper()
	for range n {
		s.refresh()
		s.pass()
	}
}

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
	s.drift(&pod)
	s.passes(1)
	if s.listedIn("discovery") != 4 {
		t.Fatal("the loss was noticed before the repair interval: the test proves nothing")
	}
	s.clock.SetTime(s.clock.Now().Add(defaultRepair))
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
	if len(s.operator.back) != 1 {
		t.Errorf("the probe told %d times that the registry is back, want once", len(s.operator.back))
	}
	s.passes(1)
	if s.listedIn("backup") != 3 {
		t.Errorf("the registry that is back lists %d Pods, want 3", s.listedIn("backup"))
	}
}

func TestAHangingRegistryCostsOneTimeout(t *testing.T) {
	s := newSimulation(t)
	var object usherv1alpha1.Registry
	if err := s.live.Get(t.Context(), types.NamespacedName{Name: "backup"}, &object); err != nil {
		t.Fatal(err)
	}
	object.Spec.Timeout = &metav1.Duration{Duration: 20 * time.Millisecond}
	if err := s.live.Update(t.Context(), &object); err != nil {
		t.Fatal(err)
	}
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

func TestBackOff(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(epoch)
	p := newPool(nil, nil, clock)
	broken := errors.New("broken")
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		if have := p.failed("discovery", broken, time.Second); have != want*time.Second {
			t.Errorf("back-off %d is %s, want %ds", i, have, want)
		}
	}
	until, err := p.down("discovery")
	if !errors.Is(err, broken) || !until.Equal(epoch.Add(31*time.Second)) {
		t.Errorf("it is down until %s with %v", until, err)
	}
	if !p.recovered("discovery") || p.recovered("discovery") {
		t.Error("an outage ends once")
	}
	if _, err := p.down("discovery"); err != nil {
		t.Errorf("after that it is down with %v", err)
	}
	if have := p.failed("discovery", broken, 0); have != maxBackOff {
		t.Errorf("it failed again at once; the back-off is %s, want %s", have, maxBackOff)
	}
	clock.SetTime(epoch.Add(time.Hour))
	if have := p.failed("discovery", broken, 0); have != minBackOff {
		t.Errorf("it failed again after an hour; the back-off is %s, want %s", have, minBackOff)
	}
}

// TestSecretsAreFollowed makes a new connector when the credentials change.
func TestSecretsAreFollowed(t *testing.T) {
	s := newSimulation(t)
	object := &usherv1alpha1.Registry{
		ObjectMeta: metav1.ObjectMeta{Name: "secured", UID: "secured"},
		Spec: usherv1alpha1.RegistrySpec{Webhook: &usherv1alpha1.WebhookRegistry{
			CredentialsSecret: &usherv1alpha1.SecretReference{Namespace: namespace, Name: "rotated"},
		}},
	}
	var seen []string
	p := newPool(s.live, func(_ *usherv1alpha1.Registry, _ string, secret map[string][]byte) (registry.Connector, error) {
		seen = append(seen, string(secret["password"]))
		return memory.New(), nil
	}, s.clock)
	if _, err := p.get(t.Context(), object, "", true); !errors.Is(err, registry.ErrPermanent) {
		t.Errorf("without the Secret: %v, want a permanent error", err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "rotated"},
		Data: map[string][]byte{"password": []byte("old")}}
	if err := s.live.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := p.get(t.Context(), object, "", true); err != nil {
			t.Fatal(err)
		}
	}
	secret.Data["password"] = []byte("new")
	if err := s.live.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	for _, fresh := range []bool{false, true} {
		if _, err := p.get(t.Context(), object, "", fresh); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 2 || seen[0] != "old" || seen[1] != "new" {
		t.Errorf("connectors were made with %v, want one with each password", seen)
	}
}

// A Pod whose patch met a conflict after its entry was removed still says that
// it is registered: the next pass must not believe it.
func TestAPodThatWasNotToldIsListedAgain(t *testing.T) {
	s := newSimulation(t)
	s.populate(1)
	s.passes(2)
	pod := s.pods()[0]
	s.kubelet(&pod, false)
	s.refresh()
	s.change(&pod, "is changed by somebody", func(pod *corev1.Pod) { pod.Annotations = map[string]string{"somebody": "else"} })
	s.pass() // the cache has not seen that: the patch of the Pod meets a conflict
	if s.listedIn("discovery") != 0 {
		t.Fatal("the Pod that is not ready is still listed")
	}
	pod = s.pods()[0]
	s.kubelet(&pod, true)
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
	s.drift(&pod)
	s.clock.SetTime(s.clock.Now().Add(defaultRepair))
	s.refresh()
	s.kubelet(&pod, false)
	between := s.pods()
	s.kubelet(&pod, true)
	s.change(&pod, "is hooked again", func(pod *corev1.Pod) { pod.Labels[keyCreated] = "true" })
	s.pass()
	if pod = s.pods()[0]; pod.Labels[keyCreated] != "false" || s.listedIn("discovery") != 1 {
		t.Fatal("the pass did not register the Pod, and write to it: the test proves nothing")
	}
	s.cached.pods = between
	s.pass()
	if have := s.listedIn("discovery"); have != 1 {
		t.Errorf("discovery lists %d Pods, want 1: a cache that is older than an answer was believed", have)
	}
}
