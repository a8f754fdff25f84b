// SPDX-License-Identifier: Apache-2.0

// Package demo takes CloneSets through their whole life on a real control plane while
// requests flow, and counts the lost requests: with lifecycle hooks, and without.
//
// Its layers each know only those below: run.go drives the phases; story.go and
// phase.go define what happens to which CloneSet; board.go is what is known of the
// cluster, and where conditions are awaited; stage.go starts and ends everything;
// report.go writes the outcome. The numbers come from package traffic and the display
// from package view.
package demo

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/cluster/sandbox"
)

// Hooks selects the runs with and without hooks.
type Hooks string

// The values of Hooks.
const (
	// HooksBoth runs with the hooks and then without.
	HooksBoth Hooks = "both"
	// HooksOn runs with the hooks only.
	HooksOn Hooks = "on"
	// HooksOff runs without them only.
	HooksOff Hooks = "off"
)

// Options configures a demonstration. The zero value is the usual one.
type Options struct {
	// Out receives all output; default os.Stdout.
	Out *os.File
	// Getenv reads the environment; default os.Getenv.
	Getenv func(string) string
	// Rate is the number of requests per second to each CloneSet; default 500.
	Rate int
	// Hooks selects the runs with and without hooks; default HooksBoth.
	Hooks Hooks
	// Phases names the phases to run in addition to create and delete, which always
	// run; default all.
	Phases []string
	// KillUsher kills Usher in the middle of every phase and restarts it.
	KillUsher bool
	// StopRegistry stops the registry in mid-rollout for Outage; default 20 s.
	StopRegistry bool
	Outage       time.Duration
	// Keep leaves the cluster running at the end, until ctx ends.
	Keep bool
	// CacheDelay is how far callers' caches lag behind the registry; default 1 s.
	CacheDelay time.Duration
	// SlowMin and SlowMax bound how long slow requests take; default 1 s and 2 s.
	SlowMin, SlowMax time.Duration
	// Propagation is spec.drain.propagation of the Registrations; default the
	// manifests' value, 4 s. It must cover CacheDelay and SlowMax.
	Propagation time.Duration
	// Bound is how long a phase may take; default 90 s.
	Bound time.Duration
	// Seed decides which requests are slow.
	Seed uint64
	// Place is the sandbox that the demo runs in; the demo then starts a real node
	// there. nil means the development cluster, whose nodes run processes.
	Place *sandbox.Place
}

const (
	defaultRate       = 500
	defaultOutage     = 20 * time.Second
	defaultCacheDelay = time.Second
	defaultSlowMin    = time.Second
	defaultSlowMax    = 2 * time.Second
	// defaultPropagation is the manifests' value.
	defaultPropagation = 4 * time.Second
	defaultBound       = 90 * time.Second
)

func (o Options) withDefaults() (Options, error) {
	if o.Out == nil {
		o.Out = os.Stdout
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	orDefault(&o.Rate, defaultRate)
	orDefault(&o.Hooks, HooksBoth)
	orDefault(&o.Outage, defaultOutage)
	orDefault(&o.CacheDelay, defaultCacheDelay)
	orDefault(&o.SlowMin, defaultSlowMin)
	orDefault(&o.SlowMax, max(defaultSlowMax, o.SlowMin))
	orDefault(&o.Propagation, defaultPropagation)
	orDefault(&o.Bound, defaultBound)
	if len(o.Phases) == 0 {
		o.Phases = phaseNames()
	}
	return o, o.check()
}

func (o Options) check() error {
	if o.Hooks != HooksBoth && o.Hooks != HooksOn && o.Hooks != HooksOff {
		return fmt.Errorf("--hooks=%s: give on, off or both", o.Hooks)
	}
	if o.Rate < 1 {
		return fmt.Errorf("--rate=%d: give at least 1 request per second", o.Rate)
	}
	if o.Propagation < o.CacheDelay+o.SlowMax {
		return fmt.Errorf("a propagation of %s is shorter than the callers' caches (%s) and the slowest request (%s) together: requests would be cut",
			o.Propagation, o.CacheDelay, o.SlowMax)
	}
	for _, name := range o.Phases {
		if !slices.Contains(phaseNames(), name) {
			return fmt.Errorf("--phases: there is no phase %q: the phases are %s", name, strings.Join(phaseNames(), ", "))
		}
	}
	return o.checkOutage()
}

func (o Options) checkOutage() error {
	switch {
	case !o.StopRegistry:
		return nil
	case o.Hooks == HooksOff:
		return fmt.Errorf("--stop-registry shows how hooks wait for the registry: give --hooks=on or --hooks=both with it")
	case !o.runs(phaseInPlace):
		return fmt.Errorf("--stop-registry stops the registry in the phase %q: add it to --phases", phaseInPlace)
	}
	return nil
}

// runs reports whether a phase is to be run.
func (o Options) runs(phase string) bool {
	return phase == phaseCreate || phase == phaseDelete || slices.Contains(o.Phases, phase)
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
