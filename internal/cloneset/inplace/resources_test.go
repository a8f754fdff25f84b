// SPDX-License-Identifier: Apache-2.0

package inplace

import (
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

// TestQOS: the class of a Pod.
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
