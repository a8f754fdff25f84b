// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// sized is a template whose containers ask for cpu and memory.
const sized = `
metadata: {labels: {app: web}}
spec:
  initContainers:
  - {name: setup, image: "setup:1", resources: {requests: {cpu: 10m}}}
  - {name: proxy, image: "proxy:1", restartPolicy: Always, resources: {requests: {cpu: 50m}}}
  containers:
  - name: main
    image: app:1
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 128Mi}}
  - {name: log, image: "log:1"}
`

// resizedTemplate returns the sized template with replacements of its text.
func resizedTemplate(t testing.TB, pairs ...string) map[string]any {
	t.Helper()
	text := strings.NewReplacer(pairs...).Replace(sized)
	if text == sized {
		t.Fatalf("nothing to replace in %q", pairs)
	}
	return template(t, text)
}

// amounts formats resources in a fixed order.
func amounts(r corev1.ResourceRequirements) string {
	var parts []string
	for _, list := range []struct {
		name string
		of   corev1.ResourceList
	}{{"requests", r.Requests}, {"limits", r.Limits}} {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if q, ok := list.of[name]; ok {
				parts = append(parts, fmt.Sprintf("%s.%s=%s", list.name, name, q.String()))
			}
		}
	}
	return strings.Join(parts, " ")
}

// TestDiffResources: cpu and memory change in place, with all the container's amounts of
// them; the same amount in another form is no change.
func TestDiffResources(t *testing.T) {
	const main = "{requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 128Mi}}"
	for _, test := range []struct {
		name, from, to string
		container      string
		want           string
	}{
		{"cpu", "cpu: 100m", "cpu: 200m", "main", "requests.cpu=200m requests.memory=64Mi limits.memory=128Mi"},
		{"a limit", "memory: 128Mi", "memory: 1Gi", "main", "requests.cpu=100m requests.memory=64Mi limits.memory=1Gi"},
		{"a limit added", "limits: {memory: 128Mi}", "limits: {memory: 128Mi, cpu: 2}", "main",
			"requests.cpu=100m requests.memory=64Mi limits.cpu=2 limits.memory=128Mi"},
		{"a sidecar", "cpu: 50m", "cpu: 60m", "proxy", "requests.cpu=60m"},
		{"a container that had none", `image: "log:1"`, `image: "log:1", resources: {requests: {cpu: 1m}}`, "log", "requests.cpu=1m"},
		{"a limit is a request too", `image: "log:1"`, `image: "log:1", resources: {limits: {cpu: 1m}}`, "log", "requests.cpu=1m limits.cpu=1m"},
		{"another form", "{cpu: 100m, memory: 64Mi}", `{cpu: 0.1, memory: "67108864"}`, "main", ""},
		{"a whole number", "cpu: 100m", "cpu: 1", "main", "requests.cpu=1 requests.memory=64Mi limits.memory=128Mi"},
		{"empty lists", main, "{requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 128Mi}, claims: []}", "main", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			change, err := Diff(template(t, sized), resizedTemplate(t, test.from, test.to))
			if err != nil {
				t.Fatal(err)
			}
			if got := amounts(change.Resources[test.container]); got != test.want {
				t.Errorf("resources = %q, want %q", got, test.want)
			}
			if change.Drains() != (test.want != "") || len(change.Images) > 0 {
				t.Errorf("Drains = %v, images %v", change.Drains(), change.Images)
			}
		})
	}
}

// TestDiffResourcesRefused: a refusal names the field, and why it cannot change.
func TestDiffResourcesRefused(t *testing.T) {
	const main = "spec.template.spec.containers[main].resources"
	for _, test := range []struct {
		name     string
		from, to string
		field    string
		why      string
	}{
		{"a request removed", "cpu: 100m, ", "", main + ".requests.cpu", "cannot be removed"},
		{"a limit removed", ", limits: {memory: 128Mi}", "", main + ".limits.memory", "cannot be removed"},
		{"all removed", "{requests: {cpu: 50m}}", "{}", "spec.template.spec.initContainers[proxy].resources.requests.cpu", "cannot be removed"},
		{"an init container that ends", "cpu: 10m", "cpu: 20m", "spec.template.spec.initContainers[setup].resources.requests.cpu", ""},
		{"another resource", "cpu: 100m", "cpu: 100m, ephemeral-storage: 1Gi", main + ".requests.ephemeral-storage", ""},
		{"claims", "{requests: {cpu: 100m", "{claims: [{name: a}], requests: {cpu: 100m", main + ".claims", ""},
		{"no quantity", "cpu: 100m", "cpu: lots", main + ".requests.cpu", ""},
		{"Pods with resources of their own", "spec:\n", "spec:\n  resources: {requests: {cpu: 1}}\n", "spec.template.spec.resources.requests.cpu", ""},
		{"resize policy", "image: app:1", "image: app:1\n    resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]", "spec.template.spec.containers[main].resizePolicy", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			refusedWith(t, template(t, sized), resizedTemplate(t, test.from, test.to), test.field, test.why)
		})
	}
}

func refusedWith(t *testing.T, from, to map[string]any, field, why string) {
	t.Helper()
	_, err := Diff(from, to)
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("err = %v, want a refusal", err)
	}
	if refusal.Field != field || !strings.Contains(refusal.Why, why) || !strings.Contains(err.Error(), refusal.Field) {
		t.Errorf("refusal %q of field %q, want %q and %q", err, refusal.Field, field, why)
	}
}

// TestQOS: a resize never changes the class; within one it is possible.
func TestQOS(t *testing.T) {
	one := func(resources string) map[string]any {
		return template(t, `spec: {containers: [{name: main, image: a, resources: `+resources+`}]}`)
	}
	classes := map[string]corev1.PodQOSClass{
		"{}":                              corev1.PodQOSBestEffort,
		"{requests: {cpu: 0}}":            corev1.PodQOSBestEffort,
		"{requests: {cpu: 1}}":            corev1.PodQOSBurstable,
		"{limits: {cpu: 1}}":              corev1.PodQOSBurstable,
		"{limits: {cpu: 1, memory: 1Gi}}": corev1.PodQOSGuaranteed,
		"{requests: {cpu: 1000m}, limits: {cpu: 1, memory: 1Gi}}":              corev1.PodQOSGuaranteed,
		"{requests: {cpu: 500m}, limits: {cpu: 1, memory: 1Gi}}":               corev1.PodQOSBurstable,
		"{requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}":     corev1.PodQOSGuaranteed,
		"{requests: {cpu: 1, memory: 1Gi}, limits: {memory: 1Gi}}":             corev1.PodQOSBurstable,
		"{requests: {ephemeral-storage: 1Gi}, limits: {ephemeral-storage: 1}}": corev1.PodQOSBestEffort,
	}
	for resources, want := range classes {
		if got := qos(one(resources)); got != want {
			t.Errorf("%s is %s, want %s", resources, got, want)
		}
	}
	if got := qos(template(t, `spec: {containers: [{name: a, resources: {limits: {cpu: 1, memory: 1}}}, {name: b}]}`)); got != corev1.PodQOSBurstable {
		t.Errorf("one container without limits: %s", got)
	}
	const field = "spec.template.spec.containers[main].resources"
	refusedWith(t, one("{}"), one("{requests: {cpu: 1}}"), field, "from BestEffort to Burstable")
	refusedWith(t, one("{requests: {cpu: 1, memory: 1Gi}}"), one("{limits: {cpu: 1, memory: 1Gi}}"), field, "from Burstable to Guaranteed")
	if _, err := Diff(one("{limits: {cpu: 1, memory: 1Gi}}"), one("{limits: {cpu: 2, memory: 1Gi}}")); err != nil {
		t.Errorf("Guaranteed stays Guaranteed: %v", err)
	}
	podLevel := func(cpu string) map[string]any {
		return template(t, `spec: {resources: {requests: {cpu: 4}}, containers: [{name: main, resources: {requests: {cpu: `+cpu+`}}}]}`)
	}
	refusedWith(t, podLevel("1"), podLevel("2"), field, "resources of their own")
}

func requests(cpu, memory string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	if memory != "" {
		list[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return corev1.ResourceRequirements{Requests: list}
}

// sizedPod runs with cpu 100m, and its kubelet reports it.
func sizedPod() *corev1.Pod {
	pod := runningPod()
	pod.Spec.Containers[0].Resources = requests("100m", "64Mi")
	report(pod, requests("100m", "64Mi"))
	return pod
}

// report makes the kubelet report the resources of main.
func report(pod *corev1.Pod, r corev1.ResourceRequirements) {
	status := &pod.Status.ContainerStatuses[0]
	status.Resources, status.AllocatedResources = r.DeepCopy(), r.Requests.DeepCopy()
}

var toSized = &Change{Resources: map[string]corev1.ResourceRequirements{"main": requests("200m", "64Mi")}}

// write is the write of the resources, which follows that of the record.
func write(pod *corev1.Pod) {
	for name, resources := range Resizes(pod) {
		containerOf(pod, name).Resources = resources
		pod.Generation++
	}
}

func resizeCondition(kind corev1.PodConditionType, reason, message string) corev1.PodCondition {
	return corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message}
}

// TestResizeDone determines when the kubelet has resized a container: never before the
// last revision's resources were written, and whatever a rollback or another revision in
// between did to the record.
func TestResizeDone(t *testing.T) {
	const soon = time.Minute
	to := func(after time.Duration, r corev1.ResourceRequirements) step {
		return updates(after, &Change{Resources: map[string]corev1.ResourceRequirements{"main": r}})
	}
	wanted := requests("200m", "64Mi")
	limited := requests("200m", "64Mi")
	limited.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	reportsCPU := func(r corev1.ResourceRequirements) step { return act(func(pod *corev1.Pod) { report(pod, r) }) }
	main := func(edit func(*corev1.ContainerStatus)) step {
		return act(func(pod *corev1.Pod) { edit(&pod.Status.ContainerStatuses[0]) })
	}
	says := func(kind corev1.PodConditionType) step {
		return act(func(pod *corev1.Pod) {
			pod.Status.Conditions = append(pod.Status.Conditions, resizeCondition(kind, "", ""))
		})
	}
	waits := func(reason string) step {
		return main(func(c *corev1.ContainerStatus) {
			c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
		})
	}
	noNode := act(func(pod *corev1.Pod) { pod.Spec.NodeName = "" })
	hasSpec := func(want string) step {
		return func(pod *corev1.Pod) error {
			if got := amounts(pod.Spec.Containers[0].Resources); got != want {
				return fmt.Errorf("the spec has %s", got)
			}
			return nil
		}
	}
	small, writes := "requests.cpu=100m requests.memory=64Mi", act(write)
	cases := map[string][]step{
		"not written yet":              {sees, reportsCPU(wanted), notDone(soon)},
		"written":                      {writes, notDone(soon)},
		"the kubelet has seen it only": {writes, sees, notDone(soon)},
		"done":                         {writes, sees, reportsCPU(wanted), done(soon)},
		"done, in another form":        {writes, sees, reportsCPU(requests("0.2", "65536Ki")), done(soon)},
		"status of an older spec":      {writes, reportsCPU(wanted), notDone(soon)},
		"a weight's rounding, and allocated": {
			writes, sees, reportsCPU(wanted), main(func(c *corev1.ContainerStatus) { c.Resources = new(requests("199m", "64Mi")) }), done(soon)},
		"a limit is not in force, though the request is allocated": {
			writes, sees, reportsCPU(wanted), act(func(pod *corev1.Pod) { clear(pod.Annotations) }), to(0, limited), writes, sees, notDone(soon)},
		"pending":                             {writes, sees, reportsCPU(wanted), says(corev1.PodResizePending), notDone(soon)},
		"in progress":                         {writes, sees, reportsCPU(wanted), says(corev1.PodResizeInProgress), notDone(soon)},
		"stopped for it":                      {writes, sees, reportsCPU(wanted), waits("ContainerCreating"), notDone(soon)},
		"stopped, no reason":                  {writes, sees, reportsCPU(wanted), waits(""), notDone(soon)},
		"crashes by itself":                   {writes, sees, reportsCPU(wanted), waits("CrashLoopBackOff"), done(soon)},
		"a kubelet that reports no resources": {writes, sees, reportsCPU(wanted), main(func(c *corev1.ContainerStatus) { c.Resources = nil }), notDone(soon)},
		"no status":                           {writes, sees, noStatus, notDone(soon)},
		"no node, written":                    {noNode, writes, done(soon)},
		"no node, not written":                {noNode, notDone(soon)},
		"rolled back after it was written":    {writes, to(time.Second, requests("100m", "64Mi")), sees, notDone(soon), writes, hasSpec(small), sees, done(soon)},
		"rolled back before it was written":   {to(time.Second, requests("100m", "64Mi")), hasSpec(small), sees, done(soon)},
		"another container is updated": {
			updates(time.Second, &Change{Images: map[string]string{"log": "log:2"}}), sees, reports(running("log", "log:2", 2, t0)), notDone(hour),
			writes, hasSpec("requests.cpu=200m requests.memory=64Mi"), sees, reportsCPU(wanted), done(hour)},
		"metadata is updated after it was written": {writes, updates(time.Second, &Change{}), sees, notDone(hour), reportsCPU(wanted), done(hour)},
		"metadata is updated": {
			updates(time.Second, &Change{}), sees, notDone(hour), writes, hasSpec("requests.cpu=200m requests.memory=64Mi"), sees, reportsCPU(wanted), done(hour)},
	}
	for name, steps := range cases {
		cases[name] = append([]step{act(func(pod *corev1.Pod) { *pod = *sizedPod() }), to(0, wanted)}, steps...)
	}
	play(t, cases)
}

// TestResizesKeepsWhatOthersAdded: a LimitRange's limit is not removed.
func TestResizesKeepsWhatOthersAdded(t *testing.T) {
	pod := sizedPod()
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
	begin(pod, toSized, "r2", t0)
	if got := amounts(Resizes(pod)["main"]); got != "requests.cpu=200m requests.memory=64Mi limits.memory=1Gi" {
		t.Errorf("resources become %q", got)
	}
	write(pod)
	if left := Resizes(pod); len(left) != 0 {
		t.Errorf("left to write: %v", left)
	}
	pod.Annotations = map[string]string{}
	if left := Resizes(pod); len(left) != 0 {
		t.Errorf("without a record: %v", left)
	}
}

// TestPendingResources: what a Pod is counts, not what its labels say.
func TestPendingResources(t *testing.T) {
	pod := sizedPod()
	to := template(t, `spec: {containers: [{name: main, image: "app:1", resources: {requests: {cpu: 300m}}}, {name: gone, resources: {requests: {cpu: 1}}}]}`)
	change := Pending(pod, to)
	if len(change.Resources) != 1 || amounts(change.Resources["main"]) != "requests.cpu=300m" {
		t.Errorf("resources = %v", change.Resources)
	}
	pod.Spec.Containers[0].Resources = requests("0.3", "64Mi")
	if change := Pending(pod, to); change.Drains() {
		t.Errorf("resources = %v", change.Resources)
	}
}

// TestResizeTrouble is reported in the kubelet's own words.
func TestResizeTrouble(t *testing.T) {
	for _, test := range []struct {
		condition corev1.PodCondition
		want      string
	}{
		{resizeCondition(corev1.PodResizePending, corev1.PodReasonInfeasible, "too much"), "Infeasible: too much"},
		{resizeCondition(corev1.PodResizePending, corev1.PodReasonDeferred, ""), "Deferred"},
		{resizeCondition(corev1.PodResizeInProgress, "", ""), ""},
		{resizeCondition(corev1.PodResizeInProgress, corev1.PodReasonError, "memory in use"), "Error: memory in use"},
		{corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionFalse, Reason: corev1.PodReasonInfeasible}, ""},
		{resizeCondition(corev1.PodReady, corev1.PodReasonError, "x"), ""},
	} {
		pod := sizedPod()
		pod.Status.Conditions = []corev1.PodCondition{test.condition}
		if got := ResizeTrouble(pod); got != test.want {
			t.Errorf("%v: %q, want %q", test.condition, got, test.want)
		}
	}
}
