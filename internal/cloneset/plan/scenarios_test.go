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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// observe runs the scenarios of files in testdata: a line for the set and for each Pod, and
// what is observed. The set has r1 and as many replicas as Pods, unless it says otherwise.
func observe(t *testing.T, files string, what func(t *testing.T, s *Snapshot) []string) {
	t.Helper()
	scenariotest.Run(t, files, func(t *testing.T, lines []string) []string {
		s := snap(-1)
		for _, line := range lines {
			if err := given(s, line); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		if s.Spec.Replicas < 0 { // as many as Pods, or a few less
			s.Spec.Replicas += len(s.Pods) + 1
		}
		slices.SortFunc(s.Pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
		return what(t, s)
	})
}

// TestPlans: what a pass plans.
func TestPlans(t *testing.T) {
	observe(t, "testdata/plans/*.txt", func(t *testing.T, s *Snapshot) []string { return render(s, decide(t, s)) })
}

// TestCounts: how many Pods are available, and how far the set has come.
func TestCounts(t *testing.T) {
	observe(t, "testdata/counts.txt", func(t *testing.T, s *Snapshot) []string {
		c := tally(s)
		lines := []string{fmt.Sprintf("%d of %d available", c.Available, c.Replicas)}
		if at := decide(t, s).RequeueAt; !at.IsZero() {
			lines = append(lines, "again in "+at.Sub(now).String())
		}
		if c.RolledOut {
			lines = append(lines, "rolled out")
		}
		if s.PodInfos = ReadPods(s.Pods, nil); s.Departed() {
			lines = append(lines, "departed")
		}
		return lines
	})
}

// TestWaits: for what Pods wait, in words.
func TestWaits(t *testing.T) {
	observe(t, "testdata/waits.txt", func(_ *testing.T, s *Snapshot) []string {
		var lines []string
		for _, b := range waiting(s) {
			lines = append(lines, b.String())
		}
		return lines
	})
}

// given makes one line of a scenario true.
func given(s *Snapshot, line string) error {
	head, about, _ := strings.Cut(line, ": ")
	args := append(strings.Fields(head), "", "")
	switch args[0] {
	case "Set":
		return scenariotest.Say(setWords, s, about)
	case "Pod":
		return givenPod(s, args[1], args[2], args[3], about)
	case "Pods":
		at := slices.IndexFunc(args, func(arg string) bool { return arg == "r1" || arg == "r2" })
		for _, name := range args[1:at] {
			if err := givenPod(s, name, args[at], args[at+1], about); err != nil {
				return err
			}
		}
		return nil
	case "PodsOn": // "a1 b2" are p00 on node a1 and p01 on b2
		for i, node := range strings.Fields(line)[1:] {
			with(pod(fmt.Sprintf("p%02d", i), 1, on(node)))(s)
		}
		return nil
	case "Instance":
		p := owner(args[1])
		with(p)(s)
		return scenariotest.Say(podWords, p, about)
	case "Claim":
		c := claim(args[1], args[2])
		withClaims(c)(s)
		return scenariotest.Say(claimWords, c, about)
	}
	return fmt.Errorf("nobody knows what a %s is", args[0])
}

func givenPod(s *Snapshot, name, revision, in, about string) error {
	p := pod(name, scenariotest.Number(revision[1:]))
	if in != "" {
		state(apps.LifecycleState(in))(p)
	}
	with(p)(s)
	return scenariotest.Say(podWords, p, about)
}

// setWords are what can be said about a set.
var setWords = map[string]func(s *Snapshot, value string){
	"replicas":            func(s *Snapshot, value string) { s.Spec.Replicas = scenariotest.Number(value) },
	"goes":                func(s *Snapshot, value string) { s.Spec.Replicas = -1 - scenariotest.Number(value) },
	"InPlaceIfPossible":   func(s *Snapshot, _ string) { s.Spec.Method = InPlaceIfPossible },
	"InPlaceOnly":         func(s *Snapshot, _ string) { s.Spec.Method = InPlaceOnly },
	"OnDelete":            func(s *Snapshot, _ string) { s.Spec.Method = OnDelete },
	"partition":           func(s *Snapshot, value string) { s.Spec.Partition = countOf(value) },
	"maxUnavailable":      func(s *Snapshot, value string) { s.Spec.MaxUnavailable = countOf(value) },
	"maxSurge":            func(s *Snapshot, value string) { s.Spec.MaxSurge = countOf(value) },
	"scaleMaxUnavailable": func(s *Snapshot, value string) { s.Spec.ScaleMaxUnavailable = new(countOf(value)) },
	"grace":               func(s *Snapshot, value string) { s.Spec.Grace = scenariotest.Duration(value) },
	"minReady":            func(s *Snapshot, value string) { s.Spec.MinReady = scenariotest.Duration(value) },
	"named":               func(s *Snapshot, value string) { s.Spec.PodsToDelete = strings.Fields(value) },
	"starts":              func(s *Snapshot, value string) { s.Starts = scenariotest.Number(value) },
	"paused":              func(s *Snapshot, _ string) { paused(s) },
	"refused":             func(s *Snapshot, _ string) { refused(s) },
	"deleting":            func(s *Snapshot, value string) { s.Deletion = Deletion(value) },
	"deferredBefore":      func(s *Snapshot, value string) { deferred(0, strings.Fields(value)...)(s) },
	"deferred":            func(s *Snapshot, value string) { deferred(time.Second, strings.Fields(value)...)(s) },
	"drained":             func(s *Snapshot, value string) { drained(s, strings.Fields(value)) },
	"noResize":            func(s *Snapshot, _ string) { s.NoResize = true },
	"excludePreparing":    func(s *Snapshot, _ string) { s.ExcludePreparingDelete = true },
	"templates":           func(s *Snapshot, value string) { s.Spec.ClaimTemplates = strings.Fields(value) },
	"claims":              func(s *Snapshot, value string) { claims(strings.Fields(value)...)(s) },
	"noReuse":             func(s *Snapshot, _ string) { s.Spec.DisableClaimReuse = true },
	"deleted":             func(s *Snapshot, value string) { deletedInstance(value)(s) },
	"released":            func(s *Snapshot, value string) { releasedInstance(value)(s) },
	"claimsRefused":       func(s *Snapshot, _ string) { claimsRefused(s) },
	"hooks":               func(s *Snapshot, value string) { s.Spec.Hooks = hookSets()[value] },
	"orderKeys":           func(s *Snapshot, value string) { s.Spec.Priority.OrderKeys = strings.Fields(value) },
	"cordoned":            func(s *Snapshot, value string) { cordoned(strings.Fields(value)...)(s) },
	"matchLabelKeys":      func(s *Snapshot, value string) { s.Spec.Spread[0].MatchLabelKeys = strings.Fields(value) },
	"spreadSelector":      func(s *Snapshot, value string) { s.Spec.Spread[0].Selector = selectorOf(value) },
	"spread": func(s *Snapshot, value string) {
		zones(s)
		spread(strings.Fields(value)...)(s)
	},
	"scatter": func(s *Snapshot, value string) {
		key, value, _ := strings.Cut(value, "=")
		s.Spec.Scatter = []ScatterTerm{{Key: key, Value: value}}
	},
	// weights are such as "class=gold 10, class=silver 5".
	"weights": func(s *Snapshot, value string) {
		for term := range strings.SplitSeq(value, ", ") {
			selector, weight, _ := strings.Cut(term, " ")
			s.Spec.Priority.Weights = append(s.Spec.Priority.Weights, WeightTerm{Weight: scenariotest.Number(weight), Selector: selectorOf(selector)})
		}
	},
	"tainted": func(s *Snapshot, value string) {
		node, key, _ := strings.Cut(value, " ")
		s.GoingNodes[node] = []corev1.Taint{{Key: key}}
	},
	"r1": func(s *Snapshot, value string) { roll(s, 1, value) },
	"r2": func(s *Snapshot, value string) { roll(s, 2, value) },
	"r3": func(s *Snapshot, value string) { roll(s, 3, value) },
	// current is the update revision, as after a rollout.
	"current": func(s *Snapshot, _ string) { s.Current = s.Update },
	// unreadable and unknown are the revision r1.
	"unreadable": func(s *Snapshot, _ string) { s.Revisions["r1"] = &revision.Revision{Name: "web-r1", Number: 1} },
	"unknown":    func(s *Snapshot, _ string) { delete(s.Revisions, "r1") },
}

// drained makes Pods leave their endpoints some time ago, as in "a 5s b 6s".
func drained(s *Snapshot, words []string) {
	s.Drained = map[types.UID]time.Time{}
	for pair := range slices.Chunk(words, 2) {
		s.Drained[types.UID("uid-"+pair[0])] = now.Add(-scenariotest.Duration(pair[1]))
	}
}

// hookSets are the hooks of a set, by what they ask for and whether they mark Pods.
func hookSets() map[string]lifecycle.Hooks {
	return map[string]lifecycle.Hooks{
		"all": gates(false), "all, marking": gates(true), "preDelete": preDelete(), "inPlaceUpdate": updateGate(),
		"inPlaceUpdate, marking": {InPlaceUpdate: gates(true).InPlaceUpdate},
		"shared keys": {
			PreNormal:     lifecycle.Hook{Labels: map[string]string{"ready": "yes", "extra": "yes"}, Finalizers: []string{"shared/f", keyNormal}},
			InPlaceUpdate: lifecycle.Hook{Finalizers: []string{"shared/f", keyUpdate}},
			PreDelete:     lifecycle.Hook{Labels: map[string]string{"ready": "yes", "listed": "yes"}, Finalizers: []string{keyDelete, keyUpdate}, MarkNotReady: true},
		},
	}
}

// roll makes rN the update revision, with changes to its template such as "cpu 200m, image app:1".
func roll(s *Snapshot, n int, changes string) {
	var edits []func(map[string]any)
	for change := range strings.SplitSeq(changes, ", ") {
		name, value, _ := strings.Cut(change, " ")
		switch name {
		case "env":
			edits = append(edits, newEnv)
		case "label":
			edits = append(edits, onlyLabel)
		case "image":
			edits = append(edits, withImage(value))
		case "cpu":
			edits = append(edits, withCPU(value))
		case "readyLabel":
			edits = append(edits, func(template map[string]any) { labelsOf(template)["ready"] = value })
		case "base":
			edits = append(edits, withBase(scenariotest.Number(value)))
		case "unreadablePriority":
			edits = append(edits, func(template map[string]any) {
				base := template["spec"].(map[string]any)["containers"].([]any)[1].(map[string]any)
				base["env"].([]any)[0].(map[string]any)["value"] = "first"
			})
		case "node":
			edits = append(edits, func(template map[string]any) { template["spec"].(map[string]any)["nodeName"] = value })
		case "guaranteed":
			edits = append(edits, func(template map[string]any) {
				mainOf(template)["resources"] = map[string]any{"limits": map[string]any{"cpu": "1", "memory": "1Gi"}}
			})
		}
	}
	toRevision(rev(n, edits...))(s)
}

// claimWords are what can be said about a claim.
var claimWords = map[string]func(c *corev1.PersistentVolumeClaim, value string){
	"going": func(c *corev1.PersistentVolumeClaim, _ string) { going(c) },
	"of":    func(c *corev1.PersistentVolumeClaim, value string) { c.Labels[apps.LabelInstanceID] = value },
}

// podWords are what can be said about a Pod.
var podWords = map[string]func(p *corev1.Pod, value string){
	"stateless":   func(p *corev1.Pod, _ string) { state("")(p) },
	"unready":     func(p *corev1.Pod, _ string) { unready(p) },
	"ready":       func(p *corev1.Pod, value string) { readyFor(scenariotest.Duration(value))(p) },
	"specified":   func(p *corev1.Pod, _ string) { label(apps.LabelSpecifiedDelete, "true")(p) },
	"registered":  func(p *corev1.Pod, _ string) { registered(p) },
	"created":     func(p *corev1.Pod, value string) { created(scenariotest.Duration(value))(p) },
	"terminating": func(p *corev1.Pod, _ string) { terminating(p) },
	"gone":        func(p *corev1.Pod, value string) { gone(scenariotest.Duration(value))(p) },
	"pending":     func(p *corev1.Pod, _ string) { pending(p) },
	"fresh":       func(p *corev1.Pod, _ string) { fresh(p) },
	"restarted":   func(p *corev1.Pod, _ string) { restarted(p) },
	"phase":       func(p *corev1.Pod, value string) { phase(corev1.PodPhase(value))(p) },
	"restarts":    func(p *corev1.Pod, value string) { restarts(int32(scenariotest.Number(value)))(p) },
	"cost":        func(p *corev1.Pod, value string) { annotation(corev1.PodDeletionCost, value)(p) },
	"failed":      func(p *corev1.Pod, _ string) { phase(corev1.PodFailed)(p) },
	"succeeded":   func(p *corev1.Pod, _ string) { phase(corev1.PodSucceeded)(p) },
	"updating":    func(p *corev1.Pod, value string) { updating(scenariotest.Number(value[1:]))(p) },
	"on":          func(p *corev1.Pod, value string) { on(value)(p) },
	"tolerates": func(p *corev1.Pod, value string) {
		key, effect, _ := strings.Cut(value, " ")
		tolerating(corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)})(p)
	},
	"label": func(p *corev1.Pod, value string) {
		key, value, _ := strings.Cut(value, "=")
		label(key, value)(p)
	},
	"unlabelled": func(p *corev1.Pod, value string) { delete(p.Labels, value) },
	"state":      func(p *corev1.Pod, value string) { state(apps.LifecycleState(value))(p) },
	"finalizer":  func(p *corev1.Pod, value string) { finalizers(value)(p) },
	"sidecarWaits": func(p *corev1.Pod, reason string) {
		p.Spec.InitContainers = []corev1.Container{{Name: "side", Image: "side:1"}}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
			Name: "side", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
		}}
	},
	"noGates": func(p *corev1.Pod, _ string) {
		p.Spec.ReadinessGates, p.Status.Conditions = nil, p.Status.Conditions[:1]
	},
	"holds": func(p *corev1.Pod, value string) { finalizers("example.com/" + value)(p) },
	"out": func(p *corev1.Pod, value string) {
		revision, ago, _ := strings.Cut(value, " ")
		out(scenariotest.Number(revision[1:]), scenariotest.Duration(ago))(p)
	},
	"marked": func(p *corev1.Pod, _ string) {
		condition(apps.ConditionPodReady, corev1.ConditionFalse, `[{"userAgent":"Lifecycle","key":"preUpdateHook"}]`)(p)
	},
	"markedByThePlanner": func(p *corev1.Pod, _ string) {
		condition(apps.ConditionPodReady, corev1.ConditionFalse, "held by the inPlaceUpdate hook")(p)
	},
	"notReadyForAHook": func(p *corev1.Pod, _ string) { condition(apps.ConditionPodReady, corev1.ConditionFalse, "")(p) },
	"inService": func(p *corev1.Pod, _ string) {
		condition(apps.ConditionInPlaceUpdateReady, corev1.ConditionTrue, "")(p)
	},
	"conditionless": func(p *corev1.Pod, _ string) {
		p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type != corev1.PodReady })
	},
	"withoutCondition": func(p *corev1.Pod, _ string) { withoutInPlaceCondition(p) },
	"withoutGate":      func(p *corev1.Pod, _ string) { p.Spec.ReadinessGates = p.Spec.ReadinessGates[1:] },
	"unreadableRecord": func(p *corev1.Pod, _ string) {
		annotation(apps.AnnotationInPlaceUpdateState, "{")(p)
	},
	"entered": func(p *corev1.Pod, value string) {
		annotation(apps.AnnotationLifecycleTimestamp, now.Add(-scenariotest.Duration(value)).Format(time.RFC3339))(p)
	},
	"image": func(p *corev1.Pod, value string) { p.Spec.Containers[0].Image = value },
	// began is a change to r1, which the kubelet has not made.
	"began": func(p *corev1.Pod, value string) {
		change := &inplace.Change{Images: map[string]string{"main": "app:1"}}
		p.Annotations[apps.AnnotationInPlaceUpdateState] = inplace.Begin(p, change, rev(1).Name, now.Add(-scenariotest.Duration(value))).State.String()
		p.Generation++
	},
	// ofOpenKruise is left in its grace period before r2.
	"ofOpenKruise": func(p *corev1.Pod, _ string) { leftInGrace(p) },
	"cpu":          func(p *corev1.Pod, value string) { hasCPU(value)(p) },
	"resizing":     func(p *corev1.Pod, value string) { resizing(value == "written")(p) },
	"resized":      func(p *corev1.Pod, _ string) { resized(p) },
	"kubelet": func(p *corev1.Pod, value string) {
		kind, reason, _ := strings.Cut(value, " ")
		kubeletSays(corev1.PodConditionType(kind), reason)(p)
	},
	"waits":        func(p *corev1.Pod, value string) { waits(value)(p) },
	"seen":         func(p *corev1.Pod, _ string) { seen(p) },
	"newContainer": func(p *corev1.Pod, _ string) { newContainer(p) },
	"ended": func(p *corev1.Pod, value string) {
		id, code, _ := strings.Cut(value, " ")
		ended(id, int32(scenariotest.Number(code)))(p)
	},
	"runsAgain": func(p *corev1.Pod, value string) {
		id, code, _ := strings.Cut(value, " ")
		runsAgain(id, int32(scenariotest.Number(code)))(p)
	},
	"base":     func(p *corev1.Pod, _ string) { hasBase(p) },
	"inBatch":  func(p *corev1.Pod, _ string) { inBatch(p) },
	"baseRuns": func(p *corev1.Pod, value string) { baseRuns(value == "ready")(p) },
}

func selectorOf(text string) labels.Selector {
	selector, err := labels.Parse(text)
	if err != nil {
		panic(err) // A scenario is misspelt.
	}
	return selector
}

func countOf(text string) Count {
	n, percent := strings.CutSuffix(text, "%")
	return Count{Value: scenariotest.Number(n), Percent: percent}
}

// render lists what a plan does, and what it reports; "2 ×" of what it does twice.
func render(s *Snapshot, p Plan) []string {
	lines := []string{}
	for _, a := range p.Actions {
		lines = append(lines, renderAction(a))
	}
	lines = fold(lines)
	for _, b := range waiting(s) {
		if b.Batch != nil {
			lines = append(lines, fmt.Sprintf("%s waits for its containers %s", b.Pod, strings.Join(b.Batch.Containers, ", ")))
			continue
		}
		lines = append(lines, fmt.Sprintf("%s waits at %s for %s", b.Pod, b.Gate, strings.Join(b.Keys, ", ")))
	}
	if p.ScaleUpLimited > 0 {
		lines = append(lines, fmt.Sprintf("%d more wait", p.ScaleUpLimited))
	}
	for _, name := range p.PrunePodsToDelete {
		lines = append(lines, "podsToDelete loses "+name)
	}
	for _, problem := range p.Problems {
		lines = append(lines, "problem "+problem.Reason+": "+problem.Message)
	}
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

// renderAction also tells what an action writes to a Pod beyond its state and conditions.
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
