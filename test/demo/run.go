// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/demo/manifests"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

const (
	// reportEvery is how often the log reports long waits and lost requests.
	reportEvery = time.Second
	// inboxSize is how many reports of callers can wait.
	inboxSize = 10_000
)

// registers has the containers of a workload register themselves in an etcd.
const registers = `spec: {template: {spec: {containers: [{name: main, env: [{name: ETCD, value: %q}]}]}}}`

// run is one run through all phases.
type run struct {
	*demonstration
	hooks  bool
	board  *board
	actors []*actor
	inbox  chan func() // reports of callers to the board, for which they do not wait
	waited []string    // the waits during the registry's outage
}

// actor is a story that is played.
type actor struct {
	story
	set, registration *unstructured.Unstructured
	client            *traffic.Client
	ended             chan error // receives the result of client.Run
	generation        int64
}

func newRun(d *demonstration, hooks bool) (*run, error) {
	r := &run{demonstration: d, hooks: hooks, inbox: make(chan func(), inboxSize), board: newBoard(time.Now, d.log, d.server)}
	pace := d.options.pace
	for _, story := range d.options.stories(hooks) {
		set, registration, err := manifests.Workload(story.File, hooks, pace.propagation)
		if err != nil {
			return nil, err
		}
		if story.RegistersItself {
			change := fmt.Sprintf(registers, d.registry.Endpoint())
			if set, err = stage.Merge(set, stage.CloneSet{}, change); err != nil {
				return nil, err
			}
		}
		client := traffic.New(traffic.Options{
			Source: traffic.Etcd{Client: d.registry.Client, Prefix: stage.EtcdPrefix, Service: story.Name},
			Rate:   pace.rate, CacheDelay: pace.cacheDelay, SlowMin: pace.slowMin, SlowMax: pace.slowMax,
			OnChange: func(address string, joined bool) { r.inbox <- func() { r.board.registryChanged(address, joined) } },
			OnLost:   func(l traffic.Loss) { r.inbox <- func() { r.board.lost(loss{l, story}) } },
		})
		r.actors = append(r.actors, &actor{story: story, set: set, registration: registration, client: client, ended: make(chan error, 1)})
	}
	return r, nil
}

// title names a run.
func title(hooks bool) string {
	if hooks {
		return "hooks and guard on"
	}
	return "hooks and guard off"
}

// play runs all phases. Everything that it has started has ended when it returns.
func (r *run) play(ctx context.Context) (*RunResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	if _, err := stage.Watch(ctx, r.Cluster.RESTConfig(), r.Kube, namespace, r.board.watched()...); err != nil {
		return nil, err
	}
	background.Go(func() { r.reportWaits(ctx) })
	background.Go(func() { r.listen(ctx) })
	r.log("\n━━ " + title(r.hooks))
	for _, a := range r.actors {
		r.log(fmt.Sprintf("   %-16s %s", a.Name, a.About))
	}
	result := &RunResult{Hooks: r.hooks, Took: map[phase]time.Duration{}}
	for i, name := range r.options.phases() {
		began := time.Now()
		if err := r.playPhase(ctx, &background, name, i); err != nil {
			return nil, fmt.Errorf("%s, phase %q: %w", title(r.hooks), name, err)
		}
		result.Took[name] = time.Since(began)
		r.catchUp(ctx)
		r.board.report()
		r.board.say("%s done in %s", name, seconds(result.Took[name]))
	}
	result.Waited, result.Outcomes = r.waited, list.Map(r.actors, r.outcome)
	return result, nil
}

// playPhase changes the workloads, disturbs them if asked to, and waits until all is
// done.
func (r *run) playPhase(ctx context.Context, background *sync.WaitGroup, name phase, n int) error {
	r.board.begin(fmt.Sprintf("%d/%d %s", n+1, len(r.options.phases()), name))
	var acting []*actor
	for _, a := range r.actors {
		a.client.Section(string(name))
		step, ok := a.Steps[name]
		if !ok {
			continue
		}
		acting = append(acting, a)
		r.board.say("   %s: %s", a.Name, step.About)
		if err := r.act(ctx, background, a, name); err != nil {
			return err
		}
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return r.disturb(ctx, name, acting) })
	both.Go(func() error { return r.settle(ctx, name, acting) })
	return both.Wait()
}

// act applies a phase's step to one workload.
func (r *run) act(ctx context.Context, background *sync.WaitGroup, a *actor, name phase) (err error) {
	switch name {
	case phaseCreate:
		if _, err = stage.Apply(ctx, r.Kube, a.registration); err != nil {
			return err
		}
		a.generation, err = stage.Apply(ctx, r.Kube, a.set)
		background.Go(func() { a.ended <- a.client.Run(ctx) })
		return err
	case phaseDelete:
		// Callers must expect that there will be no instance.
		a.client.EndWhenGone()
		if a.Deployment {
			return r.Kube.Delete(ctx, a.set.DeepCopy())
		}
	case phaseDrain:
		return r.drainNode(ctx, a)
	case phaseMind:
		return r.changeMind(ctx, a, a.Steps[name].Pods)
	}
	step := a.Steps[name]
	if step.Change == "" {
		a.generation, err = stage.Scale(ctx, r.Kube, a.typed(), step.Pods)
		return err
	}
	// Templates are merged in the same way in all kinds of workloads.
	if a.set, err = stage.Merge(a.set, stage.CloneSet{}, step.Change); err != nil {
		return err
	}
	a.generation, err = stage.Apply(ctx, r.Kube, a.set)
	return err
}

// settle waits until the phase's changes are done, for the Pods and for their callers.
func (r *run) settle(ctx context.Context, name phase, acting []*actor) error {
	limit := r.options.pace.bound
	if r.stops(name) {
		limit += r.options.pace.outage
	}
	end := time.Now().Add(limit)
	for _, a := range acting {
		pods := a.Steps[name].Pods
		what := fmt.Sprintf("%s %s to have %d Pods, all updated, available and registered", a.set.GetKind(), a.Name, pods)
		err := r.board.await(ctx, time.Until(end), what, func() bool { return r.board.settledAt(a.typed(), pods, a.generation) })
		if err != nil {
			return err
		}
	}
	for _, a := range acting {
		if name == phaseDelete {
			if err := r.finish(ctx, a, max(time.Until(end), time.Second)); err != nil {
				return err
			}
			continue
		}
		// Otherwise the next phase would count this one's losses.
		err := stage.Poll(ctx, r.options.pace.bound, "the callers of "+a.Name+" to catch up", func(context.Context) (bool, error) {
			return a.client.Report().Total().Sent > 0 && a.client.Settled(time.Now()), nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// finish waits for the last answers and deletes the objects.
func (r *run) finish(ctx context.Context, a *actor, bound time.Duration) error {
	select {
	case err := <-a.ended:
		if err != nil {
			return fmt.Errorf("requests to %s: %w", a.Name, err)
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(bound):
		return fmt.Errorf("wait for the callers of %s to notice that it is gone: %w within %s", a.Name, errLate, seconds(bound))
	}
	for _, object := range []client.Object{a.set.DeepCopy(), a.registration.DeepCopy()} {
		if err := client.IgnoreNotFound(r.Kube.Delete(ctx, object)); err != nil {
			return fmt.Errorf("delete %s: %w", a.Name, err)
		}
	}
	return r.board.await(ctx, bound, a.set.GetKind()+" and Registration "+a.Name+" to be gone", func() bool {
		return r.board.objects[key(a.typed())] == nil && len(r.board.podsOf(a.Name)) == 0 &&
			r.board.objects[key(&usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Name: a.Name}})] == nil
	})
}

// outcome summarizes one workload's requests.
func (r *run) outcome(a *actor) Outcome {
	o := Outcome{story: a.story, Report: a.client.Report()}
	r.board.Read(func() {
		for _, loss := range r.board.losses {
			if _, lane := r.board.at(loss.Addr, loss.At); loss.of.Name == a.Name && a.JoinsOnly && lane.lost(loss.At) {
				o.Leaving++
			}
		}
	})
	return o
}

// listen takes the reports of callers until ctx ends.
func (r *run) listen(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case report := <-r.inbox:
			report()
		}
	}
}

// catchUp returns when the board has all reports that callers have sent so far.
func (r *run) catchUp(ctx context.Context) {
	done := make(chan struct{})
	r.inbox <- func() { close(done) }
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// reportWaits reports long waits until ctx ends.
func (r *run) reportWaits(ctx context.Context) {
	for stage.Pause(ctx, reportEvery) == nil {
		r.board.report()
	}
}
