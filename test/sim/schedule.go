// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// Random builds a run in which everything is drawn from the seed: the set, the cluster,
// the faults and the user's actions. change may alter the config.
func Random(seed uint64, change func(*Config)) *Simulation {
	w := newWorld(seed ^ 0x5eed)
	config := randomConfig(w)
	config.Seed = seed
	if change != nil {
		change(&config)
	}
	if later := newWorld(seed ^ 0x429); later.roll(0.3) { // its own random source, as in randomEnd
		config.Process.Faults.Later = 0.5
	}
	if first := newWorld(seed ^ 0x13a6e); first.roll(0.3) { // its own random source, as in randomEnd
		config.Nodes.Pull = pick(first, time.Second, 30*time.Second, 5*time.Minute)
	}
	if wide := newWorld(seed ^ 0x31de); wide.roll(0.3) { // its own random source, as in randomEnd
		config.Process.Parallel = 8
	}
	set := randomSet(w)
	randomClaims(seed, set)
	randomGates(seed, set)
	s := New(config, set)
	if len(set.Spec.VolumeClaimTemplates) > 0 {
		s.strangers()
	}
	s.randomSchedule()
	if !config.Accepts {
		s.randomRefusal(seed)
	}
	s.randomEnd(seed)
	return s
}

// Behind is Random with watches that break all the time, and then list from API servers that lag. No request fails there
// for being lost or refused: what a pass does with trials that nobody has answered, and after refusals, is another matter.
func Behind(seed uint64, change func(*Config)) *Simulation {
	return Random(seed, func(c *Config) {
		c.Process.Lag = Lag{Least: time.Millisecond, Most: 100 * time.Millisecond, Stall: 0.3, StallFor: 20 * time.Second, Behind: 0.8}
		c.Accepts = true
		c.Process.Faults.Lost, c.Process.Faults.Busy, c.Process.Faults.Conflict = 0, 0, 0
		if change != nil {
			change(c)
		}
	})
}

func randomConfig(w *World) Config {
	lag := pick(w,
		Lag{Least: time.Millisecond, Most: 20 * time.Millisecond},
		Lag{Least: time.Millisecond, Most: 3 * time.Second},
		Lag{Least: time.Millisecond, Most: 100 * time.Millisecond, Stall: 0.05, StallFor: 30 * time.Second},
	)
	config := Config{
		Process: ProcessConfig{Lag: lag, Speed: pick(w, time.Millisecond, 20*time.Millisecond, 300*time.Millisecond), Starts: pick(w, 0, 1, 2, 32)},
		Nodes: NodeConfig{
			Nodes: 1 + w.chance.IntN(3), Notice: pick(w, 50*time.Millisecond, 5*time.Second),
			Start: pick(w, 100*time.Millisecond, 5*time.Second, time.Minute), Stop: pick(w, 100*time.Millisecond, 20*time.Second),
			Report: pick(w, 20*time.Millisecond, 2*time.Second), Schedule: pick(w, 50*time.Millisecond, 10*time.Second),
			Resize: pick(w, 100*time.Millisecond, 5*time.Second, time.Minute),
		},
		Operator: OperatorConfig{
			Notice: pick(w, 50*time.Millisecond, 5*time.Second), Answer: pick(w, 100*time.Millisecond, 20*time.Second),
			Silent: pick(w, 0, 0, 0.2), Twice: pick(w, 0, 0.3), Careless: w.roll(0.3),
		},
		Restart: pick(w, 100*time.Millisecond, 15*time.Second),
	}
	if w.roll(0.3) {
		config.Process.Lags = map[model.Kind]Lag{pick(w, kinds...): {Least: 0, Most: 20 * time.Second}}
	}
	if w.roll(0.7) {
		config.Process.Faults = Faults{
			Lost: pick(w, 0, 0.05), Blind: pick(w, 0, 0.05), Conflict: pick(w, 0, 0.05), Busy: pick(w, 0, 0.05), Crash: pick(w, 0, 0.03),
		}
	}
	return config
}

func randomSet(w *World) *apps.CloneSet {
	about := fmt.Sprint("replicas ", 1+w.chance.IntN(5))
	about += "; type " + pick(w, "ReCreate", "InPlaceIfPossible", "InPlaceIfPossible", "InPlaceOnly", "OnDelete")
	hooks := someHooks(w)
	about += fmt.Sprint("; grace ", pick(w, 0, 0, 5), "; minReady ", pick(w, 0, 0, 10))
	if w.roll(0.5) {
		about += "; cpu " + pick(w, "100m", "200m") + "; memory 64Mi"
		if w.roll(0.3) {
			about += "; restarting"
		}
	}
	if w.roll(0.4) {
		about += "; ordered"
	}
	set := NewSet(about)
	hook(set, hooks)
	to(budgets(w, set.Spec.UpdateStrategy.Type))(set)
	return set
}

// randomSchedule draws when the user acts, and when a second process starts that
// believes it is the leader.
func (s *Simulation) randomSchedule() {
	w, at := s.World, time.Duration(0)
	for range w.chance.IntN(9) {
		at += w.between(0, pick(w, 500*time.Millisecond, 10*time.Second, 2*time.Minute))
		w.after(at, s.act)
	}
	if w.roll(0.15) {
		from := w.between(0, at+time.Second)
		w.after(from, func() {
			w.say("story", "a second process believes that it leads")
			second := s.launch(s.config.Process)
			second.onCrash = nil
			w.after(w.between(0, 2*time.Minute), second.stop)
		})
	}
	s.plannedEnd = at + w.between(0, time.Minute)
}

// Run runs to the end, until it has settled.
func (s *Simulation) Run() *Violation {
	s.World.runUntil(epoch.Add(s.plannedEnd))
	if s.World.failure != nil {
		return s.World.failure
	}
	return s.Settle()
}

// removeObstacles reverts changes that keep a set from settling.
func (s *Simulation) removeObstacles() {
	if set := s.Set(); set != nil {
		if u := set.Spec.UpdateStrategy; u.Paused || u.Type == apps.UpdateInPlaceOnly || len(set.Spec.ScaleStrategy.PodsToDelete) > 0 {
			s.Edit("lets the rollout go on", func(set *apps.CloneSet) {
				set.Spec.UpdateStrategy.Paused, set.Spec.ScaleStrategy.PodsToDelete = false, nil
				if set.Spec.UpdateStrategy.Type == apps.UpdateInPlaceOnly {
					set.Spec.UpdateStrategy.Type = apps.UpdateInPlaceIfPossible
				}
			})
		}
	}
	s.giveUpPods()
	for _, pod := range model.List[*corev1.Pod](s.Server.Objects) {
		s.changePod(pod, func(pod *corev1.Pod) { controllerutil.RemoveFinalizer(pod, "other/finalizer") })
	}
}
