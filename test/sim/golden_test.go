// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/model"
)

var update = flag.Bool("update", false, "rewrite the golden stories; read every line that changes before you commit it")

// TestGolden plays the classic rollouts and compares their stories with reviewed ones.
func TestGolden(t *testing.T) {
	for _, c := range scenarios(t) {
		t.Run(c.name, func(t *testing.T) {
			golden(t, c.name, c.play(t, Calm()).goldenStory())
		})
	}
}

// golden compares a text with the reviewed one.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), text); diff != "" {
		t.Errorf("the text has changed (-want +got); if it is right, rewrite it with -update:\n%s", diff)
	}
}

// TestLogOfARollout covers what the controller logs at the default level when a set is
// created and rolled out: it is enough to follow the rollout.
func TestLogOfARollout(t *testing.T) {
	var lines strings.Builder
	config := Calm()
	config.Process.Logger = funcr.New(func(_, args string) { lines.WriteString(args + "\n") }, funcr.Options{})
	for _, c := range scenarios(t) {
		if c.name != "update in place with hooks" {
			continue
		}
		golden(t, "log of a rollout", c.play(t, config).numberRevisions(lines.String()))
	}
}

// numberRevisions numbers revisions in the order of their creation.
func (s *Simulation) numberRevisions(text string) string {
	for i, c := range s.Server.Log[model.Revisions] {
		if r, ok := c.New.(*appsv1.ControllerRevision); ok && c.Old == nil {
			text = strings.ReplaceAll(text, revision.Short(r.Name), fmt.Sprintf("r%d", i+1))
		}
	}
	return text
}

// goldenStory is the story without events and plans, with revisions numbered in the
// order of their creation.
func (s *Simulation) goldenStory() string {
	story := s.numberRevisions(s.World.Story())
	var out strings.Builder
	for line := range strings.Lines(story) {
		if !strings.Contains(line, " event ") && !strings.Contains(line, " decides to ") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// TestFrugal counts the cost of a rollout without faults: no write is refused, every
// write changes something, and each Pod costs no more writes than it has to.
func TestFrugal(t *testing.T) {
	for _, c := range scenarios(t) {
		if c.mostWrites == 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			s := c.play(t, Calm())
			from, writes := epoch.Add(c.steps[0].after), 0
			for _, commit := range s.Server.Log[model.Pods] {
				if isProcess(commit.Actor) && !commit.At.Before(from) {
					writes++
				}
			}
			if pods := len(s.Pods()); writes > c.mostWrites*pods {
				t.Errorf("%d writes for %d Pods, at most %d for each are allowed\n%s", writes, pods, c.mostWrites, s.World.Story())
			}
			if story := s.World.Story(); strings.Contains(story, "a write is refused") {
				t.Errorf("writes were refused although nothing goes wrong:\n%s", story)
			}
		})
	}
}

// scenario is a classic rollout: a set, what its user does, and when.
type scenario struct {
	name string
	set  string
	// steps happen in a cluster without faults.
	steps []step
	// mostWrites limits the controller's writes per Pod from the first step on; 0 is
	// not checked.
	mostWrites int
}

type step struct {
	// after is the time since the previous step.
	after time.Duration
	// what happens, in words, and about what a change of the set is.
	what, about string
}

// scenarios are those of testdata/scenarios.txt.
func scenarios(t testing.TB) []scenario {
	var out []scenario
	for _, sc := range scenariotest.Read(t, "testdata/scenarios.txt") {
		c := scenario{name: sc.Name}
		for _, line := range sc.Given {
			kind, about, _ := strings.Cut(line, " ")
			switch kind {
			case "Set:":
				c.set = about
			case "Writes:":
				c.mostWrites = scenariotest.Number(about)
			default:
				what, change, _ := strings.Cut(about, ": ")
				c.steps = append(c.steps, step{scenariotest.Duration(kind), what, cmp.Or(change, what)})
			}
		}
		out = append(out, c)
	}
	return out
}

// play runs a scenario to its end.
func (c scenario) play(t *testing.T, config Config) *Simulation {
	t.Helper()
	s := New(config, NewSet(c.set))
	at := epoch
	for _, step := range c.steps {
		at = at.Add(step.after)
		s.World.runUntil(at)
		if s.World.failure == nil {
			s.happen(step.what, step.about)
		}
	}
	s.settles(t)
	return s
}

// settles lets the cluster settle.
func (s *Simulation) settles(t *testing.T) {
	t.Helper()
	if v := s.Settle(); v != nil {
		t.Fatalf("%s: %v\n%s", s.fault(), v, s.World.Story())
	}
}

// fault describes the fault that a run is to have; 0 is none.
func (s *Simulation) fault() string {
	p := &s.config.Process
	return fmt.Sprintf("crash after write %d, answer %d lost (done: %t)", p.CrashAt, p.LoseAt, p.LoseBlind)
}
