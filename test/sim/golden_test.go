// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/test/model"
)

var update = flag.Bool("update", false, "rewrite the golden stories; read every line that changes before you commit it")

// TestGolden plays the classic rollouts and compares their stories with reviewed ones.
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
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("the text has changed (-want +got); if it is right, rewrite it with -update:\n%s", diff)
	}
}

// TestLogOfARollout covers what the controller logs at the default level when a set is
// created and rolled out: it is enough to follow the rollout.
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
	set  func() *apps.CloneSet
	// steps happen in a cluster without faults.
	steps []step
	// mostWrites limits the controller's writes per Pod from the first step on; 0 is
	// not checked.
	mostWrites int
}

type step struct {
	// after is the time since the previous step.
	after time.Duration
	do    func(*Simulation)
}

func edit(what string, change func(*apps.CloneSet)) func(*Simulation) {
	return func(s *Simulation) { s.Edit(what, change) }
}

func scaleTo(n int32) func(*Simulation) { return edit("scales", Replicas(n)) }

func partitionAt(n int) func(*Simulation) { return edit("moves the partition", Partition(n)) }

func deletion(how metav1.DeletionPropagation) func(*Simulation) {
	return func(s *Simulation) { s.DeleteSet(how) }
}

// crash ends the controller process; another one takes over.
func crash(s *Simulation) { s.processes[0].crash() }

// removeByHand deletes the first Pod as kubectl does.
func removeByHand(s *Simulation) {
	pod := s.Pods()[0]
	s.World.say("user", "deletes Pod %s", pod.Name)
	_ = s.Server.Delete("user", model.Pods, client.ObjectKeyFromObject(pod), model.Deletion{})
}

func evictOne(s *Simulation) { s.nodes.evict(s.Pods()[0]) }

func inPlace(replicas int32) *Builder {
	return Demo(replicas).Type(apps.UpdateInPlaceIfPossible).Unavailable(intstr.FromInt32(1))
}

var one = intstr.FromInt32(1)

func scenarios() []scenario {
	hooked := func() *apps.CloneSet { return inPlace(3).Hooks(LabelHooks()).Build() }
	claimed := func() *apps.CloneSet { return Demo(2).Unavailable(one).Claims("data").Build() }
	marked := LabelHooks()
	marked.InPlaceUpdate.MarkPodNotReady, marked.PreDelete.MarkPodNotReady = true, true
	return []scenario{
		{name: "create with a preNormal hook", set: hooked},
		{name: "update in place with hooks", set: hooked, mostWrites: 5,
			steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "update in place without hooks", set: func() *apps.CloneSet { return inPlace(3).Build() }, mostWrites: 3,
			steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "update in place with a grace period", set: func() *apps.CloneSet { return inPlace(2).Grace(5).Build() }, mostWrites: 3,
			steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "update in place with hooks that mark not ready", set: func() *apps.CloneSet { return inPlace(2).Hooks(marked).Build() },
			steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "resize in place", set: func() *apps.CloneSet { return inPlace(2).CPU("100m", false).Build() }, mostWrites: 4,
			steps: []step{{time.Minute, edit("asks for cpu 200m", Resize("200m"))}}},
		{name: "resize with a restart and another image", set: func() *apps.CloneSet { return inPlace(2).CPU("100m", true).Build() }, mostWrites: 4,
			steps: []step{{time.Minute, edit("asks for cpu 200m and app:2", func(set *apps.CloneSet) { Resize("200m")(set); Image("app:2")(set) })}}},
		{name: "resize that the node cannot do and back", set: func() *apps.CloneSet { return inPlace(2).CPU("100m", false).Build() },
			steps: []step{{time.Minute, edit("asks for cpu 950m", Resize("950m"))}, {time.Minute, edit("asks for cpu 100m again", Resize("100m"))}}},
		{name: "update by launch priority", set: func() *apps.CloneSet { return inPlace(2).Ordered().Build() }, mostWrites: 4,
			steps: []step{{time.Minute, edit("rolls out app:2 in both", Images("app:2"))}}},
		{name: "roll back between two containers", set: func() *apps.CloneSet { return inPlace(2).Ordered().Build() },
			steps: []step{{time.Minute, edit("rolls out app:2 in both", Images("app:2"))}, {time.Second, edit("rolls back to app:1", Images("app:1"))}}},
		{name: "recreate with surge", set: func() *apps.CloneSet { return Demo(3).Unavailable(zero).Surge(one).Build() }, mostWrites: 5,
			steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "recreate with a preDelete hook", set: func() *apps.CloneSet { return Demo(2).Unavailable(one).Hooks(LabelHooks()).Build() },
			steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "scale in with a preDelete hook", set: hooked, steps: []step{{time.Minute, scaleTo(1)}}},
		{name: "scale in and take it back", set: hooked, steps: []step{{time.Minute, scaleTo(1)}, {200 * time.Millisecond, scaleTo(3)}}},
		{name: "roll back in mid-update", set: hooked, steps: []step{
			{time.Minute, edit("rolls out app:2", Image("app:2"))}, {2 * time.Second, edit("rolls back to app:1", Image("app:1"))}}},
		{name: "roll back while a Pod waits at its gate", set: hooked, steps: []step{
			{time.Minute, edit("rolls out app:2", Image("app:2"))}, {200 * time.Millisecond, edit("rolls back to app:1", Image("app:1"))}}},
		{name: "canary by partition", set: func() *apps.CloneSet { return inPlace(3).Build() }, steps: []step{
			{time.Minute, edit("rolls out app:2 to one Pod", func(set *apps.CloneSet) { Image("app:2")(set); Partition(2)(set) })},
			{time.Minute, scaleTo(4)}, {time.Minute, partitionAt(0)}}},
		{name: "cordon a node", mostWrites: 5, set: func() *apps.CloneSet {
			return Demo(4).Unavailable(zero).Surge(two).Hooks(LabelHooks()).Build()
		}, steps: []step{{time.Minute, func(s *Simulation) { s.nodes.cordon(1, true) }}}},
		{name: "take a Pod out by its labels", set: hooked, steps: []step{{time.Minute, func(s *Simulation) {
			s.changePod(s.Pods()[0], func(pod *corev1.Pod) { pod.Labels["app"] = "apart" })
		}}}},
		{name: "claims that are reused and claims that go", set: claimed, steps: []step{
			{time.Minute, removeByHand}, {time.Minute, scaleTo(1)}, {time.Minute, scaleTo(2)}, {time.Minute, evictOne}}},
		{name: "claims and a recreate", set: claimed, steps: []step{{time.Minute, edit("rolls out app:2", Image("app:2"))}}},
		{name: "delete the set with a preDelete hook", set: hooked, steps: []step{
			{time.Minute, deletion(metav1.DeletePropagationBackground)}, {300 * time.Millisecond, crash}}},
		{name: "delete the set without its Pods after all", set: hooked, steps: []step{
			{time.Minute, deletion(metav1.DeletePropagationBackground)}, {200 * time.Millisecond, deletion(metav1.DeletePropagationOrphan)}}},
		{name: "crash in mid-update", set: hooked, steps: []step{
			{time.Minute, edit("rolls out app:2", Image("app:2"))}, {1300 * time.Millisecond, crash}}},
	}
}

// steady is a cluster without faults in which everything always takes the same time, so
// that a story changes only if somebody's behaviour changes.
func steady() Config {
	config := Calm()
	config.Steady = true
	return config
}

// play runs a scenario to its end.
func (c scenario) play(config Config) (*Simulation, *Violation) {
	s := New(config, c.set())
	at := epoch
	for _, step := range c.steps {
		at = at.Add(step.after)
		s.World.runUntil(at)
		if s.World.failure == nil {
			step.do(s)
		}
	}
	return s, s.Settle()
}
