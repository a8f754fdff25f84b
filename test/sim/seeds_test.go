// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/goldentest"
	"github.com/usher-dev/usher/test/model"
)

var seeds = flag.Int("seeds", 600, "how many random schedules TestSeeds runs")
var first = flag.Uint64("first", 1, "the first seed of TestSeeds")

// TestSeeds runs random schedules with faults, one of a large set for fifty of them, and one in which lists come from
// API servers that lag for four. To see one again:
//
//	go -C test test ./sim -run TestSeeds -first SEED -seeds 1
func TestSeeds(t *testing.T) {
	var reported atomic.Int32
	play := func(name string, of schedule, count int) {
		for seed := *first; seed < *first+uint64(count); seed++ { // a count is not negative
			t.Run(fmt.Sprint(name, seed), func(t *testing.T) {
				t.Parallel()
				s := of(seed, nil)
				if v := s.Run(); v != nil {
					t.Error(v)
					if reported.Add(1) <= 3 {
						t.Log(s.World.Story())
					}
				}
			})
		}
	}
	play("seed ", Random, *seeds)
	play("wide ", Wide, max(*seeds/50, 1))
	play("behind ", Behind, max(*seeds/4, 1))
}

// schedule builds a run from a seed.
type schedule func(seed uint64, change func(*Config)) *Simulation

// TestGolden plays the classic rollouts without faults. Their stories are reviewed, and their costs are
// bounded. The log at the default level suffices to follow a rollout.
func TestGolden(t *testing.T) {
	for _, c := range scenarios() {
		t.Run(c.Name, func(t *testing.T) {
			var lines strings.Builder
			config := Calm()
			config.Process.Logger = funcr.New(func(_, args string) { lines.WriteString(args + "\n") }, funcr.Options{})
			s := c.play(t, config)
			golden(t, c.Name, s.goldenStory())
			if c.Name == "update in place with hooks" {
				golden(t, "log of a rollout", s.numberRevisions(lines.String()))
			}
			if c.Writes > 0 {
				c.checkFrugal(t, s)
			}
		})
	}
}

// golden compares a text with the reviewed text.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".txt")
	if goldentest.Updating() {
		checktest.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	want := checktest.Must(os.ReadFile(path))(t)
	checktest.Same(t, "the text (if it is right, rewrite it with -update)", string(want), text)
}

// numberRevisions numbers revisions in the order of their creation.
func (s *Simulation) numberRevisions(text string) string {
	for i, c := range s.Server.Log[model.Revisions] {
		if r, ok := c.New.(*appsv1.ControllerRevision); ok && c.Old == nil {
			text = strings.ReplaceAll(text, revision.Short(r.Name), fmt.Sprintf("r%d", i+1))
		}
	}
	return text
}

// goldenStory returns the story without events and plans, with revisions numbered in the order of their
// creation.
func (s *Simulation) goldenStory() string {
	story := s.numberRevisions(s.World.Story())
	var out strings.Builder
	for line := range strings.Lines(story) {
		if !strings.Contains(line, " event ") && !strings.Contains(line, " decides to ") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// checkFrugal counts the cost of a rollout: no write is refused, every write changes
// something, and each Pod costs no more writes than it has to.
func (c scenario) checkFrugal(t *testing.T, s *Simulation) {
	t.Helper()
	from, writes := epoch.Add(c.Steps[0].After.Duration), 0
	for _, commit := range s.Server.Log[model.Pods] {
		if isProcess(commit.Actor) && !commit.At.Before(from) {
			writes++
		}
	}
	if pods := len(s.Pods()); writes > c.Writes*pods {
		t.Errorf("%d writes for %d Pods, at most %d for each are allowed\n%s", writes, pods, c.Writes, s.World.Story())
	}
	if story := s.World.Story(); strings.Contains(story, "a write is refused") {
		t.Errorf("writes were refused although nothing goes wrong:\n%s", story)
	}
}

// scenario is a classic rollout: a set, what its user does, and when.
type scenario struct {
	Name, Set string
	// Steps happen in a cluster without faults.
	Steps []step
	// Restart and Stop are how long it takes to replace a process and to stop a container. Default: as
	// in Calm.
	Restart, Stop metav1.Duration
	// Writes limits the controller's writes per Pod from the first step on; 0 is not checked.
	Writes int
}

type step struct {
	// After is the time since the previous step.
	After metav1.Duration
	// What is a word for the step; About has the words of a change of the set.
	What, About string
}

func scenarios() []scenario { return load[[]scenario]("scenarios.yaml") }

// play runs a scenario to its end.
func (c scenario) play(t *testing.T, config Config) *Simulation {
	t.Helper()
	config.Restart = cmp.Or(c.Restart.Duration, config.Restart)
	config.Nodes.Stop = cmp.Or(c.Stop.Duration, config.Nodes.Stop)
	s := New(config, NewSet(c.Set))
	at := epoch
	for _, step := range c.Steps {
		at = at.Add(step.After.Duration)
		s.World.runUntil(at)
		if s.World.failure == nil {
			s.happen(step.What, cmp.Or(step.About, step.What))
		}
	}
	s.settles(t)
	return s
}

// settles lets the cluster settle.
func (s *Simulation) settles(t *testing.T) {
	t.Helper()
	if v := s.Settle(); v != nil {
		t.Fatalf("%s: %v\n%s", s.fault(), v, s.World.Story())
	}
}

// fault describes the fault of a run.
func (s *Simulation) fault() string {
	p := &s.config.Process
	return fmt.Sprintf("crash after write %d, answer %d lost (done: %t)", p.CrashAt, p.LoseAt, p.LoseBlind)
}

// TestCrashAnywhere ends the process after each single write of each classic rollout: the next process
// has to reach the same end as a run without a crash.
func TestCrashAnywhere(t *testing.T) {
	eachScenario(t, func(t *testing.T, c scenario, calm *Simulation) {
		for n := range calm.processes[0].writes {
			c.endsLike(t, calm, func(p *ProcessConfig) { p.CrashAt = n + 1 })
		}
	})
}

// TestLostAnswerAnywhere makes the answer to each single write time out, once after it
// took effect and once without effect.
func TestLostAnswerAnywhere(t *testing.T) {
	eachScenario(t, func(t *testing.T, c scenario, calm *Simulation) {
		for n := range calm.processes[0].requests {
			for _, blind := range []bool{true, false} {
				c.endsLike(t, calm, func(p *ProcessConfig) { p.LoseAt, p.LoseBlind = n+1, blind })
			}
		}
	})
}

// eachScenario tests with each scenario and its run without faults.
func eachScenario(t *testing.T, test func(*testing.T, scenario, *Simulation)) {
	for _, c := range scenarios() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			test(t, c, c.play(t, Calm()))
		})
	}
}

// endsLike plays a scenario with a fault; it has to end like the calm run.
func (c scenario) endsLike(t *testing.T, calm *Simulation, change func(*ProcessConfig)) {
	t.Helper()
	config := Calm()
	change(&config.Process)
	s := c.play(t, config)
	if got, want := s.end(), calm.end(); got != want {
		t.Fatalf("%s: another end:\n%s\nwithout:\n%s\n%s", s.fault(), got, want, s.World.Story())
	}
}

// end describes the cluster once it has settled, except for names and times.
func (s *Simulation) end() string {
	var pods []string
	for _, pod := range s.Pods() {
		pod = pod.DeepCopy()
		pod.Spec.NodeName = ""
		delete(pod.Labels, apps.LabelInstanceID)
		facts := podChanges(&corev1.Pod{}, pod)
		slices.Sort(facts) // the order of conditions makes no difference
		pods = append(pods, strings.Join(facts, ", "))
	}
	slices.Sort(pods)
	status := ptr.Deref(s.Set(), apps.CloneSet{}).Status // it may have been deleted
	return fmt.Sprintf("%s\n%d claims\n%d %d %d %s %s", strings.Join(pods, "\n"), len(s.Claims()), status.Replicas, status.AvailableReplicas,
		status.UpdatedReplicas, status.CurrentRevision, status.UpdateRevision)
}

// TestPodThatNoWatchShows: a Pod that is created and removed while the watch is interrupted produces no
// event, but its absence is noticed.
func TestPodThatNoWatchShows(t *testing.T) {
	s := New(Calm(), NewSet(""))
	watch := s.processes[0].caches[model.Pods]
	watch.stopped = true
	s.World.runUntil(epoch.Add(time.Second))
	pods := s.Pods()
	if len(pods) != 1 {
		t.Fatalf("%d Pods", len(pods))
	}
	checktest.NoError(t, s.Server.Delete("user", pods[0], client.GracePeriodSeconds(0)))
	watch.stopped = false
	watch.Relist()
	s.settles(t)
}
