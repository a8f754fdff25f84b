// SPDX-License-Identifier: Apache-2.0

// Package stories is what happens to CloneSets on a real node.
package stories

import (
	"fmt"

	"github.com/usher-dev/usher/devcluster/e2e"
)

// All are the stories in the order of the report.
func All() []e2e.Story {
	return []e2e.Story{
		inPlaceImage(),
		recreate(),
		scaleIn(),
		consul(),
		haproxy(),
		preNormal(),
		sidecars(),
		claims(),
		forced(),
		forcedSleep(),
		registryDown(),
		apiServerDown(),
		usherUpgraded(),
		usherLeaderless(),
		kubeletRestart(),
		nodeLost(),
	}
}

// want ends the story if what it sees is not so.
func want(s *e2e.Scene, ok bool, format string, args ...any) {
	if !ok {
		s.Fatalf("want "+format, args...)
	}
}

// allRun waits for nothing: it checks that every Pod runs a version.
func allRun(s *e2e.Scene, now e2e.State, version string) {
	for _, pod := range now.Pods {
		if have := e2e.Version(&pod); have != version {
			s.Fatalf("%s runs %s, want %s", pod.Name, have, version)
		}
	}
}

// names are those of the Pods.
func names(now e2e.State) string {
	list := []string{}
	for _, pod := range now.Pods {
		list = append(list, pod.Name)
	}
	return fmt.Sprint(list)
}

// sameAfterRestarts checks that the Pods are those that there were, each with so
// many restarts more.
func sameAfterRestarts(s *e2e.Scene, before, after e2e.State, restarts int32) {
	want(s, names(after) == names(before), "the same Pods %s, not %s", names(before), names(after))
	for _, pod := range after.Pods {
		old := before.Pod(pod.Name)
		want(s, pod.UID == old.UID && pod.Status.PodIP == old.Status.PodIP, "%s with the same UID and address", pod.Name)
		more := e2e.Restarts(&pod) - e2e.Restarts(old)
		want(s, more == restarts, "%d restarts of %s, not %d", restarts, pod.Name, more)
	}
}

// answered checks that callers were answered by each of the versions, and waits
// for the first answer of the last one.
func answered(s *e2e.Scene, versions ...string) {
	s.Await("answers of "+versions[len(versions)-1], func(e2e.State) string {
		if s.Stats().Versions[versions[len(versions)-1]] == 0 {
			return "there is none"
		}
		return ""
	})
	have := s.Stats().Versions
	for _, version := range versions {
		want(s, have[version] > 0, "answers of %s, have %v", version, have)
	}
}
