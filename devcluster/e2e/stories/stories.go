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
