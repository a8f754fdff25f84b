// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/traffic"
)

// clocked is a board whose time and log a test controls.
type clocked struct {
	*board
	at    time.Time
	lines []string
}

func newClocked() *clocked {
	c := &clocked{at: time.Unix(1_000, 0)}
	c.board = newBoard(func() time.Time { return c.at }, func(lines ...string) { c.lines = append(c.lines, lines...) })
	return c
}

// joins and leaves are news from the registry about the address of every aPod.
func (c *clocked) joins() {
	c.registryChanged(traffic.Change{Entry: traffic.Entry{Key: "a", Addr: addrA}, At: c.at, Joined: true})
}

func (c *clocked) leaves() {
	c.registryChanged(traffic.Change{Entry: traffic.Entry{Key: "a", Addr: addrA}, At: c.at})
}

// aSet is CloneSet web with one Pod, updated and available.
func aSet(generation, observed int64) *appsv1alpha1.CloneSet {
	return &appsv1alpha1.CloneSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: generation},
		Status: appsv1alpha1.CloneSetStatus{
			ObservedGeneration: observed, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1,
		},
	}
}

const addrA = "127.9.0.3:8080"

func TestBoardLogsEachPodsLife(t *testing.T) {
	b := newClocked()
	b.podIs(aPod("web-a", in(appsv1alpha1.StatePreparingNormal)))
	b.joins()
	b.at = b.at.Add(1500 * time.Millisecond)
	b.podIs(aPod("web-a"))
	b.podIs(aPod("web-a")) // nothing new
	b.leaves()
	b.podIs(aPod("web-a", deletedPod))
	b.podGone(aPod("web-a", deletedPod))
	want := []string{
		"   0.0s  demo/web-a                  is created in PreparingNormal; has the address 127.9.0.3:8080; is ready; runs v1; has restarted its container (restarts: 2)",
		"   0.0s  demo/web-a                  joined etcd",
		"   1.5s  demo/web-a                  PreparingNormal → Normal  (in etcd for 1.5s)",
		"   1.5s  demo/web-a                  left etcd",
		"   1.5s  demo/web-a                  is deleted  (left etcd 0.0s ago)",
		"   1.5s  demo/web-a                  is gone  (left etcd 0.0s ago)",
	}
	if !slices.Equal(b.lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(b.lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestLongWaitsAreToldOnce(t *testing.T) {
	b := newClocked()
	b.podIs(aPod("web-a"))
	b.lines = nil
	for range 100 { // ten seconds
		b.tellLongWaits()
		b.at = b.at.Add(100 * time.Millisecond)
	}
	want := []string{"   3.0s  demo/web-a                  has waited 3.0s for its etcd entry"}
	if !slices.Equal(b.lines, want) {
		t.Errorf("got %q, want %q", b.lines, want)
	}
}

func TestSettledAt(t *testing.T) {
	for _, c := range []struct {
		name  string
		setUp func(*clocked)
		want  bool
	}{
		{"done", func(b *clocked) { b.setIs(aSet(2, 2)); b.podIs(aPod("web-a")); b.joins() }, true},
		{"no set", func(b *clocked) { b.podIs(aPod("web-a")); b.joins() }, false},
		{"not observed", func(b *clocked) { b.setIs(aSet(2, 1)); b.podIs(aPod("web-a")); b.joins() }, false},
		{"not registered", func(b *clocked) { b.setIs(aSet(2, 2)); b.podIs(aPod("web-a")) }, false},
		{"a Pod too many", func(b *clocked) {
			b.setIs(aSet(2, 2))
			b.podIs(aPod("web-a"))
			b.podIs(aPod("web-b"))
			b.joins()
		}, false},
		{"not available", func(b *clocked) {
			set := aSet(2, 2)
			set.Status.AvailableReplicas = 0
			b.setIs(set)
			b.podIs(aPod("web-a"))
			b.joins()
		}, false},
		{"gone", func(b *clocked) {
			b.setIs(aSet(2, 2))
			b.podIs(aPod("web-a"))
			b.joins()
			b.setGone(aSet(2, 2))
		}, false},
	} {
		b := newClocked()
		c.setUp(b)
		if got := b.settledAt("web", 1, 2); got != c.want {
			t.Errorf("%s: settledAt = %t, want %t", c.name, got, c.want)
		}
	}
}

func TestAwaitWakesWithTheNews(t *testing.T) {
	b := newClocked()
	done := make(chan error, 1)
	go func() {
		done <- b.await(context.Background(), time.Minute, "a Pod", func() bool { return len(b.pods) > 0 })
	}()
	b.podIs(aPod("web-a"))
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the news did not wake the wait")
	}
}

func TestAwaitEndsAtItsBoundAndWithItsContext(t *testing.T) {
	b := newClocked()
	never := func() bool { return false }
	err := b.await(context.Background(), time.Millisecond, "CloneSet web to have 3 Pods", never)
	var late *WaitError
	if !errors.As(err, &late) || late.What != "CloneSet web to have 3 Pods" || late.Bound != time.Millisecond {
		t.Errorf("at the bound: %v", err)
	}
	why := errors.New("usher ended")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	if err := b.await(ctx, time.Minute, "anything", never); !errors.Is(err, why) {
		t.Errorf("with its context: %v, want the cause", err)
	}
}

func TestWaitErrorTellsTheWholeStory(t *testing.T) {
	err := &WaitError{
		What: "CloneSet web to have 3 Pods", Bound: time.Minute, State: []string{"web-a PreparingUpdate"},
		Waiting: []string{"Registration web: Registry discovery: connection refused"}, Log: []string{"last words"}, LogFile: "/tmp/usher.log",
	}
	want := `waited 1m0s for: CloneSet web to have 3 Pods

The last state:
    web-a PreparingUpdate

What the objects say:
    Registration web: Registry discovery: connection refused

The end of Usher's log (/tmp/usher.log):
    last words`
	if got := err.Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestWaitingForQuotesTheObjects(t *testing.T) {
	b := newClocked()
	set := aSet(1, 1)
	set.Status.Conditions = []appsv1alpha1.CloneSetCondition{
		{Type: appsv1alpha1.ConditionBlocked, Status: corev1.ConditionTrue, Message: "Pod web-a waits"},
		{Type: appsv1alpha1.ConditionProgressing, Status: corev1.ConditionTrue, Message: "no news"},
		{Type: appsv1alpha1.ConditionFailedScale, Status: corev1.ConditionFalse, Message: "over"},
	}
	b.setIs(set)
	b.registrationIs(&usherv1alpha1.Registration{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Status: usherv1alpha1.RegistrationStatus{Conditions: []metav1.Condition{
			{Type: usherv1alpha1.ConditionWaiting, Status: metav1.ConditionTrue, Message: "web-a: Registry discovery is down"},
			{Type: usherv1alpha1.ConditionReady, Status: metav1.ConditionFalse, Message: "Registry discovery is down"},
		}},
	})
	want := []string{
		"CloneSet web: Blocked: Pod web-a waits",
		"Registration web is not ready: Registry discovery is down",
		"Registration web: web-a: Registry discovery is down",
	}
	if got := b.waitingFor(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFingerprintChangesWithWhatMustNotHappen(t *testing.T) {
	print := func(pod *corev1.Pod) string {
		b := newClocked()
		b.podIs(pod)
		return strings.Join(b.fingerprint(), "\n")
	}
	still := print(aPod("web-a"))
	for name, change := range map[string]func(*corev1.Pod){
		"a new image":  func(p *corev1.Pod) { p.Spec.Containers[0].Image = imageV2 },
		"a restart":    func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount++ },
		"a deletion":   deletedPod,
		"another Pod":  func(p *corev1.Pod) { p.UID = "other" },
		"another name": func(p *corev1.Pod) { p.Name = "web-b" },
	} {
		if print(aPod("web-a", change)) == still {
			t.Errorf("%s leaves the fingerprint as it is", name)
		}
	}
	if print(aPod("web-a", in(appsv1alpha1.StatePreparingUpdate), unready)) != still {
		t.Error("a drain changes the fingerprint")
	}
}

// The latest news of a Pod at an address decides who left.
func TestAnAddressThatIsUsedAgainHasNotLeft(t *testing.T) {
	b := newClocked()
	b.podIs(aPod("web-a", deletedPod))
	if _, left := b.leftAt(addrA); !left {
		t.Error("the Pod of the address is being deleted, but it has not left")
	}
	b.joins()
	if _, left := b.leftAt(addrA); left {
		t.Error("the address has a new Pod, but it has left")
	}
}
