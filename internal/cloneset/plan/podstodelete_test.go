// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"testing"
)

// TestPrunePodsToDelete: names of Pods that are terminating or gone are finished, those of waiting
// Pods are not, and a name that never was a Pod's is reported.
func TestPrunePodsToDelete(t *testing.T) {
	hooked := hooks(preDelete())
	for _, test := range []struct {
		name    string
		s       *Snapshot
		prune   []string
		unknown string
	}{
		{"nothing named", snap(1, with(pod("a", 1))), nil, ""},
		{"deleted in this pass", snap(1, named("a"), with(pod("a", 1))), []string{"a"}, ""},
		{"on its way out", snap(1, named("a"), with(pod("a", 1, terminating))), []string{"a"}, ""},
		{"held by its hook", snap(1, named("a"), hooked, with(pod("a", 1, finalizers(keyDelete)))), nil, ""},
		{"waits for the budget", snap(2, named("a", "b"), maxUnavailable(1), with(pods(1, "a", "b")...)), []string{"a"}, ""},
		{"gone", snap(1, named("web-abcde", "web-abcde"), with(pod("a", 1))), []string{"web-abcde"}, ""},
		{"never there", snap(1, named("db-abcde", "web-abc", "web-ab-de", "web-abcde"), with(pod("a", 1))), []string{"web-abcde"}, "db-abcde, web-ab-de, web-abc"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := decide(t, test.s)
			if !slices.Equal(p.PrunePodsToDelete, test.prune) {
				t.Errorf("PrunePodsToDelete = %v, want %v", p.PrunePodsToDelete, test.prune)
			}
			reported := len(p.Problems) == 1 && p.Problems[0].Reason == ProblemNoSuchPod && strings.Contains(p.Problems[0].Message, test.unknown)
			if reported != (test.unknown != "") {
				t.Errorf("problems = %v, want %q to be reported", p.Problems, test.unknown)
			}
		})
	}
}
