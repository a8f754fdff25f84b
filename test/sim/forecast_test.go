// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/forecast"
	"github.com/usher-dev/usher/internal/view"
	"github.com/usher-dev/usher/test/model"
)

const (
	// forecasts is how many sets and changes are forecast.
	forecasts = 200
	// interleavings is how often a change is repeated, with every duration up to jitter longer or
	// shorter. That suffices to see rare outcomes too.
	interleavings = 20
	jitter        = 20 * time.Millisecond
)

// agreement is the comparison of a forecast with the events.
type agreement struct {
	foreseen, happened []string
	// chance means that milliseconds decide about the events, and that the forecast agrees with a run
	// that differs only by milliseconds.
	chance bool
}

func (a *agreement) holds() bool { return a.chance || slices.Equal(a.foreseen, a.happened) }

// agrees compares a forecast with the events. If runs of the same change that differ by milliseconds
// end in several ways, the forecast has to be one of these.
func agrees(seed uint64, planner func(*plan.Snapshot) plan.Plan) (a agreement) {
	a.foreseen, a.happened = foresee(seed, planner, 0)
	for n := uint64(1); n <= interleavings && !a.holds(); n++ {
		_, happened := foresee(seed, nil, n)
		a.chance = slices.Equal(a.foreseen, happened)
	}
	return a
}

// TestForecast: the controller does what package forecast says about a change, in that order: the same
// Pods, methods and lowest availability.
func TestForecast(t *testing.T) {
	t.Parallel()
	changed, chance, most := 0, 0, min(forecasts, *seeds)
	for seed := uint64(1); seed <= uint64(most); seed++ { // most is not negative
		a := agrees(seed, nil)
		if len(a.happened) > 1 {
			changed++
		}
		if a.chance {
			chance++
		}
		if !a.holds() {
			t.Errorf("seed %d: that is not what was foreseen; foreseen and happened:\n%s\n%s", seed, a.foreseen, a.happened)
		}
	}
	t.Logf("%d of %d changes touch Pods; in %d, milliseconds decide", changed, most, chance)
	if most == forecasts && (changed < most/2 || chance > most/100) { // fewer changes prove little
		t.Error("too few changes touch a Pod, or milliseconds decide too often")
	}
}

// TestForecastChance: forecasts are right also if milliseconds decide.
func TestForecastChance(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{186, 507, 597, 805, 1090} {
		if a := agrees(seed, nil); !a.chance {
			t.Errorf("seed %d: foreseen and happened:\n%s\n%s", seed, a.foreseen, a.happened)
		}
	}
}

// TestForecastMutants: the comparison finds each forecast with a bug.
func TestForecastMutants(t *testing.T) {
	t.Parallel()
	for name, m := range mutants(t, "mutants-forecast.txt") {
		found := func(seed uint64) bool {
			a := agrees(seed, func(s *plan.Snapshot) plan.Plan {
				broken := *s
				return m.plan(nil, &broken)
			})
			return !a.holds()
		}
		seed := uint64(1)
		for seed < forecasts && !found(seed) {
			seed++
		}
		t.Logf("it %s: seed %d", name, seed)
		if seed == forecasts {
			t.Errorf("it %s, and no seed shows it", name)
		}
	}
}

// foresee draws a set, lets it settle, changes it, and describes the forecast and the events, in one of
// several interleavings: in the first one, everything always takes the same time.
func foresee(seed uint64, planner func(*plan.Snapshot) plan.Plan, interleaving uint64) (foreseen, happened []string) {
	w, config := newWorld(seed^0xf0), Calm()
	config.Seed, config.Nodes.Nodes = seed, 100                                       // so each Pod has its own
	config.Process.Lag = Lag{Least: 5 * time.Millisecond, Most: 5 * time.Millisecond} // several edits arrive as one
	// Times that no Pod shows are those that the forecast assumes.
	config.Nodes.Start, config.Operator.Answer = 18*time.Second, 1700*time.Millisecond
	set := randomSet(w)
	n := 1 + int32(w.chance.IntN(9)) // less than 10
	set.Spec.Replicas = &n
	s := New(config, set)
	s.nodes.Roomy = true
	s.rest()
	s.rank(w)
	for range w.chance.IntN(3) {
		s.foreseeable(w)
		s.rest()
	}
	live := s.Set()
	for range 1 + w.chance.IntN(3) {
		s.foreseeable(w)
	}
	f := must(forecast.Of(forecast.Change{
		Objects: view.Objects{
			Now: s.World.now(), Set: live, Pods: s.Pods(), Revisions: owned[*appsv1.ControllerRevision](s),
		},
		To: s.Set(), Starts: config.Process.Starts, Planner: planner,
	}))
	if interleaving > 0 {
		s.World.jitter = jitter
		s.World.chance = newWorld(interleaving).chance
	}
	watched := s.watchPods()
	s.rest()
	return textOf(&f), watched.text(s)
}

// foreseeable lets the user change something that leaves no choice to chance.
func (s *Simulation) foreseeable(w *World) {
	pick(w, roll, roll, rollAll, rollAll, relabel, recreate, recreate, scale, scale, (*Simulation).rollResources, (*Simulation).rollResources,
		pause, (*Simulation).retype, exclude, movePartition, rebudget, (*Simulation).listForDeletion)(s)
}

// rank gives Pods labels by which the set orders their update.
func (s *Simulation) rank(w *World) {
	for _, pod := range s.Pods() {
		s.changePod(pod, func(pod *corev1.Pod) {
			pod.Labels["rank"], pod.Labels["zone"] = fmt.Sprint(w.chance.IntN(3)), pick(w, "a", "b")
		})
	}
	s.Edit("orders the update", func(set *apps.CloneSet) {
		if w.roll(0.5) {
			set.Spec.UpdateStrategy.PriorityStrategy = &apps.UpdatePriorityStrategy{OrderPriority: []apps.UpdatePriorityOrderTerm{{OrderedKey: "rank"}}}
		}
		if w.roll(0.5) {
			set.Spec.UpdateStrategy.ScatterStrategy = []apps.UpdateScatterTerm{{Key: "zone", Value: "a"}}
		}
	})
	s.rest()
}

// rest runs until nothing more happens.
func (s *Simulation) rest() {
	for n := 0; !s.World.idle() && n < mostSteps; n++ {
		s.World.step()
	}
}

// watched records what happens to the existing Pods.
type watched struct {
	before map[types.UID]*corev1.Pod
	// touched are in the order in which the controller began with them.
	touched []*corev1.Pod
	created int
	lowest  int
}

func (s *Simulation) watchPods() *watched {
	w := &watched{before: map[types.UID]*corev1.Pod{}}
	for _, pod := range s.Pods() {
		w.before[pod.UID] = pod
	}
	w.lowest = s.available()
	s.Server.Observers = append(s.Server.Observers, func(c *model.Commit) {
		old, pod := c.Pods()
		w.lowest = min(w.lowest, s.available())
		switch {
		case !isProcess(c.Actor) || c.Kind != model.Pods:
		case old == nil:
			w.created++
		case w.before[old.UID] != nil && !slices.ContainsFunc(w.touched, func(p *corev1.Pod) bool { return p.UID == old.UID }):
			w.touched = append(w.touched, cmp.Or(pod, old))
		}
	})
	return w
}

// text describes the events in the words in which textOf describes a forecast.
func (w *watched) text(s *Simulation) (out []string) {
	now := map[types.UID]*corev1.Pod{}
	updated := 0
	update := s.updateRevision(s.Set())
	for _, pod := range s.Pods() {
		now[pod.UID] = pod
		if of(pod, update) {
			updated++
		}
	}
	for _, pod := range w.touched {
		before, after := w.before[pod.UID], now[pod.UID]
		switch {
		case after == nil:
			out = append(out, fmt.Sprintf("Pod %s goes", pod.Name))
		case imagesOf(&before.Spec)+resourcesOf(&before.Spec) != imagesOf(&after.Spec)+resourcesOf(&after.Spec):
			out = append(out, fmt.Sprintf("Pod %s changes in place", pod.Name))
		case before.Labels[apps.LabelRevision] != after.Labels[apps.LabelRevision]:
			out = append(out, fmt.Sprintf("Pod %s is relabelled", pod.Name))
		}
	}
	return append(out, fmt.Sprintf("%d are made; at least %d serve; in the end %d, %d updated, %d serve", w.created, w.lowest, len(now), updated, s.available()))
}

// textOf describes a forecast.
func textOf(f *forecast.Forecast) (out []string) {
	created := 0
	for _, wave := range f.Waves {
		for _, step := range wave.Pods {
			if strings.HasPrefix(step.Pod, "demo-new") {
				continue // a surplus Pod is deleted again
			}
			does := map[forecast.Doing]string{forecast.InPlace: "changes in place", forecast.Relabel: "is relabelled"}
			out = append(out, fmt.Sprintf("Pod %s %s", step.Pod, cmp.Or(does[step.Does], "goes")))
		}
		created += wave.Created
	}
	return append(out, fmt.Sprintf("%d are made; at least %d serve; in the end %d, %d updated, %d serve", created, f.Lowest, f.Ends.Pods, f.Ends.Updated, f.Ends.Available))
}
