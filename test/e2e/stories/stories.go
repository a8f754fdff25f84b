// SPDX-License-Identifier: Apache-2.0

// Package stories defines what happens to CloneSets on a real node.
package stories

import (
	"fmt"
	"slices"

	"github.com/usher-dev/usher/test/e2e"
	"github.com/usher-dev/usher/test/stage"
)

// All returns the stories in the order of the report.
func All() []e2e.Story {
	return slices.Concat(seeds, joining, updates, containers, failures, bypasses, forced, guarded, registries, outages, nodes)
}

// want ends the story if a condition is false.
func want(s *e2e.Scene, ok bool, format string, args ...any) {
	if !ok {
		s.Fatalf("want "+format, args...)
	}
}

// wantVersion ends the story if a Pod runs another version.
func wantVersion(s *e2e.Scene, now e2e.State, version string) {
	for _, pod := range now.Pods {
		want(s, stage.Version(&pod) == version, "%s to run %s, not %s", pod.Name, version, stage.Version(&pod))
	}
}

// wantSame ends the story if a Pod is not the same, with the same address.
func wantSame(s *e2e.Scene, before, after e2e.State) {
	want(s, names(after) == names(before), "the same Pods %s, not %s", names(before), names(after))
	for _, pod := range after.Pods {
		old := before.Pod(pod.Name)
		want(s, pod.UID == old.UID && pod.Status.PodIP == old.Status.PodIP, "%s with its UID and address", pod.Name)
	}
}

// wantSamePods is wantSame, and the Pods' containers have restarted that often.
func wantSamePods(s *e2e.Scene, before, after e2e.State, restarts int) {
	wantSame(s, before, after)
	for _, pod := range after.Pods {
		old := before.Pod(pod.Name)
		more := stage.Restarts(&pod) - stage.Restarts(old)
		want(s, more == restarts, "%d restarts of %s, not %d", restarts, pod.Name, more)
	}
}

// names lists the Pods' names.
func names(now e2e.State) string {
	list := []string{}
	for _, pod := range now.Pods {
		list = append(list, pod.Name)
	}
	return fmt.Sprint(list)
}

// serving counts the Pods that are ready and run a version.
func serving(now e2e.State, version string) int {
	n := 0
	for _, pod := range now.Pods {
		if stage.Ready(&pod) && stage.Version(&pod) == version {
			n++
		}
	}
	return n
}

// settleAt scales to one number of Pods after the other.
func settleAt(s *e2e.Scene, pods ...int) {
	for _, n := range pods {
		s.Scale(n)
		s.Settle()
	}
}

// update updates all Pods to a version.
func update(s *e2e.Scene, version string) {
	s.Image(version)
	wantVersion(s, s.Settle(), version)
}

// updateInPlace updates all Pods to v2 with one restart.
func updateInPlace(s *e2e.Scene) {
	before := s.State()
	update(s, "v2")
	wantSamePods(s, before, s.State(), 1)
}

// midway opens a story and returns, with the state before, when some Pods serve v2 and
// others do not yet.
func midway(s *e2e.Scene, documents ...string) (before e2e.State) {
	s.Open(documents...)
	before = s.State()
	s.Image("v2")
	awaitMidway(s)
	return before
}

// awaitMidway waits until some Pods serve v2 and others do not yet.
func awaitMidway(s *e2e.Scene) {
	s.Step("midway to v2")
	s.Await("the rollout to be under way", func(now e2e.State) string {
		if done := serving(now, "v2"); done == 0 || done == len(now.Pods) {
			return fmt.Sprintf("%d of %d Pods serve v2", done, len(now.Pods))
		}
		return ""
	})
}
