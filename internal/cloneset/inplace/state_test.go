// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

var (
	t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	to = &Change{Images: map[string]string{"main": "app:2"}}
)

// runningPod runs app:1 with a kubelet that reports which spec it has observed.
func runningPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Generation: 1, Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			NodeName:       "n1",
			Containers:     []corev1.Container{{Name: "main", Image: "app:1"}, {Name: "log", Image: "log:1"}},
			InitContainers: []corev1.Container{{Name: "proxy", Image: "proxy:1"}},
		},
		Status: corev1.PodStatus{
			ObservedGeneration:    1,
			ContainerStatuses:     []corev1.ContainerStatus{running("main", "app:1", 1, t0.Add(-time.Hour)), running("log", "log:1", 1, t0.Add(-time.Hour))},
			InitContainerStatuses: []corev1.ContainerStatus{running("proxy", "proxy:1", 1, t0.Add(-time.Hour))},
		},
	}
}

// running is the status of the nth container that runs under a name, from an image with
// that name and the ID "id-" plus the name.
func running(name, image string, nth int, at time.Time) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: name, Image: image, ImageID: "id-" + image, ContainerID: "c-" + name + string(rune('0'+nth)), Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}},
	}
}

func setImage(pod *corev1.Pod, name, image string) {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				list[i].Image = image
			}
		}
	}
	pod.Generation++
}

func setStatus(pod *corev1.Pod, status corev1.ContainerStatus) {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == status.Name {
				list[i] = status
			}
		}
	}
}

// begin writes a change to the Pod as the controller does.
func begin(pod *corev1.Pod, change *Change, revision string, now time.Time) {
	state := Begin(pod, change, revision, now).State
	pod.Annotations[apps.AnnotationInPlaceUpdateState] = state.String()
	pod.Labels[apps.LabelLifecycleState] = string(apps.StateUpdating)
	for name, image := range change.Images {
		setImage(pod, name, image)
	}
}

func isDone(t *testing.T, pod *corev1.Pod, now time.Time) (bool, time.Time) {
	t.Helper()
	state, err := ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil {
		t.Fatal(err)
	}
	return state.Done(pod, now)
}

func see(pod *corev1.Pod)       { pod.Status.ObservedGeneration = pod.Generation }
func untracked(pod *corev1.Pod) { pod.Generation, pod.Status.ObservedGeneration = 0, 0 }

// TestDone determines step by step when the kubelet runs what an update asked for.
func TestDone(t *testing.T) {
	waiting := corev1.ContainerStatus{Name: "main", Image: "app:1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}
	alias := running("main", "app:2", 2, t0.Add(time.Second))
	alias.ImageID = "id-app:1"
	aliasOldName := alias
	aliasOldName.Image = "app:1"
	tests := []struct {
		name  string
		steps func(pod *corev1.Pod)
		want  bool
	}{
		{"nothing happened yet", func(*corev1.Pod) {}, false},
		{"the kubelet has seen it only", see, false},
		{"the container is between images", func(pod *corev1.Pod) { see(pod); setStatus(pod, waiting) }, false},
		{"the new image runs", func(pod *corev1.Pod) { see(pod); setStatus(pod, running("main", "app:2", 2, t0)) }, true},
		{"the new image runs, status of an older spec", func(pod *corev1.Pod) { setStatus(pod, running("main", "app:2", 2, t0)) }, false},
		{"the new image crashes, which is an answer too", func(pod *corev1.Pod) {
			see(pod)
			status := running("main", "app:2", 2, t0)
			status.Ready, status.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			setStatus(pod, status)
		}, true},
		{"the same image under the new name", func(pod *corev1.Pod) { see(pod); setStatus(pod, alias) }, true},
		{"the same image, reported by its old name", func(pod *corev1.Pod) { see(pod); setStatus(pod, aliasOldName) }, true},
		{"the status is gone", func(pod *corev1.Pod) { see(pod); pod.Status.ContainerStatuses = nil }, false},
		{"an old kubelet runs the new image", func(pod *corev1.Pod) { untracked(pod); setStatus(pod, running("main", "app:2", 2, t0)) }, true},
		{"an old kubelet runs the same image, new name", func(pod *corev1.Pod) { untracked(pod); setStatus(pod, alias) }, true},
		{"an old kubelet runs the same image, reported by its old name", func(pod *corev1.Pod) { untracked(pod); setStatus(pod, aliasOldName) }, true},
		{"no node yet: it starts with the new image", func(pod *corev1.Pod) { pod.Spec.NodeName = "" }, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pod := runningPod()
			begin(pod, to, "r2", t0)
			test.steps(pod)
			if got, at := isDone(t, pod, t0.Add(time.Minute)); got != test.want {
				t.Errorf("Done = %v at %v, want %v", got, at, test.want)
			}
		})
	}
}

// TestOldNameOfTheSameImage: a container that was started since, but has the old name,
// may be one that the kubelet is about to stop; time decides.
func TestOldNameOfTheSameImage(t *testing.T) {
	pod := runningPod()
	begin(pod, to, "r2", t0)
	see(pod)
	status := running("main", "app:1", 2, t0.Add(time.Second))
	setStatus(pod, status)
	got, at := isDone(t, pod, t0.Add(2*time.Second))
	if want := t0.Add(time.Second + 30*time.Second + stableAfter); got || !at.Equal(want) {
		t.Fatalf("Done = %v, ask again at %v; want %v", got, at, want)
	}
	if got, _ := isDone(t, pod, at); !got {
		t.Error("not done although the container runs on")
	}
}

// TestDoneSidecar: a sidecar among the init containers is watched like any other.
func TestDoneSidecar(t *testing.T) {
	pod := runningPod()
	begin(pod, &Change{Images: map[string]string{"proxy": "proxy:2"}}, "r2", t0)
	see(pod)
	if got, _ := isDone(t, pod, t0); got {
		t.Error("done before the sidecar was restarted")
	}
	setStatus(pod, running("proxy", "proxy:2", 2, t0))
	if got, _ := isDone(t, pod, t0); !got {
		t.Error("not done although the sidecar runs the new image")
	}
}

// TestRollbackBeforeTheKubeletActed: the container just keeps running, and that is known
// as soon as the kubelet has observed the last spec.
func TestRollbackBeforeTheKubeletActed(t *testing.T) {
	pod := runningPod()
	begin(pod, to, "r2", t0)
	begin(pod, &Change{Images: map[string]string{"main": "app:1"}}, "r1", t0.Add(time.Second))
	if got, _ := isDone(t, pod, t0.Add(time.Hour)); got {
		t.Error("done before the kubelet saw the last spec: it may be restarting the container for the one before")
	}
	see(pod)
	if got, _ := isDone(t, pod, t0.Add(time.Second)); !got {
		t.Error("not done although the container runs what the spec asks for")
	}
}

// TestRollbackWithAnOldKubelet: a kubelet that does not report what it has observed is
// given time, and the Pod does not wait forever.
func TestRollbackWithAnOldKubelet(t *testing.T) {
	pod := runningPod()
	begin(pod, to, "r2", t0)
	begin(pod, &Change{Images: map[string]string{"main": "app:1"}}, "r1", t0)
	untracked(pod)
	got, at := isDone(t, pod, t0)
	if got || !at.Equal(t0.Add(stableAfter)) {
		t.Fatalf("Done = %v, ask again at %v", got, at)
	}
	if got, _ := isDone(t, pod, at); !got {
		t.Error("not done when the time is over")
	}
}

// TestRollbackAfterTheKubeletActed: the container of the first image is already gone; an
// exited one that the kubelet still shows proves nothing.
func TestRollbackAfterTheKubeletActed(t *testing.T) {
	pod := runningPod()
	begin(pod, to, "r2", t0)
	see(pod)
	exited := running("main", "app:1", 1, t0)
	exited.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
	setStatus(pod, exited)
	begin(pod, &Change{Images: map[string]string{"main": "app:1"}}, "r1", t0.Add(time.Minute))
	see(pod)
	if got, _ := isDone(t, pod, t0.Add(time.Hour)); got {
		t.Error("done while the container does not run")
	}
	setStatus(pod, running("main", "app:1", 2, t0.Add(2*time.Minute)))
	if got, _ := isDone(t, pod, t0.Add(time.Hour)); !got {
		t.Error("not done although the old image runs again")
	}
}

// TestThirdRevisionInFlight: the kubelet passes through the second image on its way to
// the third; that must not count as the end.
func TestThirdRevisionInFlight(t *testing.T) {
	for _, old := range []bool{false, true} {
		pod := runningPod()
		begin(pod, to, "r2", t0)
		begin(pod, &Change{Images: map[string]string{"main": "app:3"}}, "r3", t0.Add(time.Minute))
		see(pod)
		if old {
			untracked(pod)
		}
		setStatus(pod, running("main", "app:2", 2, t0.Add(30*time.Second)))
		if got, _ := isDone(t, pod, t0.Add(time.Hour)); got {
			t.Error("done with the image of the revision before")
		}
		setStatus(pod, running("main", "app:3", 3, t0.Add(2*time.Minute)))
		if got, _ := isDone(t, pod, t0.Add(time.Hour)); !got {
			t.Error("not done with the wanted image")
		}
	}
}

// TestUnfinishedContainersAreCarriedOver: a revision that changes another container, or
// only metadata, does not end the wait for the first one.
func TestUnfinishedContainersAreCarriedOver(t *testing.T) {
	for name, change := range map[string]*Change{
		"another container": {Images: map[string]string{"log": "log:2"}},
		"metadata only":     {},
	} {
		t.Run(name, func(t *testing.T) {
			pod := runningPod()
			begin(pod, to, "r2", t0)
			begin(pod, change, "r3", t0.Add(time.Second))
			see(pod)
			setStatus(pod, running("log", "log:2", 2, t0))
			if got, _ := isDone(t, pod, t0.Add(time.Hour)); got {
				t.Error("done while main still runs the old image")
			}
			setStatus(pod, running("main", "app:2", 2, t0))
			if got, _ := isDone(t, pod, t0.Add(time.Hour)); !got {
				t.Error("not done although both run what they should")
			}
		})
	}
}

// TestNothingToDoForTheKubelet: someone has already set the image by hand, so no
// container will restart, and none is waited for.
func TestNothingToDoForTheKubelet(t *testing.T) {
	pod := runningPod()
	setImage(pod, "main", "app:2")
	setStatus(pod, running("main", "app:2", 2, t0.Add(-time.Minute)))
	begin(pod, to, "r2", t0)
	see(pod)
	if got, _ := isDone(t, pod, t0); !got {
		t.Error("waits for a restart that never comes")
	}
}

// TestFirstStart: a container that never ran is done as soon as it has an image.
func TestFirstStart(t *testing.T) {
	pod := runningPod()
	pod.Status.ContainerStatuses = nil
	begin(pod, to, "r2", t0)
	see(pod)
	if got, _ := isDone(t, pod, t0); got {
		t.Error("done before the kubelet reported the container")
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{running("main", "app:2", 1, t0)}
	if got, _ := isDone(t, pod, t0); !got {
		t.Error("not done although the container runs")
	}
}

// TestStartingWhenTheSpecChanged: a kubelet that was starting the old image may still do
// so; that is not the end either.
func TestStartingWhenTheSpecChanged(t *testing.T) {
	pod := runningPod()
	pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "main", Image: "app:1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}
	begin(pod, to, "r2", t0)
	see(pod)
	passing := running("main", "app:1", 1, t0.Add(time.Second))
	setStatus(pod, passing)
	if got, _ := isDone(t, pod, t0.Add(2*time.Second)); got {
		t.Error("done while the old image runs for a moment")
	}
	passing.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	setStatus(pod, passing)
	if got, _ := isDone(t, pod, t0.Add(time.Hour)); got {
		t.Error("done while the old image is gone and the new one not there")
	}
	setStatus(pod, running("main", "app:2", 2, t0.Add(3*time.Second)))
	if got, _ := isDone(t, pod, t0.Add(4*time.Second)); !got {
		t.Error("not done with the wanted image")
	}
}

// TestPassingThroughEarlierImages: the kubelet may pass through any image that the spec
// asked for since it last reported the container, not only the last one.
func TestPassingThroughEarlierImages(t *testing.T) {
	image := func(name string) *Change { return &Change{Images: map[string]string{"main": name}} }
	tests := []struct {
		name    string
		known   bool // the kubelet reported the container before the updates
		through []string
		passing string
	}{
		{"the image of an update two before", false, []string{"app:2", "app:1", "app:3"}, "app:2"},
		{"the image that it was starting, before two names of another one", false, []string{"app:2-alias", "app:2"}, "app:1"},
		{"the image of an update two before, of a container that ran", true, []string{"app:2", "app:3", "app:4"}, "app:2"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pod := runningPod()
			if !test.known {
				pod.Status.ContainerStatuses = nil
			}
			for i, name := range test.through {
				begin(pod, image(name), "r", t0.Add(time.Duration(i)*time.Second))
			}
			see(pod)
			status := running("main", test.passing, 2, t0.Add(-time.Second))
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
			if got, _ := isDone(t, pod, t0.Add(time.Hour)); got {
				t.Errorf("done while %s runs", test.passing)
			}
			last := test.through[len(test.through)-1]
			right := running("main", last, 3, t0.Add(time.Minute))
			for what, state := range map[string]corev1.ContainerState{
				"runs": right.State, "crashes": {Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			} {
				right.State = state
				pod.Status.ContainerStatuses[0] = right
				if got, _ := isDone(t, pod, t0.Add(time.Minute)); !got {
					t.Errorf("not done while %s %s", last, what)
				}
			}
		})
	}
}

// TestNameOfAnImageThatIsNotThere: a kubelet that cannot get the image reports its name,
// with the ID of the container that ran until now; that proves nothing.
func TestNameOfAnImageThatIsNotThere(t *testing.T) {
	backOff := func(image string, nth int) corev1.ContainerStatus {
		status := running("main", image, nth, t0)
		status.Ready, status.Image = false, "app:2"
		status.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
		return status
	}
	tests := []struct {
		name   string
		before func(pod *corev1.Pod)
		status corev1.ContainerStatus
	}{
		{"the container from before", func(*corev1.Pod) {}, backOff("app:1", 1)},
		{"one that was restarted before that, unknown to the record", func(*corev1.Pod) {}, backOff("app:1", 2)},
		{"one that nobody knew of", func(pod *corev1.Pod) { pod.Status.ContainerStatuses = nil }, backOff("app:1", 1)},
		{"one of an image on the way", func(pod *corev1.Pod) {
			begin(pod, &Change{Images: map[string]string{"main": "app:3"}}, "r3", t0.Add(-time.Second))
		}, backOff("app:3", 2)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pod := runningPod()
			test.before(pod)
			begin(pod, to, "r2", t0)
			see(pod)
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{test.status}
			if got, _ := isDone(t, pod, t0.Add(time.Hour)); got {
				t.Error("done although the image is not there")
			}
			pod.Status.ContainerStatuses[0] = running("main", "app:2", 3, t0.Add(time.Minute))
			if got, _ := isDone(t, pod, t0.Add(time.Hour)); !got {
				t.Error("not done although the wanted image runs")
			}
		})
	}
}

// TestRecordOfOpenKruise: its record has only image IDs, and members of its own.
func TestRecordOfOpenKruise(t *testing.T) {
	record := `{"revision":"web-6f","updateTimestamp":"2026-01-02T03:04:05Z","lastContainerStatuses":{"main":{"imageID":"id-app:1"}},` +
		`"updateImages":true,"verticalUpdateOnly":false,"containerBatchesRecord":[{"timestamp":"2026-01-02T03:04:05Z","containers":["main"]}]}`
	alias := running("main", "app:2", 2, t0)
	alias.ImageID = "id-app:1"
	restarted := running("main", "app:1", 2, t0.Add(time.Second))
	tests := []struct {
		name   string
		status corev1.ContainerStatus
		want   bool
	}{
		{"old container", running("main", "app:1", 1, t0.Add(-time.Hour)), false},
		{"new image", running("main", "app:2", 2, t0), true},
		{"same image, new name", alias, true},
		{"same image, old name, restarted since", restarted, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pod := runningPod()
			setImage(pod, "main", "app:2")
			see(pod)
			pod.Annotations[apps.AnnotationInPlaceUpdateState] = record
			setStatus(pod, test.status)
			if got, _ := isDone(t, pod, t0.Add(time.Hour)); got != test.want {
				t.Errorf("Done = %v, want %v", got, test.want)
			}
		})
	}
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
	want := Begin(runningPod(), to, "r2", t0).State
	got, err := ParseState(want.String())
	if err != nil || got.String() != want.String() || got.Revision != "r2" || got.LastContainerStatuses["main"].ContainerID != "c-main1" {
		t.Errorf("round trip: %+v, %v", got, err)
	}
	var raw map[string]any
	if err := json.Unmarshal([]byte(want.String()), &raw); err != nil {
		t.Fatal(err)
	}
	for _, member := range []string{"revision", "updateTimestamp", "lastContainerStatuses", "updateImages"} {
		if _, ok := raw[member]; !ok {
			t.Errorf("the record lacks %q, which OpenKruise reads", member)
		}
	}
}

// TestSettled: without a record only the status decides.
func TestSettled(t *testing.T) {
	pod := runningPod()
	if !RunsSpec(pod) {
		t.Error("a Pod that runs its spec counts as behind")
	}
	setImage(pod, "main", "app:2")
	if RunsSpec(pod) {
		t.Error("done before the kubelet has seen the spec")
	}
	untracked(pod)
	if RunsSpec(pod) {
		t.Error("done with another image than the spec's")
	}
	setStatus(pod, running("main", "docker.io/library/app:2", 2, t0))
	if !RunsSpec(pod) {
		t.Error("not done with the spec's image")
	}
}
