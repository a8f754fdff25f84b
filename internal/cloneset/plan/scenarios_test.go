// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// observe runs the scenarios of files in testdata: a line for the set and for each Pod, and the
// observations. The set has r1 and as many replicas as Pods, unless it says otherwise.
func observe(t *testing.T, files string, what func(t *testing.T, s *Snapshot) []string) {
	t.Helper()
	scenariotest.Run(t, files, func(t *testing.T, lines []string) []string {
		s := empty()
		for _, line := range lines {
			if err := given(s, line); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		return what(t, counted(s))
	})
}

// TestPlans: the plans of passes.
func TestPlans(t *testing.T) {
	observe(t, "testdata/plans/*.txt", func(t *testing.T, s *Snapshot) []string { return render(s, decide(t, s)) })
}

// TestCounts: the counts of the status, which Pods autoscalers count, and the progress of a rollout or a
// deletion.
func TestCounts(t *testing.T) {
	observe(t, "testdata/counts.txt", func(t *testing.T, s *Snapshot) []string {
		c := tally(s)
		lines := []string{fmt.Sprintf("%d of %d available", c.Available, c.Replicas)}
		if at := decide(t, s).RequeueAt; !at.IsZero() {
			lines = append(lines, "again in "+at.Sub(now).String())
		}
		if c.Scaled != c.Replicas || len(c.Uncounted) > 0 {
			lines = append(lines, fmt.Sprintf("autoscalers assume %d, and do not count %v", c.Scaled, c.Uncounted))
		}
		if c.RolledOut {
			lines = append(lines, "rolled out")
		}
		if s.PodInfos = ReadPods(s.Pods, nil); s.AllTerminating() {
			lines = append(lines, "all terminating")
		}
		return lines
	})
}

// TestWaits: the waits of Pods, in words.
func TestWaits(t *testing.T) {
	observe(t, "testdata/waits.txt", func(_ *testing.T, s *Snapshot) []string {
		return list.Map(waiting(s), func(b Blocked) string { return b.String() })
	})
}

// given applies one line of a scenario.
func given(s *Snapshot, line string) error {
	head, about, _ := strings.Cut(line, ": ")
	args := append(strings.Fields(head), "", "")
	switch args[0] {
	case "Set":
		return scenariotest.Say(setWords, s, about)
	case "Pod", "Pods":
		at := slices.IndexFunc(args, func(arg string) bool { return slices.Contains([]string{"r1", "r2", "r3"}, arg) })
		for _, name := range args[1:at] {
			p := pod(name, number(args[at]))
			if in := args[at+1]; in != "" {
				p.Labels[apps.LabelLifecycleState] = in
			}
			s.Pods = append(s.Pods, said(podWords, p, about))
		}
		return nil
	case "PodsOn": // "a1 b2" are p00 on node a1 and p01 on b2
		s.Pods = append(s.Pods, placed(strings.Join(args[1:], " "))...)
		return nil
	case "Instance":
		s.Pods = append(s.Pods, owner(args[1], about))
		return nil
	}
	return givenOther(s, args, about)
}

// givenOther reads lines about objects other than the set and its Pods.
func givenOther(s *Snapshot, args []string, about string) error {
	switch args[0] {
	case "Pull": // "Pull n1 app:2" is its pull Pod, created a minute ago
		s.Pulls.Pods = append(s.Pulls.Pods, said(podWords, pullPod(args[1], args[2]), about))
	case "Node":
		s.Pulls.Listed = map[string][]corev1.ContainerImage{args[1]: {{Names: []string{"x@sha256:1"}}, {Names: strings.Fields(about)}}}
	case "Trial": // "Trial a refused 5s: it says" is the result of the trial of Pod a, which comes last
		return tried(s, args[1], args[2], scenariotest.Duration(args[3]), about)
	case "Rest": // "Rest a r2 5s: it says" is the API server's refusal of the rest of a Pod's update, which stands for 5 s
		pod := list.Find(s.Pods, func(pod **corev1.Pod) bool { return (*pod).Name == args[1] })
		class := classOfRest(*pod, "web-"+args[2])
		s.Trials = map[string]Trial{class: {Refused: about, Pod: args[1], Until: now.Add(scenariotest.Duration(args[3]))}}
	case "Claim":
		s.Claims = append(s.Claims, claim(args[1], args[2], about))
	default:
		return fmt.Errorf("nobody knows what a %s is", args[0])
	}
	return nil
}

// tried records the result of the trial of a Pod that a plan asks for: "taken", "refused" or
// "impossible", with the API server's words; stands is how long it counts.
func tried(s *Snapshot, pod, result string, stands time.Duration, words string) error {
	if s.Trials == nil {
		s.Trials = map[string]Trial{}
	}
	due := list.Find(Make(counted(s)).Trials, func(a *Attempt) bool { return a.Update.Pod.Name == pod })
	if due == nil {
		return fmt.Errorf("no plan asks for a trial of Pod %s", pod)
	}
	t := Trial{Until: now.Add(stands)}
	if result != "taken" {
		t.Refused, t.Impossible, t.Pod, t.Since = words, result == "impossible", pod, now.Add(-time.Minute)
	}
	s.Trials[due.Class] = t
	return nil
}

// placed creates Pods on nodes: "a1 a1 b2" are p00 and p01 on a1 and p02 on b2.
func placed(nodes string, about ...string) []*corev1.Pod {
	var out []*corev1.Pod
	for i, node := range strings.Fields(nodes) {
		out = append(out, pod(fmt.Sprintf("p%02d", i), 1, append([]string{"on " + node}, about...)...))
	}
	return out
}

// render lists the actions and the reports of a plan; "2 ×" stands before equal lines.
func render(s *Snapshot, p Plan) []string {
	lines := fold(list.Map(p.Actions, renderAction))
	for _, b := range waiting(s) {
		if b.Batch != nil {
			lines = append(lines, fmt.Sprintf("%s waits for its containers %s", b.Pod, strings.Join(b.Batch.Containers, ", ")))
			continue
		}
		lines = append(lines, fmt.Sprintf("%s waits at %s for %s", b.Pod, b.Gate, strings.Join(b.Keys, ", ")))
	}
	lines = append(lines, list.Map(p.Trials, func(a Attempt) string { return "try to " + a.Update.String() })...)
	lines = append(lines, renderPulls(p)...)
	if p.ScaleUpLimited > 0 {
		lines = append(lines, fmt.Sprintf("%d more wait", p.ScaleUpLimited))
	}
	lines = append(lines, list.Map(p.PrunePodsToDelete, func(name string) string { return "podsToDelete loses " + name })...)
	lines = append(lines, list.Map(p.Problems, func(p Problem) string { return "problem " + p.Reason + ": " + p.Message })...)
	if p.More {
		lines = append(lines, "again at once")
	}
	if !p.RequeueAt.IsZero() {
		lines = append(lines, "again in "+p.RequeueAt.Sub(now).String())
	}
	if len(lines) == 0 {
		return []string{"nothing"}
	}
	return lines
}

// renderAction also shows what an action writes to a Pod beyond its state and conditions.
func renderAction(a Action) string {
	line := a.String()
	for _, key := range slices.Sorted(maps.Keys(a.Labels)) {
		line += " " + key + "="
		if value := a.Labels[key]; value != nil {
			line += *value
		}
	}
	for _, name := range a.AddFinalizers {
		line += " +" + name
	}
	for _, name := range a.RemoveFinalizers {
		line += " -" + name
	}
	if a.Failures > 0 {
		line += fmt.Sprintf(" after %d failures", a.Failures)
	}
	if a.Because != "" {
		line += " because " + a.Because
	}
	if a.Change == nil {
		return line
	}
	for _, name := range slices.Sorted(maps.Keys(a.Change.Images)) {
		line += " " + name + ": " + a.Change.Images[name]
	}
	for _, name := range slices.Sorted(maps.Keys(a.Change.Resources)) {
		requests := a.Change.Resources[name].Requests
		line += " " + name + ": cpu " + requests.Cpu().String()
	}
	return line
}

// fold writes equal lines once.
func fold(lines []string) []string {
	var out []string
	for i := 0; i < len(lines); {
		n := 1
		for i+n < len(lines) && lines[i+n] == lines[i] {
			n++
		}
		line := lines[i]
		if n > 1 {
			line = fmt.Sprintf("%d × %s", n, line)
		}
		out = append(out, line)
		i += n
	}
	return out
}

// nodeWords describe a node.
var nodeWords = map[string]func(*corev1.Node, string){
	"cordoned": func(n *corev1.Node, _ string) { n.Spec.Unschedulable = true },
	"taint": func(n *corev1.Node, about string) {
		key, effect, _ := strings.Cut(about, " ")
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffect(effect)})
	},
	"condition": func(n *corev1.Node, about string) {
		kind, status, _ := strings.Cut(about, " ")
		n.Status.Conditions = append(n.Status.Conditions,
			corev1.NodeCondition{Type: corev1.NodeConditionType(kind), Status: corev1.ConditionStatus(status)})
	},
}

// TestLeaveNodesTaints: which nodes Pods leave.
func TestLeaveNodesTaints(t *testing.T) {
	scenariotest.Run(t, "testdata/taints.txt", func(_ *testing.T, lines []string) (out []string) {
		node := said(nodeWords, &corev1.Node{}, strings.TrimPrefix(strings.TrimPrefix(lines[0], "Node"), " "))
		for _, leave := range LeaveChoices() {
			for _, taint := range leave.Taints(node) {
				out = append(out, fmt.Sprint(leave, " ", taint.Key))
			}
		}
		return out
	})
}

// statusWords describe a set's status: rN is its update revision, and "reason" has the reason of the
// condition Progressing and how long ago the rollout moved.
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

// TestAssess takes a rollout of ten Pods through all reasons of Progressing.
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
