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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/scenariotest"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// update is a Pod that is updated, and the observations of it so far.
type update struct {
	pod     *corev1.Pod
	noticed []string
}

// TestUpdates checks the scenarios in testdata/updates: a sequence of events of a Pod that runs app:1,
// with the observations in between.
func TestUpdates(t *testing.T) {
	scenariotest.Run(t, "testdata/updates/*.txt", func(t *testing.T, lines []string) []string {
		u := &update{pod: runningPod()}
		for _, line := range lines {
			if err := scenariotest.Say(updateWords, u, line); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		return u.noticed
	})
}

// runningPod runs app:1 with a kubelet that reports which spec it has observed.
func runningPod() *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Generation: 1, Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{ObservedGeneration: 1},
	}
	addContainer(p, "main", "app:1", "")
	addContainer(p, "log", "log:1", "")
	p.Spec.InitContainers = []corev1.Container{{Name: "proxy", Image: "proxy:1"}}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{running("proxy", "proxy:1", "1", -time.Hour)}
	return p
}

// addContainer adds a container that runs, with a priority unless that is empty.
func addContainer(pod *corev1.Pod, name, image, priority string) {
	c := corev1.Container{Name: name, Image: image}
	if priority != "" {
		c.Env = []corev1.EnvVar{{Name: "OTHER", Value: "99"}, {Name: apps.EnvContainerPriority, Value: priority}}
	}
	pod.Spec.Containers = append(pod.Spec.Containers, c)
	pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, running(name, image, "1", -time.Hour))
}

// running returns the status of the nth container that runs under a name, from an image with that name
// and the ID "id-" plus the name.
func running(name, image, nth string, since time.Duration) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: name, Image: image, ImageID: "id-" + image, ContainerID: "c-" + name + nth, Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(t0.Add(since))}},
	}
}

// updateWords are events of a Pod, and observations of it. Times count from t0.
var updateWords = map[string]func(u *update, value string){
	// Pod chooses another Pod: sized has resources, ranked has the containers a, b, c and d with the
	// priorities 10, 5, 5 and none.
	"Pod": func(u *update, kind string) {
		if kind == "sized" {
			u.pod.Spec.Containers[0].Resources = requests("100m", "64Mi")
			u.report("100m 64Mi")
			return
		}
		u.pod.Spec.Containers, u.pod.Status.ContainerStatuses = nil, nil
		for _, name := range []string{"a", "b", "c", "d"} {
			addContainer(u.pod, name, name+":1", map[string]string{"a": "10", "b": "5", "c": "5"}[name])
		}
	},
	"priority": func(u *update, value string) { u.pod.Spec.Containers[0].Env[1].Value = value },
	"noNode":   func(u *update, _ string) { u.pod.Spec.NodeName = "" },
	"limit": func(u *update, memory string) {
		u.pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	},
	// spec sets an image, as in "main app:2".
	"spec": func(u *update, value string) {
		name, image, _ := strings.Cut(value, " ")
		u.set(name, image)
	},
	// update makes a change such as "main=app:2 d.cpu=1 at 5s"; without arguments, one of metadata.
	"update": func(u *update, value string) {
		what, at := timed(value)
		u.take(Begin(u.pod, changeOf(what), "r", at))
	},
	// record sets a record that another controller has written.
	"record":   (*update).record,
	"noRecord": func(u *update, _ string) { clear(u.pod.Annotations) },
	// write writes the resources, after the record was written.
	"write": func(u *update, _ string) {
		for name, resources := range Resizes(u.pod) {
			ContainerOf(u.pod, name).Resources = resources
			u.pod.Generation++
		}
	},

	"seen":       (*update).see,
	"oldKubelet": func(u *update, _ string) { u.pod.Generation, u.pod.Status.ObservedGeneration = 0, 0 },
	"noStatus":   func(u *update, _ string) { u.pod.Status.ContainerStatuses = nil },
	// runs sets the status of a container, such as "main app:2 second since 5s as app:1 waiting
	// ErrImagePull".
	"runs": func(u *update, value string) { *StatusOf(u.pod, strings.Fields(value)[0]) = statusIn(value) },
	// runsAlone does the same, and the kubelet reports no other container.
	"runsAlone": func(u *update, value string) {
		u.pod.Status.ContainerStatuses = []corev1.ContainerStatus{statusIn(value)}
	},
	// between is the time when a container's old image runs no longer, and the new one not yet.
	"between": func(u *update, _ string) {
		u.pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "main", Image: "app:1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}
	},
	// ready makes containers such as "a b" run and ready, as the kubelet does.
	"ready": func(u *update, names string) {
		u.see("")
		for name := range strings.FieldsSeq(names) {
			*StatusOf(u.pod, name) = running(name, ImageOf(u.pod, name), "2", time.Minute)
		}
	},
	"unready":     func(u *update, name string) { StatusOf(u.pod, name).Ready = false },
	"reports":     (*update).report,
	"reportsNone": func(u *update, _ string) { u.pod.Status.ContainerStatuses[0].Resources = nil },
	"waiting": func(u *update, reason string) {
		u.pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	},
	// condition sets a condition of the kubelet, such as "PodResizePending=True Infeasible too much".
	"condition": func(u *update, value string) {
		kind, why, _ := strings.Cut(value, " ")
		kind, status, _ := strings.Cut(kind, "=")
		reason, message, _ := strings.Cut(why, " ")
		u.pod.Status.Conditions = append(u.pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodConditionType(kind), Status: corev1.ConditionStatus(status), Reason: reason, Message: message,
		})
	},

	"done": func(u *update, value string) {
		_, now := timed(value)
		switch done, at := u.state().Done(u.pod, now); {
		case done:
			u.notice("done")
		case at.IsZero():
			u.notice("not done")
		default:
			u.notice("not done before %s", at.Sub(t0))
		}
	},
	"waits": func(u *update, _ string) { u.notice("waits for %v", u.state().Waits(u.pod, t0.Add(time.Hour))) },
	// next takes the next step of the update, if it is due.
	"next": func(u *update, value string) {
		_, now := timed(value)
		if step, due := Next(u.pod, now); due {
			u.take(step)
			u.notice("next %v %v %v", slices.Sorted(maps.Keys(step.Images)), step.Labels, step.Annotations)
			return
		}
		u.notice("nothing is due")
	},
	// pending prints the change by a template with these resources of main.
	"pending": func(u *update, resources string) {
		to := fmt.Sprintf("spec: {containers: [{name: main, image: app:1, resources: %s}, {name: gone, resources: {requests: {cpu: 1}}}]}", resources)
		u.noticed = append(u.noticed, render(Pending(u.pod, template(to)), nil)...)
	},
	"image": func(u *update, name string) { u.notice("%s", ImageOf(u.pod, name)) },
	"resources": func(u *update, name string) {
		u.notice("%s has %s", name, amounts(ContainerOf(u.pod, name).Resources))
	},
	"resizes": func(u *update, _ string) {
		for name, resources := range Resizes(u.pod) {
			u.notice("%s becomes %s", name, amounts(resources))
		}
	},
	"trouble":  func(u *update, _ string) { u.notice("trouble %q", ResizeTrouble(u.pod)) },
	"runsSpec": func(u *update, _ string) { u.notice("runs its spec: %t", RunsSpec(u.pod)) },
	// leads moves the Pod to the gate of the hook, some time after t0.
	"leads": func(u *update, after string) {
		u.pod.Labels[apps.LabelLifecycleState] = string(apps.StatePreparingUpdate)
		u.pod.Annotations[apps.AnnotationLifecycleTimestamp] = t0.Add(scenariotest.Duration(after)).Format(time.RFC3339)
	},
	"left": func(u *update, _ string) {
		if left := u.state().Left; left.IsZero() {
			u.notice("led to no hook")
		} else {
			u.notice("left at %s", left.Sub(t0))
		}
	},
	// members prints the members of the record, and the number of batches.
	"members": func(u *update, _ string) {
		var record map[string]any
		if err := json.Unmarshal([]byte(u.pod.Annotations[apps.AnnotationInPlaceUpdateState]), &record); err != nil {
			panic(err) // it was encoded before
		}
		u.notice("%s", strings.Join(slices.Sorted(maps.Keys(record)), " "))
		u.notice("%d batches", len(u.state().ContainerBatchesRecord))
	},
}

func (u *update) notice(format string, args ...any) {
	u.noticed = append(u.noticed, fmt.Sprintf(format, args...))
}

func (u *update) see(string) { u.pod.Status.ObservedGeneration = u.pod.Generation }

func (u *update) record(text string) {
	u.pod.Annotations[apps.AnnotationInPlaceUpdateState] = text
	u.pod.Labels[apps.LabelLifecycleState] = string(apps.StateUpdating)
}

// report sets the cpu and memory that the kubelet reports, and those that it has allocated if they
// differ.
func (u *update) report(value string) {
	amounts, status := strings.Fields(value), &u.pod.Status.ContainerStatuses[0]
	status.Resources = new(requests(amounts[0], amounts[1]))
	status.AllocatedResources = requests(amounts[2%len(amounts)], amounts[1]).Requests
}

func (u *update) set(name, image string) {
	ContainerOf(u.pod, name).Image = image
	u.pod.Generation++
}

// take writes a step as the controller does.
func (u *update) take(step Step) {
	u.record(step.State.String())
	for name, image := range step.Images {
		u.set(name, image)
	}
}

func (u *update) state() State {
	state, err := ParseState(u.pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil {
		panic(err) // The record in a scenario is misspelt.
	}
	return state
}

// timed cuts the time off, as in "a=a:2 at 5s".
func timed(value string) (what string, at time.Time) {
	what, after, late := strings.Cut(" "+value, " at ")
	if !late {
		return what, t0
	}
	return what, t0.Add(scenariotest.Duration(after))
}

// changeOf reads a change of images, cpu, and cpu limits.
func changeOf(text string) *Change {
	change := &Change{Images: map[string]string{}, Resources: map[string]corev1.ResourceRequirements{}}
	for part := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(part, "=")
		name, field, resized := strings.Cut(name, ".")
		switch {
		case !resized:
			change.Images[name] = value
		case field == "cpu":
			change.Resources[name] = requests(value, "64Mi")
		default: // a limit of cpu 1
			r := requests(value, "64Mi")
			r.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
			change.Resources[name] = r
		}
	}
	return change
}

// statusIn reads the status of a container.
func statusIn(text string) corev1.ContainerStatus {
	words := append(strings.Fields(text), "first")
	nth := map[string]string{"first": "1", "second": "2", "third": "3"}[words[2]]
	status := running(words[0], words[1], nth, -time.Hour)
	for pair := range slices.Chunk(words[3:max(len(words)-1, 3)], 2) {
		switch pair[0] {
		case "since":
			status.State.Running.StartedAt = metav1.NewTime(t0.Add(scenariotest.Duration(pair[1])))
		case "as":
			status.Image = pair[1]
		case "id":
			status.ImageID = pair[1]
		case "waiting":
			status.Ready, status.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: strings.Trim(pair[1], "-")}}
		}
	}
	return status
}

func requests(cpu, memory string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}}
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

// TestParseState: an absent record waits for nothing, an unreadable one is an error.
func TestParseState(t *testing.T) {
	state, err := ParseState("")
	if err != nil || len(state.LastContainerStatuses) != 0 {
		t.Errorf("absent: %+v, %v", state, err)
	}
	if _, err := ParseState("{"); err == nil {
		t.Error("half a record was read")
	}
	want := Begin(runningPod(), changeOf("main=app:2"), "r2", t0).State
	got, err := ParseState(want.String())
	if err != nil || got.String() != want.String() || got.Revision != "r2" || got.LastContainerStatuses["main"].ContainerID != "c-main1" {
		t.Errorf("round trip: %+v, %v", got, err)
	}
}
