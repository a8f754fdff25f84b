// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/stage"
)

const (
	namespace = "demo"
	// port is where the web program listens.
	port = "8080"
)

// phase is a phase of a workload's life.
type phase string

const (
	phaseCreate   phase = "create"
	phaseInPlace  phase = "in-place update"
	phaseRecreate phase = "recreate update"
	phaseOut      phase = "scale out"
	phaseIn       phase = "scale in"
	phaseMind     phase = "changed mind"
	phaseDrain    phase = "node drain"
	phaseDelete   phase = "delete"
)

// phases returns all phases, in their order.
func phases() []phase {
	return []phase{phaseCreate, phaseInPlace, phaseRecreate, phaseOut, phaseIn, phaseMind, phaseDrain, phaseDelete}
}

// phases returns the phases in which a workload has a step.
func (o Options) phases() []phase {
	return slices.DeleteFunc(phases(), func(name phase) bool {
		return !slices.ContainsFunc(o.stories(true), func(s story) bool { return s.Steps[name].About != "" })
	})
}

// step is the step of one workload in a phase.
type step struct {
	// About describes it to people.
	About string
	// Change is a YAML document that changes the workload; empty to change the replicas
	// through the scale subresource instead.
	Change string
	// Pods is the number of Pods at the end.
	Pods int
}

// story is one workload's life.
type story struct {
	// Name is the name of the workload, the Registration and the service.
	Name string
	// Deployment marks a Deployment, which the guard protects. The others are CloneSets.
	Deployment bool
	// RegistersItself marks a workload whose containers register themselves in the demo's registry.
	RegistersItself bool
	// About describes what it demonstrates, Without what it does in the run without hooks and
	// guard. If that is empty, it is not in that run.
	About, Without string
	// JoinsOnly marks a CloneSet whose YAML has no hook before deletion: losses from
	// leaving Pods do not count against the hooks.
	JoinsOnly bool
	// File is its manifest, without the extension.
	File string
	// Steps are its steps by phase; a phase without one leaves it alone.
	Steps map[phase]step
}

//go:embed stories.yaml
var storiesText []byte

// stories returns the workloads of a run.
func (o Options) stories(hooks bool) (all []story) {
	if err := yaml.UnmarshalStrict(storiesText, &all); err != nil {
		panic(err) // They are misspelt.
	}
	all = slices.DeleteFunc(all, func(s story) bool {
		// While Usher is dead, nothing guards the Pods of a Deployment.
		return o.KillUsher && s.Deployment || !hooks && s.Without == ""
	})
	for i := range all {
		if !hooks {
			all[i].About, all[i].JoinsOnly = all[i].Without, false
		}
	}
	return all
}

// typed names the workload.
func (s story) typed() client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: s.Name}
	if s.Deployment {
		return &appsv1.Deployment{ObjectMeta: meta}
	}
	return &appsv1alpha1.CloneSet{ObjectMeta: meta}
}

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

// disturb causes the faults that the options ask for during a phase.
func (r *run) disturb(ctx context.Context, name phase, acting []*actor) error {
	if r.stops(name) {
		if err := r.stopRegistry(ctx, acting[0].Name); err != nil {
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

// stopRegistry stops the registry while a Pod of the set drains, and checks that no Pod is updated or
// deleted while its registration is unknown.
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

// watchOutage waits until the outage is over, and records the waits during it.
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

// changeMind scales a workload to one Pod and, as soon as one of the others drains, back. Without the
// guard, Pods of a Deployment do not drain: they terminate at once.
func (r *run) changeMind(ctx context.Context, a *actor, pods int) (err error) {
	if _, err := stage.Scale(ctx, r.Kube, a.typed(), 1); err != nil {
		return err
	}
	leaves := func() bool { return r.board.leaving(a.Name) }
	if err := r.board.await(ctx, r.options.pace.bound, "a Pod of "+a.Name+" to leave", leaves); err != nil {
		return err
	}
	r.board.say("   %s is to have %d Pods again", a.Name, pods)
	a.generation, err = stage.Scale(ctx, r.Kube, a.typed(), pods)
	return err
}

// drainNode does for a workload what "kubectl drain" does for a node: it cordons the node with most of
// its Pods and evicts those Pods. The API server asks to wait as long as a Pod has to drain, and
// client-go does.
func (r *run) drainNode(ctx context.Context, a *actor) error {
	node, pods := r.board.busiestNode(a.Name)
	if err := stage.Cordon(ctx, r.Kube, node, true); err != nil {
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
	return errors.Join(err, stage.Cordon(ctx, r.Kube, node, false))
}

// busiestNode returns the node with most Pods of a workload, and those Pods.
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
