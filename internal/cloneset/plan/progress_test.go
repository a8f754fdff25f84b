// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"testing"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// statusWords are what can be said about a set's status: rN is its update revision, "reason" of
// which condition Progressing it has, and how long ago the rollout moved.
var statusWords = map[string]func(*apps.CloneSetStatus, string){
	"r0":       func(s *apps.CloneSetStatus, _ string) { s.UpdateRevision = "" },
	"r1":       func(s *apps.CloneSetStatus, _ string) { s.UpdateRevision = "r1" },
	"r2":       func(s *apps.CloneSetStatus, _ string) { s.UpdateRevision = "r2" },
	"pods":     func(s *apps.CloneSetStatus, n string) { s.Replicas = int32(scenariotest.Number(n)) },
	"expected": func(s *apps.CloneSetStatus, n string) { s.ExpectedUpdatedReplicas = int32(scenariotest.Number(n)) },
	"updated":  func(s *apps.CloneSetStatus, n string) { s.UpdatedReplicas = int32(scenariotest.Number(n)) },
	"available": func(s *apps.CloneSetStatus, n string) {
		s.UpdatedReadyReplicas, s.UpdatedAvailableReplicas = int32(scenariotest.Number(n)), int32(scenariotest.Number(n))
	},
	"reason": func(s *apps.CloneSetStatus, value string) {
		reason, since, _ := strings.Cut(value, " ")
		s.Conditions = []apps.CloneSetCondition{{
			Type: apps.ConditionProgressing, Reason: reason, LastUpdateTime: ago(scenariotest.Duration(since)),
		}}
	},
}

// TestAssess leads a rollout of ten Pods through its reasons.
func TestAssess(t *testing.T) {
	scenariotest.Run(t, "testdata/progress.txt", func(_ *testing.T, lines []string) []string {
		s, was, is := empty(), &apps.CloneSetStatus{}, &apps.CloneSetStatus{}
		for _, line := range lines {
			head, about, _ := strings.Cut(line, ": ")
			switch head {
			case "Set":
				said(setWords, s, about)
			case "Was":
				said(statusWords, was, about)
			case "Is":
				said(statusWords, is, about)
			}
		}
		got := Assess(s, was, is)
		if got == (Progress{}) {
			return nil
		}
		line := fmt.Sprintf("%s since %s", got.Reason, now.Sub(got.Since))
		if !got.Deadline.IsZero() {
			line += fmt.Sprintf(" until %s", got.Deadline.Sub(now))
		}
		return []string{line}
	})
}
