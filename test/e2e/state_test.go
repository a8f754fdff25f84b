// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
)

// stateOf reads testdata/NAME.yaml.
func stateOf(t *testing.T, name string) (state State) {
	t.Helper()
	text := checktest.Must(os.ReadFile("testdata/" + name + ".yaml"))(t)
	checktest.NoError(t, yaml.UnmarshalStrict(text, &state))
	return state
}

func TestUnsettled(t *testing.T) {
	cases := map[string]struct {
		change func(*State)
		want   string
	}{
		"nothing":             {func(*State) {}, ""},
		"no set":              {func(s *State) { s.Set = nil }, "the set is not there"},
		"an old set":          {func(s *State) { s.Set.Generation = 2 }, "last change"},
		"an old status":       {func(s *State) { s.Set.Status.ObservedGeneration = 2 }, "last change"},
		"too few Pods":        {func(s *State) { s.Pods = s.Pods[:1] }, "1 Pods, want 2"},
		"a Pod that goes":     {func(s *State) { s.Pods[1].DeletionTimestamp = &metav1.Time{} }, "b is being deleted"},
		"a Pod at a gate":     {func(s *State) { s.Pods[0].Labels[appsv1alpha1.LabelLifecycleState] = "Updated" }, "a is Updated"},
		"a Pod not ready":     {func(s *State) { s.Pods[0].Status.Conditions = nil }, "a is not ready"},
		"not all available":   {func(s *State) { s.Set.Status.AvailableReplicas = 1 }, "1 available"},
		"not all updated":     {func(s *State) { s.Set.Status.UpdatedAvailableReplicas = 1 }, "1 updated"},
		"a partition is kept": {func(s *State) { s.Set.Status.UpdatedAvailableReplicas, s.Set.Status.ExpectedUpdatedReplicas = 1, 1 }, ""},
		"no Registration":     {func(s *State) { s.Registration = nil }, "the Registration is not there"},
		"not all registered":  {func(s *State) { s.Registration.Status.Registered = 1 }, "1 Pods are registered"},
		"one drains":          {func(s *State) { s.Registration.Status.Draining = 1 }, "1 drain"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			state := stateOf(t, "settled")
			c.change(&state)
			got := state.Unsettled(3)
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Every step of every story can be played.
func TestStories(t *testing.T) {
	stories, err := Stories()
	if err != nil || len(stories) < 43 {
		t.Errorf("%d stories, %v", len(stories), err)
	}
	for _, wrong := range []string{"dance", "want joy", "await 3 registered", "hold 5s the same Pods and joy"} {
		if _, err := parse("open\n" + wrong + "\n"); err == nil {
			t.Errorf("a story can %q", wrong)
		}
	}
}

// A story that fails says at which step.
func TestFailure(t *testing.T) {
	steps := checktest.Must(parse("pause 1ms\npause long\n"))(t)
	scene := &Scene{ctx: t.Context(), story: Story{steps: steps}}
	if err := scene.perform(); err == nil || !strings.HasPrefix(err.Error(), "pause long: ") {
		t.Errorf("it fails with %v", err)
	}
}

// The first facts are not true of two Pods, and true when others run v2; of the second ones
// it is the other way round.
func TestFacts(t *testing.T) {
	settled, later := stateOf(t, "settled"), stateOf(t, "later")
	s := &Scene{before: settled, noted: settled}
	for i, facts := range [][]string{
		{
			"all run v2", "a gone", "a replaced", "Pods on node-2", "2 Pods that serve v2", "at least 3 registered",
			"Blocked=True, Stuck: main", "at least 2 registered and a gone",
		},
		{
			"v2 in side alone", "the same names", "the same Pods", "the same Pods, restarted 0 times", "at most 2 registered",
			"at most 1 restarted since noted", "at most 1 more than noted that serve v2",
		},
	} {
		for _, text := range facts {
			wrong := checktest.Must(look(text))(t)
			if now, then := wrong(s, settled), wrong(s, later); (now == "") != (i == 1) || (then == "") != (i == 0) {
				t.Errorf("%s: %q, and later %q", text, now, then)
			}
		}
	}
}
