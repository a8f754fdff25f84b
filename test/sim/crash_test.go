// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// TestCrashAnywhere ends the process after each single write of each classic rollout:
// whatever was written by then, the next process has to end where a run without a crash
// ends.
func TestCrashAnywhere(t *testing.T) {
	for _, c := range scenarios() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, v := c.play(steady())
			if v != nil {
				t.Fatalf("%v\n%s", v, s.World.Story())
			}
			want, writes := s.end(), s.processes[0].writes
			for n := 1; n <= writes; n++ {
				config := steady()
				config.Process.CrashAt = n
				s, v := c.play(config)
				if v != nil {
					t.Fatalf("crash after write %d: %v\n%s", n, v, s.World.Story())
				}
				if got := s.end(); got != want {
					t.Fatalf("crash after write %d leads to another end:\n%s\nwithout a crash:\n%s\n%s", n, got, want, s.World.Story())
				}
			}
			t.Logf("%d crashes", writes)
		})
	}
}

// TestLostAnswerAnywhere makes the answer to each single write time out, once after it
// took effect and once without effect.
func TestLostAnswerAnywhere(t *testing.T) {
	for _, c := range scenarios() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, v := c.play(steady())
			if v != nil {
				t.Fatalf("%v\n%s", v, s.World.Story())
			}
			want, writes := s.end(), s.processes[0].requests
			for n := 1; n <= writes; n++ {
				for _, blind := range []bool{true, false} {
					config := steady()
					config.Process.LoseAt, config.Process.LoseBlind = n, blind
					s, v := c.play(config)
					if v != nil {
						t.Fatalf("answer %d lost, done %t: %v\n%s", n, blind, v, s.World.Story())
					}
					if got := s.end(); got != want {
						t.Fatalf("answer %d lost, done %t: another end:\n%s\nwithout:\n%s\n%s", n, blind, got, want, s.World.Story())
					}
				}
			}
		})
	}
}

// end describes the cluster at rest, except for names and times.
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
		pods = append(pods, fmt.Sprint(imagesOf(pod), labels, pod.Finalizers, gates))
	}
	slices.Sort(pods)
	status := s.Set().Status
	return fmt.Sprintf("%s\n%d %d %d %s %s", strings.Join(pods, "\n"), status.Replicas, status.AvailableReplicas,
		status.UpdatedReplicas, status.CurrentRevision, status.UpdateRevision)
}
