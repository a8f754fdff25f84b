// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/usher-dev/usher/test/demo/view"
	"github.com/usher-dev/usher/test/traffic"
)

// drawEvery is how often the panel is refreshed.
const drawEvery = 200 * time.Millisecond

// tellEvery is how often the log reports a CloneSet's lost requests.
const tellEvery = time.Second

// run is one run through all phases.
type run struct {
	options Options
	stage   *stage
	screen  *view.Screen
	hooks   bool
	board   *board
	actors  []*actor
	waited  []string // what was waited for during the registry's outage

	mu    sync.Mutex // guards the fields below, and what has been logged about the actors
	phase string
	note  string
}

// actor is a story on the stage.
type actor struct {
	story
	set, registration *unstructured.Unstructured
	client            *traffic.Client
	ended             chan error // receives the result of client.Run
	generation        int64
	told              int       // lost requests that the log has reported
	toldAt            time.Time // when it last did
}

func newRun(o Options, s *stage, screen *view.Screen, hooks bool) (*run, error) {
	r := &run{options: o, stage: s, screen: screen, hooks: hooks, board: newBoard(time.Now, screen.Log)}
	for _, story := range stories(hooks) {
		a := &actor{story: story, ended: make(chan error, 1)}
		var err error
		if a.set, a.registration, err = story.objects(hooks, o); err != nil {
			return nil, err
		}
		a.client, err = traffic.New(traffic.Options{
			Source: traffic.Etcd{Client: s.etcd, Prefix: prefix, Service: story.name},
			Rate:   o.Rate, CacheDelay: o.CacheDelay, SlowMin: o.SlowMin, SlowMax: o.SlowMax, Seed: o.Seed,
			KeepLosses: 100_000, OnChange: r.board.registryChanged,
		})
		if err != nil {
			return nil, err
		}
		r.actors = append(r.actors, a)
	}
	return r, nil
}

// play runs all phases. Everything it has started has ended when it returns.
func (r *run) play(ctx context.Context) (*RunResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel(nil)
	if err := watch(ctx, r.stage.cluster.RESTConfig(), r.board); err != nil {
		return nil, err
	}
	background.Go(func() { r.guard(ctx, cancel) })
	background.Go(func() { r.draw(ctx) })
	result := &RunResult{Hooks: r.hooks}
	names := r.phaseNames()
	r.banner(names)
	for i, name := range names {
		began := time.Now()
		if err := r.play1(ctx, &background, name, i, len(names)); err != nil {
			return nil, fmt.Errorf("%s, phase %q: %w", title(result), phaseTitle(name), err)
		}
		took := time.Since(began)
		r.tellLosses(time.Now(), 0)
		r.board.say("", "%s done in %s", phaseTitle(name), seconds(took))
		result.Phases = append(result.Phases, PhaseTime{Name: name, Took: took})
	}
	result.Waited = r.waited
	for _, a := range r.actors {
		result.Outcomes = append(result.Outcomes, r.outcome(a))
	}
	return result, nil
}

func (r *run) phaseNames() []string {
	names := []string{}
	for _, name := range phaseNames() {
		if r.options.runs(name) {
			names = append(names, name)
		}
	}
	return names
}

func (r *run) banner(names []string) {
	titles := []string{}
	for _, name := range names {
		titles = append(titles, phaseTitle(name))
	}
	lines := []string{"", "━━ " + title(&RunResult{Hooks: r.hooks}) + ": " + strings.Join(titles, " → ")}
	for _, a := range r.actors {
		lines = append(lines, fmt.Sprintf("   %-16s %s", a.name, a.about))
	}
	r.screen.Log(append(lines, "")...)
}

// guard ends the run when a process ends unexpectedly.
func (r *run) guard(ctx context.Context, cancel context.CancelCauseFunc) {
	select {
	case <-ctx.Done():
	case err := <-r.stage.usher.failed:
		cancel(err)
	case <-r.stage.cluster.Done():
		cancel(r.stage.cluster.Err())
	}
}

// play1 runs one phase.
func (r *run) play1(ctx context.Context, background *sync.WaitGroup, name string, n, of int) error {
	r.begin(name, n, of)
	// 1. Change the CloneSets.
	acting := r.acting(name)
	for _, a := range acting {
		r.board.say("", "   %s: %s", a.name, a.steps[name].Text)
		if err := r.act(ctx, background, a, name); err != nil {
			return err
		}
	}
	// 2. Disturb, if asked to.
	disturbing := make(chan error, 1)
	phaseCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		err := r.disturb(phaseCtx, name, acting)
		if err != nil {
			cancel(err)
		}
		disturbing <- err
	}()
	// 3. Wait.
	err := r.settle(phaseCtx, name, acting)
	if err != nil {
		cancel(err)
	}
	return errors.Join(err, unless(err, <-disturbing))
}

// unless drops an error that is already reported.
func unless(told, err error) error {
	if told != nil {
		return nil
	}
	return err
}

func (r *run) begin(name string, n, of int) {
	r.mu.Lock()
	r.phase = fmt.Sprintf("%d/%d %s", n+1, of, phaseTitle(name))
	r.mu.Unlock()
	r.board.say("", "━━ %d/%d %s", n+1, of, phaseTitle(name))
	for _, a := range r.actors {
		a.client.Section(name)
	}
}

func (r *run) acting(name string) []*actor {
	acting := []*actor{}
	for _, a := range r.actors {
		if _, ok := a.steps[name]; ok {
			acting = append(acting, a)
		}
	}
	return acting
}

// act applies a phase's step to one CloneSet.
func (r *run) act(ctx context.Context, background *sync.WaitGroup, a *actor, name string) error {
	var err error
	switch name {
	case phaseCreate:
		if _, err = r.stage.kube.apply(ctx, a.registration); err != nil {
			return err
		}
		if a.generation, err = r.stage.kube.apply(ctx, a.set); err != nil {
			return err
		}
		background.Go(func() { a.ended <- a.client.Run(ctx) })
		return nil
	case phaseDelete:
		// Tell the callers that the service ends, so that a caller without instances is
		// not surprised.
		a.client.EndWhenGone()
		a.generation, err = r.stage.kube.change(ctx, a.name, step{Scale: true})
		return err
	default:
		a.generation, err = r.stage.kube.change(ctx, a.name, a.steps[name])
		return err
	}
}

// settle waits until the phase's changes are done.
func (r *run) settle(ctx context.Context, name string, acting []*actor) error {
	limit := r.options.Bound
	if r.stops(name) {
		limit += r.options.Outage
	}
	deadline := time.Now().Add(limit)
	left := func() time.Duration { return max(time.Until(deadline), time.Second) }
	for _, a := range acting {
		pods := a.steps[name].Pods
		what := fmt.Sprintf("CloneSet %s to have %d Pods, all updated, available and registered", a.name, pods)
		err := r.board.await(ctx, left(), what, func() bool { return r.board.settledAt(a.name, pods, a.generation) })
		if err != nil {
			return err
		}
	}
	for _, a := range acting {
		var err error
		switch name {
		case phaseCreate:
			err = poll(ctx, "requests to "+a.name, func() (bool, error) { return r.flows(a) })
		case phaseDelete:
			err = r.finish(ctx, a, left())
		default:
			// Otherwise the next phase would count this one's losses.
			err = poll(ctx, "the callers of "+a.name+" to catch up", func() (bool, error) {
				return a.client.Settled(time.Now()), nil
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// flows reports whether callers have started sending requests.
func (r *run) flows(a *actor) (bool, error) {
	return a.client.Stats(time.Now()).Sent > 0, nil
}

// finish waits for the last answers and deletes the objects.
func (r *run) finish(ctx context.Context, a *actor, bound time.Duration) error {
	limit := time.NewTimer(bound)
	defer limit.Stop()
	select {
	case err := <-a.ended:
		if err != nil {
			return fmt.Errorf("requests to %s: %w", a.name, err)
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-limit.C:
		return &WaitError{What: "the callers of " + a.name + " to notice that it is gone", Bound: bound}
	}
	for _, object := range []*unstructured.Unstructured{a.set, a.registration} {
		if err := r.stage.kube.remove(ctx, object); err != nil {
			return err
		}
	}
	return r.board.await(ctx, bound, "CloneSet and Registration "+a.name+" to be gone", func() bool {
		return r.board.sets[a.name] == nil && r.board.registrations[a.name] == nil
	})
}

// outcome summarizes one CloneSet's requests.
func (r *run) outcome(a *actor) Outcome {
	o := Outcome{Name: a.name, About: a.about, JoinsOnly: a.joinsOnly, Report: a.client.Report()}
	if !a.joinsOnly {
		return o
	}
	for _, loss := range o.Report.Losses {
		if leaving(loss, r.board.leftAt) {
			o.Leaving++
		}
	}
	return o
}

// leaveSlack is how much later than the callers the board may learn of a Pod's
// deletion.
const leaveSlack = 500 * time.Millisecond

// leaving reports whether a request was lost because its instance's Pod left.
func leaving(loss traffic.Loss, leftAt func(addr string) (time.Time, bool)) bool {
	at, left := leftAt(loss.Addr)
	return left && loss.At.After(at.Add(-leaveSlack))
}

// draw shows the state until ctx ends.
func (r *run) draw(ctx context.Context) {
	tick := time.NewTicker(drawEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			r.tellLosses(time.Now(), 0)
			return
		case <-tick.C:
			r.tellLosses(time.Now(), tellEvery)
			r.board.tellLongWaits()
			r.screen.Show(r.state(time.Now()))
		}
	}
}

// tellLosses logs requests lost since the log last reported them, which is at least
// some time ago.
func (r *run) tellLosses(now time.Time, ago time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.actors {
		stats := a.client.Stats(now)
		if stats.Lost == a.told || now.Sub(a.toldAt) < ago {
			continue
		}
		lost := fmt.Sprintf("LOST %d requests, %d in all", stats.Lost-a.told, stats.Lost)
		if a.joinsOnly {
			lost = fmt.Sprintf("its YAML has no preDelete hook: %d requests cut as Pods left, %d in all", stats.Lost-a.told, stats.Lost)
		}
		if len(stats.Reasons) > 0 {
			lost += " (" + stats.Reasons[0].Reason + ")"
		}
		r.board.say(namespace+"/"+a.name, "%s", lost)
		a.told, a.toldAt = stats.Lost, now
	}
}

// state is what the panel shows.
func (r *run) state(now time.Time) view.State {
	stats := map[string]traffic.Stats{}
	for _, a := range r.actors {
		stats[a.name] = a.client.Stats(now)
	}
	r.mu.Lock()
	state := view.State{Now: now, Started: r.board.started, Title: title(&RunResult{Hooks: r.hooks}), Phase: r.phase, Note: r.note}
	r.mu.Unlock()
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	for _, a := range r.actors {
		state.Sets = append(state.Sets, r.board.setState(a.name, stats[a.name]))
	}
	return state
}

// setState is the part of the state of one set. The caller holds mu.
func (b *board) setState(name string, stats traffic.Stats) view.Set {
	shown := view.Set{Name: name, Traffic: view.Traffic{
		Running: !stats.Started.IsZero(), PerSecond: stats.PerSecond,
		Sent: stats.Sent, InFlight: stats.InFlight, Lost: stats.Lost,
	}}
	if set := b.sets[name]; set != nil {
		if set.Spec.Replicas != nil {
			shown.Desired = int(*set.Spec.Replicas)
		}
		shown.Updated, shown.Available = int(set.Status.UpdatedReplicas), int(set.Status.AvailableReplicas)
	}
	rates := map[string]int{}
	for _, instance := range stats.Instances {
		rates[instance.Addr] = instance.PerSecond
	}
	for _, pod := range b.podsOf(name) {
		shown.Pods = append(shown.Pods, b.podRow(pod, rates))
	}
	return shown
}

func (b *board) podRow(pod *corev1.Pod, rates map[string]int) view.Pod {
	row := describe(pod, b.entries[address(pod)])
	row.PerSecond = rates[row.Address]
	return row
}

// lastState is the panel for an error.
func (r *run) lastState() []string {
	return view.Render(r.state(time.Now()), view.Style{})
}
