// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/stage"
)

const (
	// deadTime is how long Usher stays dead.
	deadTime = time.Second
	// longestAim is the latest time after the start of an operation at which Usher is
	// killed.
	longestAim = time.Second
)

// stops reports whether the registry is stopped in a phase.
func (r *run) stops(name phase) bool {
	return r.options.StopRegistry && r.hooks && name == phaseInPlace
}

// disturb does what the options ask for during a phase.
func (r *run) disturb(ctx context.Context, name phase, acting []*actor) error {
	if r.stops(name) {
		if err := r.stopRegistry(ctx, acting[0].name); err != nil {
			return err
		}
	}
	if r.options.KillUsher && r.hooks {
		return r.killUsher(ctx)
	}
	return nil
}

// killUsher kills Usher once an operation is in progress, and restarts it.
func (r *run) killUsher(ctx context.Context) error {
	err := r.board.await(ctx, r.options.pace.bound, "a Pod to be under way", func() bool { return r.board.underWay("") })
	if err != nil {
		return err
	}
	if err := stage.Pause(ctx, rand.N(longestAim)); err != nil {
		return err
	}
	if err := r.KillUsher(); err != nil {
		return err
	}
	r.board.say("✗  Usher is killed (SIGKILL)")
	if err := stage.Pause(ctx, deadTime); err != nil {
		return err
	}
	if err := r.StartUsher(r.usherArgs...); err != nil {
		return err
	}
	r.board.say("✓  Usher is started again")
	return nil
}

// stopRegistry stops the registry while a Pod of the set drains, and checks that no Pod
// is updated or deleted while nobody can know its registration.
func (r *run) stopRegistry(ctx context.Context, set string) error {
	draining := func() bool { return r.board.draining(set) }
	if err := r.board.await(ctx, r.options.pace.bound, "a Pod of "+set+" to drain", draining); err != nil {
		return err
	}
	// A graceful stop would take as long as the whole drain, because its clients watch.
	if err := r.registry.Kill(); err != nil {
		return fmt.Errorf("stop the registry: %w", err)
	}
	before := r.board.fingerprint()
	r.board.say("✗  the registry is stopped for %s: no Pod may be updated or deleted now", seconds(r.options.pace.outage))
	if err := r.watchOutage(ctx); err != nil {
		return err
	}
	after := r.board.fingerprint()
	if err := r.registry.Restart(ctx); err != nil {
		return fmt.Errorf("start the registry again: %w", err)
	}
	if !slices.Equal(before, after) {
		return fmt.Errorf("pods have changed while the registry was stopped:\n  before: %s\n  after:  %s",
			strings.Join(before, "\n          "), strings.Join(after, "\n          "))
	}
	r.board.say("✓  the registry is back; meanwhile no Pod was updated or deleted")
	return nil
}

// watchOutage waits out the outage and reports what is waited for.
func (r *run) watchOutage(ctx context.Context) error {
	end := time.Now().Add(r.options.pace.outage)
	for time.Now().Before(end) {
		if err := stage.Pause(ctx, min(time.Second, time.Until(end))); err != nil {
			return err
		}
		for _, line := range r.board.waitingFor() {
			if !slices.Contains(r.waited, line) {
				r.waited = append(r.waited, line)
				r.board.say("   %s", line)
			}
		}
	}
	return nil
}

// drainNode does to the Pods of a workload what "kubectl drain" does to all Pods of a node:
// it marks the node that has most of them unschedulable and evicts those that are there. The
// API server asks to wait as long as a Pod has to drain, and client-go does.
func (r *run) drainNode(ctx context.Context, a *actor) error {
	node, pods := r.board.busiestNode(a.name)
	if err := r.cordon(ctx, node, true); err != nil {
		return err
	}
	r.board.say("   %s is drained of %d Pods", node, len(pods))
	evictions, evicting := errgroup.WithContext(ctx)
	for _, name := range pods {
		evictions.Go(func() error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			return client.IgnoreNotFound(r.Kube.SubResource("eviction").Create(evicting, pod, &policyv1.Eviction{}))
		})
	}
	if err := evictions.Wait(); err != nil {
		return fmt.Errorf("evict the Pods of %s: %w", node, err)
	}
	err := r.board.await(ctx, r.options.pace.bound, "the Pods of "+node+" to be gone", func() bool {
		return !slices.ContainsFunc(pods, func(name string) bool { return r.board.pods[name] != nil })
	})
	return errors.Join(err, r.cordon(ctx, node, false))
}

// busiestNode is the node with most Pods of a workload, and those.
func (b *board) busiestNode(workload string) (node string, pods []string) {
	at := map[string][]string{}
	b.Read(func() {
		for _, p := range b.podsOf(workload) {
			at[p.Node] = append(at[p.Node], p.Name)
		}
	})
	for _, name := range slices.Sorted(maps.Keys(at)) {
		if len(at[name]) > len(pods) {
			node, pods = name, at[name]
		}
	}
	return node, pods
}

func (r *run) cordon(ctx context.Context, node string, unschedulable bool) error {
	patch := fmt.Appendf(nil, `{"spec": {"unschedulable": %t}}`, unschedulable)
	err := r.Kube.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, patch))
	if err != nil {
		return fmt.Errorf("mark node %s (un)schedulable: %w", node, err)
	}
	return nil
}
