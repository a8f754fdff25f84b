// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/stage"
)

const (
	// alive is how many replicas of Usher there are. While one is replaced there is one more, as the chart has it.
	alive = 2
	// preStop is for how long a replica that ends still answers the guard's callers, as the chart has it.
	preStop = 3 * time.Second
	// between is for how long a version is left alone at most.
	between = 15 * time.Second
)

// probed gives a workload a probe. Without one a Pod counts as ready before it listens, and on busy processors,
// as those of a machine that compiles, callers come before that.
const probed = `spec: {template: {spec: {containers: [{name: main,
  readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1, timeoutSeconds: 10}}]}}}`

// version is one of Usher: its checkout, and its program.
type version struct{ name, root, program string }

// leg is one upgrade, or one way back.
type leg struct {
	to version
	// crdsFirst means that the CRDs change before the rest, and not after it.
	crdsFirst bool
}

func (l leg) String() string {
	if l.crdsFirst {
		return "to " + l.to.name + ", CRDs first"
	}
	return "to " + l.to.name + ", CRDs last"
}

// upgrades are those of a run.
type upgrades struct {
	before, now version
	guardPort   int
	done, all   atomic.Int64
	// onTheirWay is how many Pods were on their way out while replicas changed.
	onTheirWay int
	// start keeps a replica running until it is ended, or the run is over.
	start  func(*replica)
	ends   map[*replica]context.CancelFunc
	keeper *process.Process
}

func (u *upgrades) progress() float64 {
	return float64(u.done.Load()) / float64(max(u.all.Load(), 1))
}

// slots is how many replicas there may be, each with ports of its own.
func (s *soak) slots() int {
	if s.options.Before == "" {
		return alive
	}
	return 2 * alive
}

// extractBefore builds the version before, if there is one. Everything is installed from it at first.
func (s *soak) extractBefore(ctx context.Context, st *stage.Stage) error {
	if s.options.Before == "" {
		return nil
	}
	u := &s.upgrades
	u.now = version{"this checkout", st.Root, st.Path("bin", "usher")}
	u.before = version{s.options.Before, st.Path("before"), st.Path("bin", "usher-before")}
	if err := checkout.Extract(ctx, st.Root, u.before.name, u.before.root); err != nil {
		return err
	}
	st.Root = u.before.root
	program := checkout.Program{
		Name: "build usher " + u.before.name, Module: u.before.root, Pkg: "./cmd/usher", Out: u.before.program,
	}
	return program.Compile(ctx, st.Progress)
}

// startFirst starts the first replicas.
func (s *soak) startFirst(ctx context.Context, processes *errgroup.Group) {
	u := &s.upgrades
	u.ends = map[*replica]context.CancelFunc{}
	u.start = func(r *replica) {
		ctx, end := context.WithCancel(ctx)
		u.ends[r] = end
		r.leaves.Store(false)
		r.runs.Store(true)
		processes.Go(func() error { return r.keep(ctx) })
	}
	for _, r := range s.replicas[:alive] {
		if s.options.Before != "" {
			r.spec.Path = u.before.program
		}
		u.start(r)
	}
}

// disturbances are what happens to Usher and its surroundings, all at the same time.
func (s *soak) disturbances() []func(context.Context) error {
	if s.options.Before != "" {
		return []func(context.Context) error{s.upgradeAgain}
	}
	return []func(context.Context) error{
		func(ctx context.Context) error { return s.disturb(ctx, &deck{random: s.random(0), kinds: s.kinds()}) },
		func(ctx context.Context) error { return s.disturb(ctx, &deck{random: s.random(9), kinds: nodeFaults}) },
	}
}

// upgradeAgain upgrades Usher and takes it back, in both orders, Rounds times.
func (s *soak) upgradeAgain(ctx context.Context) error {
	u := &s.upgrades
	legs := []leg{{u.now, true}, {u.before, false}, {u.now, false}, {u.before, true}}
	u.all.Store(int64(s.options.Rounds * len(legs)))
	random := s.random(0)
	for range s.options.Rounds {
		for _, l := range legs {
			if err := stage.Pause(ctx, within(random, between)); err != nil {
				return err
			}
			if err := s.upgrade(ctx, l); err != nil {
				return fmt.Errorf("%s: %w", l, err)
			}
			u.done.Add(1)
		}
	}
	return nil
}

// upgrade changes the version in the middle of changes.
func (s *soak) upgrade(ctx context.Context, l leg) error {
	steps := []func(context.Context, version) error{s.changeCRDs, s.changeUsher}
	if !l.crdsFirst {
		steps[0], steps[1] = steps[1], steps[0]
	}
	s.say("upgrade %s", l)
	began := time.Now()
	for _, step := range steps {
		if err := step(ctx, l.to); err != nil {
			return err
		}
	}
	s.count(s.faults, l.String())
	s.say("upgrade %s, done in %s", l, stage.Seconds(time.Since(began)))
	return nil
}

func (s *soak) changeCRDs(_ context.Context, to version) error {
	return checkout.InstallCRDs(s.Cluster.RESTConfig(), to.root)
}

// changeUsher changes all but the CRDs: the rights and the guard's path at once, and then the processes one by one.
func (s *soak) changeUsher(ctx context.Context, to version) error {
	if err := checkout.Grant(ctx, s.Kube, to.root, stage.UsherUser); err != nil {
		return err
	}
	if _, err := checkout.InstallGuard(ctx, s.Kube, to.root, stage.UsherUser, s.upgrades.guardPort); err != nil {
		return err
	}
	if err := s.startKeeper(ctx, to); err != nil {
		return err
	}
	for _, old := range s.running() {
		if err := s.replace(ctx, old, to); err != nil {
			return err
		}
	}
	_, err := s.leader(ctx)
	return err
}

// startKeeper replaces the process that makes the guard's certificate.
func (s *soak) startKeeper(ctx context.Context, of version) (err error) {
	u := &s.upgrades
	if u.keeper != nil {
		if err := u.keeper.Stop(ctx, endGrace); err != nil {
			return err
		}
	}
	kubeconfig, err := s.Cluster.UserKubeconfig(checkout.CertificateUser)
	if err != nil {
		return err
	}
	first := u.keeper == nil
	u.keeper, err = process.Start(process.Spec{
		Name: "certificate", Path: of.program, Log: s.Path("logs", "certificate.log"),
		Args: append([]string{"--kubeconfig", kubeconfig}, checkout.CertificateArgs()...), Failed: s.Fail,
	})
	if first && err == nil {
		s.AtEnd(func(ctx context.Context) error { return u.keeper.Stop(ctx, endGrace) })
	}
	return err
}

// replace starts a replica of a version, and ends another one when that is ready.
func (s *soak) replace(ctx context.Context, old *replica, by version) error {
	next := list.Only(s.replicas, func(r *replica) bool { return !r.runs.Load() })[0]
	next.spec.Path = by.program
	s.upgrades.start(next)
	err := stage.Try(ctx, back, "a new replica of Usher to be ready", next.ready)
	if err != nil {
		return err
	}
	if err := s.awaitChange(ctx); err != nil {
		return err
	}
	old.leaves.Store(true)
	if err := stage.Pause(ctx, preStop); err != nil {
		return err
	}
	s.upgrades.ends[old]()
	select {
	case <-old.process.Load().Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	old.runs.Store(false)
	return nil
}

// awaitChange waits until Pods are on their way out, and counts them.
func (s *soak) awaitChange(ctx context.Context) error {
	return stage.Try(ctx, bound, "a change of a workload", func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		leaving := list.Only(pods, isLeaving)
		if err == nil && len(leaving) == 0 {
			err = errors.New("no Pod is on its way out")
		}
		if err == nil {
			s.upgrades.onTheirWay += len(leaving)
		}
		return err
	})
}

// isLeaving reports whether a Pod is being taken out of service, or drained.
func isLeaving(pod corev1.Pod) bool {
	state := appsv1alpha1.LifecycleState(pod.Labels[appsv1alpha1.LabelLifecycleState])
	return pod.DeletionTimestamp != nil || state == appsv1alpha1.StatePreparingUpdate || state == appsv1alpha1.StatePreparingDelete
}
