// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// TestCrashAnywhere ends the process after each single write of each classic rollout:
// whatever was written by then, the next process has to end where a run without a crash
// ends.
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
	for _, c := range scenarios(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			test(t, c, c.play(t, Calm()))
		})
	}
}

// endsLike plays a scenario with a fault; it has to end like another run.
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
		var gates []string
		for _, kind := range []corev1.PodConditionType{apps.ConditionInPlaceUpdateReady, apps.ConditionPodReady, corev1.PodReady} {
			gates = append(gates, fmt.Sprintf("%s=%s", kind, model.Condition(pod, kind).Status))
		}
		var labels []string
		for _, key := range sortedKeys(pod.Labels, nil) {
			if key != apps.LabelInstanceID {
				labels = append(labels, key+"="+pod.Labels[key])
			}
		}
		pods = append(pods, fmt.Sprint(imagesOf(&pod.Spec), labels, pod.Finalizers, gates))
	}
	slices.Sort(pods)
	var status apps.CloneSetStatus
	if set := s.Set(); set != nil { // it may have been deleted
		status = set.Status
	}
	return fmt.Sprintf("%s\n%d %d %d %s %s", strings.Join(pods, "\n"), status.Replicas, status.AvailableReplicas,
		status.UpdatedReplicas, status.CurrentRevision, status.UpdateRevision)
}

// TestPodThatNoWatchShows: a Pod that is created and removed while the watch is
// interrupted produces no event; its absence is noticed all the same.
func TestPodThatNoWatchShows(t *testing.T) {
	s := New(Calm(), NewSet(""))
	watch := s.processes[0].caches[model.Pods]
	watch.stopped = true
	s.World.runUntil(epoch.Add(time.Second))
	pods := s.Pods()
	if len(pods) != 1 {
		t.Fatalf("%d Pods", len(pods))
	}
	if err := s.Server.Delete("user", model.Pods, client.ObjectKeyFromObject(pods[0]), model.Deletion{Now: true}); err != nil {
		t.Fatal(err)
	}
	watch.stopped = false
	watch.Relist()
	s.settles(t)
}

// TestCrashBetweenAPodAndItsClaims ends the process after each single write of a
// scale-in. If the Pod shows that the controller wanted it deleted, the next process
// deletes its claims; if not, the Pods of the next scale-out take them over. Either way
// none is left over in the end.
func TestCrashBetweenAPodAndItsClaims(t *testing.T) {
	in, out := step{time.Minute, "scales", "replicas 1"}, step{time.Minute, "scales", "replicas 3"}
	for name, c := range map[string]scenario{
		"its state shows it": {set: "replicas 3; claims data log; hooks preDelete", steps: []step{in}},
		"nothing shows it":   {set: "replicas 3; claims data log", steps: []step{in, out}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play := func(crashAt int) *Simulation {
				config := Calm()
				config.Process.CrashAt, config.Restart, config.Nodes.Stop = crashAt, 50*time.Millisecond, 20*time.Second
				return c.play(t, config)
			}
			for n := range play(0).processes[0].writes + 1 {
				s := play(n)
				if pods, claims := len(s.Pods()), len(s.Claims()); claims != 2*pods {
					t.Fatalf("crash after write %d leaves %d claims of %d Pods\n%s", n, claims, pods, s.World.Story())
				}
			}
		})
	}
}
