// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"os"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// stateOf returns testdata/NAME.yaml after a JSON patch.
func stateOf(t *testing.T, name, patch string) (state State) {
	t.Helper()
	document := checktest.Must(yaml.YAMLToJSON(checktest.Must(os.ReadFile("testdata/" + name + ".yaml"))(t)))(t)
	changes := checktest.Must(jsonpatch.DecodePatch(checktest.Must(yaml.YAMLToJSON([]byte(patch)))(t)))(t)
	checktest.NoError(t, yaml.UnmarshalStrict(checktest.Must(changes.Apply(document))(t), &state))
	return state
}

func TestUnsettled(t *testing.T) {
	scenariotest.Run(t, "testdata/unsettled.txt", func(t *testing.T, patch []string) []string {
		return []string{cmp.Or(stateOf(t, "settled", strings.Join(patch, "\n")).Unsettled(3), "nothing")}
	})
}

// Every step of every story can be played.
func TestStories(t *testing.T) {
	stories, err := Stories()
	if err != nil || len(stories) < 43 {
		t.Errorf("%d stories, %v", len(stories), err)
	}
	for _, wrong := range []string{"dance", "want joy", "await 3 registered", "hold 5s the same Pods and joy"} {
		if _, err := parse("open\n"+wrong+"\n", 1); err == nil {
			t.Errorf("a story can %q", wrong)
		}
	}
}

// Every fact is used by a story, and what a story says is one fact alone.
func TestFactsAreUsed(t *testing.T) {
	used := map[string]bool{}
	for _, story := range checktest.Must(Stories())(t) {
		for _, text := range said(story) {
			fits := list.Only(facts, func(f fact) bool { return f.pattern().MatchString(text) })
			if len(fits) != 1 {
				t.Errorf("story %s says %q, which %d facts fit", story.Name, text, len(fits))
			}
			for _, f := range fits {
				used[f.Name] = true
			}
		}
	}
	for _, f := range facts {
		if !used[f.Name] {
			t.Errorf("no story wants, awaits or holds %q: take it out, or write a story with it", f.Name)
		}
	}
}

// said are the facts that a story wants, awaits or holds.
func said(story Story) (all []string) {
	for _, s := range story.steps {
		about := s.about
		switch s.verb.Name {
		case "hold":
			_, about, _ = strings.Cut(about, " ")
		case "want", "await":
		default:
			continue
		}
		all = append(all, strings.Split(about, " and ")...)
	}
	return all
}

// A story that fails names the step.
func TestFailure(t *testing.T) {
	steps := checktest.Must(parse("pause 1ms\npause long\n", 7))(t)
	scene := &Scene{ctx: t.Context(), story: Story{steps: steps}}
	if err := scene.perform(); err == nil || !strings.HasPrefix(err.Error(), "test/e2e/stories.yaml:8: pause long: ") {
		t.Errorf("it fails with %v", err)
	}
}

// The first facts are false for two Pods and true when others run v2; the second facts are the
// opposite.
func TestFacts(t *testing.T) {
	settled, later := stateOf(t, "settled", "[]"), stateOf(t, "later", "[]")
	s := &Scene{before: settled, noted: settled}
	for i, facts := range [][]string{
		{
			"all run v2", "a gone", "a replaced", "Pods on node-2", "2 Pods that serve v2", "at least 3 registered",
			`CloneSet status: {conditions: [{type: Blocked, status: "True", reason: Stuck, message: "...main..."}]}`,
			`every Pod status: {containerStatuses: [{image: "...:v2"}]}`, "a Pod spec: {nodeName: node-2}", "Pod/c spec: {nodeName: node-2}",
			"Registration status: {registered: 3}", "at least 2 registered and a gone",
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
