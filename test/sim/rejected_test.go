// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/test/model"
)

// TestRejectedPods: while kubelets reject all Pods of a set, the set creates Pods with a growing
// back-off, also if the process ends meanwhile. One failed Pod stays, and the status says why. Once
// Pods are admitted, the next attempt succeeds.
func TestRejectedPods(t *testing.T) {
	for _, about := range []string{"replicas 3", "replicas 3; inPlace; hooks finalizer", "replicas 3; claims data"} {
		for _, crash := range []int{0, 40} {
			t.Run(strings.Join([]string{about, map[bool]string{true: "and a crash"}[crash > 0]}, " "), func(t *testing.T) {
				config := Calm()
				config.Process.CrashAt = crash
				s := New(config, NewSet(about))
				s.nodes.rejecting = map[string]bool{}
				for node := range max(config.Nodes.Nodes, 1) {
					s.nodes.rejecting[nodeName(node)] = true
				}
				for at := epoch; at.Before(epoch.Add(5*time.Minute)) && s.made() <= 3*10; at = at.Add(time.Second) {
					s.World.runUntil(at)
				}
				if s.World.failure != nil {
					t.Fatalf("%v\n%s", s.World.failure, s.World.Story())
				}
				// 1 + 2 + 4 + … + 256 seconds are more than five minutes; a process that did not know
				// of earlier failures would begin with one second again.
				if made := s.made(); made < 3*6 || made > 3*10 {
					t.Fatalf("%d Pods were created in %s, want 18 to 30 in five minutes", made, s.World.now().Sub(epoch))
				}
				s.checkRejected(t)
				s.settles(t)
			})
		}
	}
}

// made counts the Pods that the controller has created.
func (s *Simulation) made() (count int) {
	for _, c := range s.Server.Log[model.Pods] {
		if c.Old == nil && isProcess(c.Actor) {
			count++
		}
	}
	return count
}

// checkRejected checks, between two attempts, that one failed Pod remains and that the status has the
// reason.
func (s *Simulation) checkRejected(t *testing.T) {
	t.Helper()
	failed := slices.DeleteFunc(s.Pods(), func(pod *corev1.Pod) bool { return pod.Status.Phase != corev1.PodFailed })
	checktest.Same(t, "failed Pods that are there", 1, len(failed))
	for _, kind := range []apps.CloneSetConditionType{apps.ConditionFailedScale, apps.ConditionBlocked} {
		c := s.Set().Status.Condition(kind)
		if c == nil || c.Reason != plan.ProblemPodsFail || !strings.Contains(c.Message, "UnexpectedAdmissionError: Pod was rejected: Allocate failed") {
			t.Errorf("condition %s: %+v", kind, c)
		}
	}
}
