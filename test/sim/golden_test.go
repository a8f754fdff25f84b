// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/usher-dev/usher/internal/cloneset/revision"
)

var update = flag.Bool("update", false, "write the golden stories anew; read every line that changes before you commit it")

// TestGolden plays the classic rollouts and compares their stories with those
// that somebody has read and found right.
func TestGolden(t *testing.T) {
	for _, c := range scenarios() {
		t.Run(c.name, func(t *testing.T) {
			s, v := c.play(steady())
			story := s.goldenStory()
			if v != nil {
				t.Fatalf("%v\n%s", v, story)
			}
			golden(t, c.name, story)
		})
	}
}

// golden compares a text with the one that somebody has read and found right.
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
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("the text has changed (-want +got); if it is right, write it anew with -update:\n%s", diff)
	}
}

// TestLogOfARollout: what the controller logs, at the default level, of a set that is
// made and rolled out, which is enough to follow it.
func TestLogOfARollout(t *testing.T) {
	var lines strings.Builder
	config := steady()
	config.Process.Logger = funcr.New(func(_, args string) { lines.WriteString(args + "\n") }, funcr.Options{})
	for _, c := range scenarios() {
		if c.name != "update in place with hooks" {
			continue
		}
		s, v := c.play(config)
		if v != nil {
			t.Fatalf("%v\n%s", v, s.World.Story())
		}
		golden(t, "log of a rollout", s.numberRevisions(lines.String()))
	}
}

// numberRevisions names revisions by the order in which they were made.
func (s *Simulation) numberRevisions(text string) string {
	for i, c := range s.Server.log[Revisions] {
		if r, ok := c.New.(*appsv1.ControllerRevision); ok && c.Old == nil {
			text = strings.ReplaceAll(text, revision.Short(r.Name), fmt.Sprintf("r%d", i+1))
		}
	}
	return text
}

// goldenStory is the story without events and plans, with revisions numbered in
// the order in which they were made.
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

// TestFrugal counts what a rollout costs where nothing goes wrong: no write is
// refused, none changes nothing, and each Pod costs no more than it has to.
func TestFrugal(t *testing.T) {
	for _, c := range scenarios() {
		if c.mostWrites == 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			s, v := c.play(steady())
			if v != nil {
				t.Fatalf("%v\n%s", v, s.World.Story())
			}
			from, writes := epoch.Add(c.steps[0].after), 0
			for _, commit := range s.Server.log[Pods] {
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
