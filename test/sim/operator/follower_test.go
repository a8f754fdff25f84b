// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// inBalancer is the Registry whose entries the controller of a load balancer writes.
	inBalancer = "balancer"
	// balancerLag is how late that controller may be. What a drain waits covers it, and the EndpointSlice controller's.
	balancerLag = 2 * time.Second
	// checkTime is how long the load balancer checks a new target, and drainTime how long one drains.
	checkTime, drainTime = 3 * time.Second, 6 * time.Second
	// maxThrottle is how long the cloud's API may refuse calls that come too fast.
	maxThrottle = time.Minute
)

// balancer is a load balancer with its controller, which follows the Service's slice and does not look at readiness.
type balancer struct {
	targets map[types.UID]*balanced
	// seen are the Pods that the controller has seen in the slice, by address, and when.
	seen   map[types.UID]string
	seenAt time.Time
	// throttled is until when the API refuses calls.
	throttled time.Time
	// calls counts the calls that were answered; last is when the present process made one, and answered that it was.
	calls    int
	last     time.Time
	asker    *process
	answered bool
	// used and healthy are when a Pod was last a target that may get requests, and a healthy one.
	used, healthy map[types.UID]time.Time
}

// balanced is a target.
type balanced struct {
	address       string
	began, leaves time.Time
	fails         bool
}

func newBalancer() balancer {
	return balancer{targets: map[types.UID]*balanced{}, used: map[types.UID]time.Time{}, healthy: map[types.UID]time.Time{}}
}

// entry is a target as the registry lists it.
func (t *balanced) entry(now time.Time) registry.Entry {
	e := registry.Entry{ID: t.address, Address: t.address, Port: 80, NoMetadata: true}
	switch {
	case !t.leaves.IsZero():
		e.Version, e.Unsettled = "draining", "it drains"
	case t.fails:
		e.Version, e.Weight, e.Unsettled = "unhealthy", 1, "it fails"
	case now.Sub(t.began) < checkTime:
		e.Version, e.Weight, e.Unsettled = "initial", 1, "it is checked"
	default:
		e.Version, e.Weight = "healthy", 1
	}
	return e
}

// balance is a turn of the controller: it writes what it has seen a turn before, unless it has no time left.
func (s *simulation) balance() {
	if !s.features.follower {
		return
	}
	b := &s.balancer
	if b.seen == nil || s.clock.Now().Sub(b.seenAt) >= balancerLag {
		s.watchSlice()
	}
	seen := b.seen
	s.watchSlice()
	for _, uid := range slices.Sorted(maps.Keys(seen)) {
		if t := b.targets[uid]; t == nil || !t.leaves.IsZero() {
			b.targets[uid] = &balanced{address: seen[uid], began: s.clock.Now()}
			s.log("the load balancer gets %s", uid)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(b.targets)) {
		t := b.targets[uid]
		if _, there := seen[uid]; !there && t.leaves.IsZero() {
			t.leaves = s.clock.Now()
			s.log("the load balancer drains %s", uid)
		}
	}
}

// watchSlice notes the addresses of the slice. A Pod that ends is none of them.
func (s *simulation) watchSlice() {
	s.balancer.seenAt, s.balancer.seen = s.clock.Now(), map[types.UID]string{}
	for _, e := range s.endpointsOf() {
		s.balancer.seen[e.TargetRef.UID] = e.Addresses[0]
	}
}

// noteBalanced lets the load balancer go on in time, and notes which Pods it uses.
func (s *simulation) noteBalanced() {
	if !s.features.follower {
		return
	}
	b, now := &s.balancer, s.clock.Now()
	if now.Sub(b.seenAt) >= balancerLag {
		s.balance()
	}
	maps.DeleteFunc(b.targets, func(_ types.UID, t *balanced) bool { return !t.leaves.IsZero() && now.Sub(t.leaves) >= drainTime })
	for uid, t := range b.targets {
		b.used[uid] = now
		if t.entry(now).Version == "healthy" {
			b.healthy[uid] = now
		}
	}
}

// flap has a target fail its checks, or pass them again.
func (s *simulation) flap(pod *corev1.Pod) {
	if t := s.balancer.targets[pod.UID]; t != nil {
		t.fails = !t.fails
		s.log("the target %s fails: %t", pod.Name, t.fails)
	}
}

// throttle has the cloud's API refuse calls for a while.
func (s *simulation) throttle(*corev1.Pod) {
	s.balancer.throttled = s.clock.Now().Add(time.Duration(s.random.Int64N(int64(maxThrottle))))
	s.log("the cloud's API throttles until %s", s.balancer.throttled.Format("04:05"))
}

// calmDown ends the faults of the load balancer.
func (s *simulation) calmDown() {
	s.balancer.throttled = time.Time{}
	for _, t := range s.balancer.targets {
		t.fails = false
	}
}

// describes is the connector to the cloud's API.
type describes struct{ *process }

// List implements registry.Lister.
func (d describes) List(context.Context, string) ([]registry.Entry, error) {
	b, now := &d.balancer, d.clock.Now()
	if b.asker == d.process && b.answered && now.Sub(b.last) < plan.FollowEvery-d.slow {
		d.fail("the cloud's API is called %s after it was", now.Sub(b.last))
	}
	b.asker, b.last, b.answered = d.process, now, !now.Before(b.throttled)
	if !b.answered {
		return nil, registry.Transient(errors.New("rate exceeded"))
	}
	b.calls++
	entries := []registry.Entry{}
	for _, t := range b.targets {
		entries = append(entries, t.entry(now))
	}
	registry.Sort(entries)
	return d.defects.relisted(entries), nil
}

// Ping implements registry.Lister.
func (d describes) Ping(context.Context) error {
	if d.clock.Now().Before(d.balancer.throttled) {
		return registry.Transient(errors.New("rate exceeded"))
	}
	return nil
}

// Close implements registry.Lister.
func (d describes) Close() error { return nil }

// judgeBalancer checks that the load balancer does not use a Pod that Usher lets go.
func (s *simulation) judgeBalancer(what string, pod *corev1.Pod) {
	if !s.features.follower || !s.follows(pod) || s.guardian.proceeded[pod.UID] || drained(pod) && s.guardian.unfollowed[pod.UID] {
		return
	}
	last, ever := s.balancer.used[pod.UID]
	t := s.balancer.targets[pod.UID]
	switch {
	case t != nil:
		s.fail("%s while the load balancer has it as %s", what, t.entry(s.clock.Now()).Version)
	case ever && s.clock.Now().Sub(last) < propagation:
		s.fail("%s %s after the load balancer last had it", what, s.clock.Now().Sub(last))
	}
}

// judgeJoined checks that a hook which a Pod joins by is released only when the load balancer has the Pod.
func (s *simulation) judgeJoined(before, after *corev1.Pod) {
	if !s.features.follower || !s.follows(before) || after.UID != before.UID {
		return
	}
	for key, value := range map[string]string{keyCreated: "false", keyPreNormal: "true", keyInPlace: "true"} {
		if !turns(before, after, key, value) || key == keyInPlace && !s.waitsUpdated(before) {
			continue
		}
		if last := s.balancer.healthy[before.UID]; last.Before(s.began) && s.clock.Now().Sub(last) > s.slow && !s.balances(before.UID) {
			s.fail("%s of %s is answered, and the load balancer does not have it", key, before.Name)
		}
	}
}

// balances reports whether the load balancer has the Pod healthy.
func (s *simulation) balances(uid types.UID) bool {
	t := s.balancer.targets[uid]
	return t != nil && t.entry(s.clock.Now()).Version == "healthy"
}

// waitsUpdated reports whether a Pod that was updated in place is to wait for its registries.
func (s *simulation) waitsUpdated(pod *corev1.Pod) bool {
	return plan.StateOf(pod) == apps.StateUpdated && !s.overdue(pod)
}

// overdue reports whether the hook of an update in place may be answered at its deadline, which counts from the time that
// the Pod has in its annotation.
func (s *simulation) overdue(pod *corev1.Pod) bool {
	entered, err := time.Parse(time.RFC3339, pod.Annotations[apps.AnnotationLifecycleTimestamp])
	return s.features.proceed && err == nil && s.clock.Now().Sub(entered) >= deadline
}

// turns reports whether a label gets a value.
func turns(before, after *corev1.Pod, key, value string) bool {
	return after.Labels[key] == value && before.Labels[key] != value
}

// checkQuiet checks that nobody asks the cloud's API when nobody waits.
func (s *simulation) checkQuiet() {
	if !s.features.follower || s.broken != "" {
		return
	}
	before := s.balancer.calls
	for range 30 {
		s.refresh()
		s.process.left = unlimited
		s.pass()
		s.wait(3 * time.Second)
	}
	if after := s.balancer.calls; after > before {
		s.fail("the cloud's API is called %d times, and nobody waits", after-before)
	}
	for _, pod := range s.pods() {
		if t := s.balancer.targets[pod.UID]; t == nil || !t.leaves.IsZero() {
			s.fail("the load balancer does not have %s", pod.Name)
		}
	}
}

// drained reports whether Usher has said that the drain for a Pod's deletion is over.
func drained(pod *corev1.Pod) bool {
	request, err := usher.DeletionRequestOf(pod)
	return err == nil && request != nil && request.Drained != nil
}
