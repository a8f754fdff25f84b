// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// rankedPod has the containers a, b, c and d with the priorities 10, 5, 5 and none.
func rankedPod() *corev1.Pod {
	pod := runningPod()
	pod.Spec.Containers, pod.Spec.InitContainers = nil, nil
	pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses = nil, nil
	for name, priority := range map[string]string{"a": "10", "b": "5", "c": "5", "d": ""} {
		c := corev1.Container{Name: name, Image: name + ":1"}
		if priority != "" {
			c.Env = []corev1.EnvVar{{Name: "OTHER", Value: "99"}, {Name: apps.EnvContainerPriority, Value: priority}}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, running(name, name+":1", 1, t0.Add(-time.Hour)))
	}
	slices.SortFunc(pod.Spec.Containers, func(a, b corev1.Container) int { return strings.Compare(a.Name, b.Name) })
	return pod
}

// imagesTo gives containers the image of a version, such as "a b", 2.
func imagesTo(names string, version int) *Change {
	change := &Change{Images: map[string]string{}}
	for name := range strings.FieldsSeq(names) {
		change.Images[name] = fmt.Sprintf("%s:%d", name, version)
	}
	return change
}

// do writes a step as the controller does, and returns which containers it changed.
func do(pod *corev1.Pod, step Step) string {
	pod.Annotations[apps.AnnotationInPlaceUpdateState] = step.State.String()
	pod.Labels[apps.LabelLifecycleState] = string(apps.StateUpdating)
	for name, image := range step.Images {
		setImage(pod, name, image)
	}
	write(pod)
	return strings.Join(slices.Sorted(maps.Keys(step.Images)), " ")
}

// nextStep is the next step, if it is due.
func nextStep(pod *corev1.Pod, now time.Time) string {
	step, ok := Next(pod, now)
	if !ok {
		return "-"
	}
	return do(pod, step)
}

// ready makes the kubelet run what the spec asks of some containers.
func ready(pod *corev1.Pod, names string) {
	see(pod)
	for name := range strings.FieldsSeq(names) {
		setStatus(pod, running(name, imageOf(pod, name), 2, t0.Add(time.Minute)))
	}
}

func waits(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	state, err := ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(state.Waits(pod, t0.Add(time.Hour)), " ")
}

func expectText(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// TestBatches leads an update through its batches: highest priority first, the next one
// when the previous containers are done and ready.
func TestBatches(t *testing.T) {
	pod := rankedPod()
	expectText(t, "first", do(pod, Begin(pod, imagesTo("a b c d", 2), "r2", t0)), "a")
	expectText(t, "waits for", waits(t, pod), "a")
	expectText(t, "not restarted", nextStep(pod, t0), "-")
	ready(pod, "a")
	unready := running("a", "a:2", 2, t0)
	unready.Ready = false
	setStatus(pod, unready)
	expectText(t, "restarted, not ready", nextStep(pod, t0), "-")
	if done, _ := isDone(t, pod, t0.Add(time.Hour)); done {
		t.Error("done with three containers to go")
	}
	ready(pod, "a")
	expectText(t, "second", nextStep(pod, t0.Add(time.Minute)), "b c")
	ready(pod, "b")
	expectText(t, "one of two ready", nextStep(pod, t0.Add(time.Minute)), "-")
	expectText(t, "waits for", waits(t, pod), "c")
	ready(pod, "c")
	expectText(t, "third", nextStep(pod, t0.Add(2*time.Minute)), "d")
	expectText(t, "nothing left", waits(t, pod)+nextStep(pod, t0), "-")
	if done, _ := isDone(t, pod, t0.Add(time.Hour)); done {
		t.Error("done before the last container restarted")
	}
	setStatus(pod, unready) // the first one's readiness no longer matters
	ready(pod, "d")
	if done, _ := isDone(t, pod, t0.Add(time.Hour)); !done {
		t.Error("not done with all containers")
	}
}

// TestBatchesAtOnce: without different priorities, or without a node, there is one batch,
// and the record has no trace of others.
func TestBatchesAtOnce(t *testing.T) {
	unscheduled := rankedPod()
	unscheduled.Spec.NodeName = ""
	broken := rankedPod()
	broken.Spec.Containers[0].Env[1].Value = "first" // counts as 0
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		change *Change
		want   string
	}{
		"same priority": {rankedPod(), imagesTo("b c", 2), "b c"},
		"no node":       {unscheduled, imagesTo("a b c d", 2), "a b c d"},
		"unreadable":    {broken, imagesTo("a d", 2), "a d"},
	} {
		t.Run(name, func(t *testing.T) {
			step := Begin(test.pod, test.change, "r2", t0)
			expectText(t, "containers", do(test.pod, step), test.want)
			if text := step.State.String(); strings.Contains(text, "next") || strings.Contains(text, "preCheck") {
				t.Errorf("record %s", text)
			}
		})
	}
}

// TestBatchesOfResources: resources are batched too.
func TestBatchesOfResources(t *testing.T) {
	pod := rankedPod()
	change := imagesTo("a", 2)
	change.Resources = map[string]corev1.ResourceRequirements{"d": requests("1", "")}
	expectText(t, "first", do(pod, Begin(pod, change, "r2", t0)), "a")
	if c := containerOf(pod, "d"); len(c.Resources.Requests) > 0 {
		t.Errorf("d has %v already", c.Resources.Requests)
	}
	ready(pod, "a")
	if _, ok := Next(pod, t0); !ok {
		t.Fatal("the turn of d does not come")
	}
	nextStep(pod, t0)
	expectText(t, "d has", amounts(containerOf(pod, "d").Resources), "requests.cpu=1")
}

// TestBatchesRollback: a rollback at each step, first to last.
func TestBatchesRollback(t *testing.T) {
	for name, steps := range map[string]func(*corev1.Pod){
		"before the first restarted": func(*corev1.Pod) {},
		"the first is ready":         func(pod *corev1.Pod) { ready(pod, "a") },
		"the second has begun":       func(pod *corev1.Pod) { ready(pod, "a"); nextStep(pod, t0) },
		"the second is ready":        func(pod *corev1.Pod) { ready(pod, "a"); nextStep(pod, t0); ready(pod, "d") },
	} {
		t.Run(name, func(t *testing.T) {
			pod := rankedPod()
			do(pod, Begin(pod, imagesTo("a d", 2), "r2", t0))
			steps(pod)
			expectText(t, "back", do(pod, Begin(pod, imagesTo("a d", 1), "r1", t0.Add(time.Minute))), "a")
			ready(pod, "a")
			if imageOf(pod, "d") != "d:1" {
				expectText(t, "then", nextStep(pod, t0.Add(time.Minute)), "d")
				ready(pod, "d")
			}
			if done, _ := isDone(t, pod, t0.Add(time.Hour)); !done || imageOf(pod, "a")+imageOf(pod, "d") != "a:1d:1" {
				t.Errorf("done %v with %s and %s", done, imageOf(pod, "a"), imageOf(pod, "d"))
			}
		})
	}
}

// TestBatchesNewerRevision: another revision continues from where the previous one
// stands, and forgets none of the waiting containers.
func TestBatchesNewerRevision(t *testing.T) {
	for _, test := range []struct {
		name   string
		steps  func(*corev1.Pod)
		change *Change
		first  string
		waits  string
		then   string
	}{
		{"metadata only", func(*corev1.Pod) {}, &Change{}, "", "a", "d"},
		{"metadata only, the first is ready", func(pod *corev1.Pod) { ready(pod, "a") }, &Change{}, "d", "", "-"},
		{"the first again", func(*corev1.Pod) {}, imagesTo("a", 3), "a", "a", "d"},
		{"the one that waits", func(*corev1.Pod) {}, imagesTo("d", 3), "", "a", "d"},
		{"one in between", func(*corev1.Pod) {}, imagesTo("b", 3), "", "a", "b"},
		{"one in between, the first is ready", func(pod *corev1.Pod) { ready(pod, "a") }, imagesTo("b", 3), "b", "b", "d"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := rankedPod()
			do(pod, Begin(pod, imagesTo("a d", 2), "r2", t0))
			test.steps(pod)
			expectText(t, "first", do(pod, Begin(pod, test.change, "r3", t0.Add(time.Minute))), test.first)
			expectText(t, "waits for", waits(t, pod), test.waits)
			ready(pod, "a b")
			expectText(t, "then", nextStep(pod, t0.Add(time.Minute)), test.then)
			for nextStep(pod, t0.Add(time.Minute)) != "-" || waits(t, pod) != "" {
				ready(pod, "a b c d")
			}
			if imageOf(pod, "d") == "d:1" || imageOf(pod, "a") == "a:1" {
				t.Errorf("forgotten: %s, %s", imageOf(pod, "a"), imageOf(pod, "d"))
			}
		})
	}
}

// TestRecordOfOpenKruiseWithBatches is continued, and its other members are kept.
func TestRecordOfOpenKruiseWithBatches(t *testing.T) {
	record := `{"revision":"web-6f","updateTimestamp":"2026-01-02T03:04:05Z","lastContainerStatuses":{"a":{"imageID":"id-a:1"}},` +
		`"nextContainerImages":{"d":"d:2","gone":"x:1"},"nextContainerRefMetadata":{"d":{"labels":{"tier":"b"},"annotations":{"note":"n"}},"c":{"labels":{"x":"y"}}},` +
		`"preCheckBeforeNext":{"containersRequiredReady":["a"]},"containerBatchesRecord":[{"timestamp":"2026-01-02T03:04:05Z","containers":["a"]}],` +
		`"updateImages":true,"updateEnvFromMetadata":true,"fromTheFuture":{"deep":[1]}}`
	pod := rankedPod()
	pod.Annotations[apps.AnnotationInPlaceUpdateState] = record
	pod.Labels[apps.LabelLifecycleState] = string(apps.StateUpdating)
	setImage(pod, "a", "a:2")
	if done, _ := isDone(t, pod, t0.Add(time.Hour)); done {
		t.Error("done with d to go")
	}
	expectText(t, "not ready", nextStep(pod, t0), "-")
	ready(pod, "a")
	step, ok := Next(pod, t0.Add(time.Minute))
	if !ok || step.Labels["tier"] != "b" || step.Annotations["note"] != "n" || len(step.Labels) != 1 {
		t.Fatalf("step %+v, %v", step, ok)
	}
	expectText(t, "next", do(pod, step), "d")
	expectKept(t, pod.Annotations[apps.AnnotationInPlaceUpdateState])
	ready(pod, "d")
	if done, _ := isDone(t, pod, t0.Add(time.Hour)); !done {
		t.Error("not done")
	}
}

// expectKept: the record has lost what the next containers needed, and kept the rest.
func expectKept(t *testing.T, record string) {
	t.Helper()
	var after map[string]any
	if err := json.Unmarshal([]byte(record), &after); err != nil {
		t.Fatal(err)
	}
	for _, member := range []string{"revision", "updateTimestamp", "updateImages", "updateEnvFromMetadata", "fromTheFuture", "nextContainerRefMetadata"} {
		if _, ok := after[member]; !ok {
			t.Errorf("the record has lost %s: %v", member, after)
		}
	}
	for _, member := range []string{"nextContainerImages", "preCheckBeforeNext"} {
		if value, ok := after[member]; ok {
			t.Errorf("the record still has %s: %v", member, value)
		}
	}
	if batches, _ := after["containerBatchesRecord"].([]any); len(batches) != 2 {
		t.Errorf("batches %v", after["containerBatchesRecord"])
	}
}

// TestUnranked: a priority that is not a number is reported where it would have mattered.
func TestUnranked(t *testing.T) {
	text := func(value string, version int) map[string]any {
		return template(t, fmt.Sprintf(`spec: {containers: [{name: a, image: "a:%[2]d"}, {name: b, image: "b:%[2]d", env: [{name: KRUISE_CONTAINER_PRIORITY, %[1]s}]}]}`, value, version))
	}
	for value, want := range map[string]string{
		`value: "10"`: "", `value: "-3"`: "", `value: "high"`: "b", `value: ""`: "b", `value: "99999999999"`: "b", `value: "1.5"`: "b", `valueFrom: {}`: "b",
	} {
		change, err := Diff(text(value, 1), text(value, 2))
		if err != nil {
			t.Fatal(err)
		}
		expectText(t, value, change.Unranked, want)
	}
	to := text(`value: "high"`, 1)
	to["spec"].(map[string]any)["containers"].([]any)[1].(map[string]any)["image"] = "b:2"
	if change, err := Diff(text(`value: "high"`, 1), to); err != nil || change.Unranked != "" {
		t.Errorf("one container alone: %+v, %v", change, err)
	}
}
