// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

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
	containerOf(pod, name).Image = image
	pod.Generation++
}

func setStatus(pod *corev1.Pod, status corev1.ContainerStatus) {
	if have := statusOf(pod, status.Name); have != nil {
		*have = status
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

// step is what happens to a Pod next, or what is then known of it.
type step func(*corev1.Pod) error

func act(edit func(*corev1.Pod)) step {
	return func(pod *corev1.Pod) error { edit(pod); return nil }
}

// updates begins an update after some time.
func updates(after time.Duration, change *Change) step {
	return act(func(pod *corev1.Pod) { begin(pod, change, "r", t0.Add(after)) })
}

func mainTo(image string) *Change { return &Change{Images: map[string]string{"main": image}} }

// reports makes the kubelet report a container.
func reports(status corev1.ContainerStatus) step {
	return act(func(pod *corev1.Pod) { setStatus(pod, status) })
}

// reportsOnly makes it report no other one.
func reportsOnly(statuses ...corev1.ContainerStatus) step {
	return act(func(pod *corev1.Pod) { pod.Status.ContainerStatuses = statuses })
}

// done means that the update is known to be done after some time.
func done(after time.Duration) step { return isDoneThen(after, true) }

func notDone(after time.Duration) step { return isDoneThen(after, false) }

func isDoneThen(after time.Duration, want bool) step {
	return func(pod *corev1.Pod) error {
		state, err := ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
		if got, at := state.Done(pod, t0.Add(after)); got != want {
			return fmt.Errorf("after %v: done is %v, ask again at %v", after, got, at)
		}
		return err
	}
}

// askAgain means that the update is not done, and that time alone decides when it is.
func askAgain(after, at time.Duration) step {
	return func(pod *corev1.Pod) error {
		state, err := ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
		if got, again := state.Done(pod, t0.Add(after)); got || !again.Equal(t0.Add(at)) {
			return fmt.Errorf("after %v: done is %v, ask again after %v, want %v", after, got, again.Sub(t0), at)
		}
		return err
	}
}

// play runs the steps of each case on a Pod that runs app:1.
func play(t *testing.T, cases map[string][]step) {
	t.Helper()
	for name, steps := range cases {
		t.Run(name, func(t *testing.T) {
			pod := runningPod()
			for i, s := range steps {
				if err := s(pod); err != nil {
					t.Errorf("step %d: %v", i+1, err)
				}
			}
		})
	}
}

// waitingFor is a container that does not run, with the image that the kubelet names.
func waitingFor(reason string, status corev1.ContainerStatus) corev1.ContainerStatus {
	status.Ready, status.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	return status
}

var (
	sees     = act(see)
	isOld    = act(untracked) // a kubelet that does not report which spec it has observed
	noStatus = reportsOnly()
	v1, v2   = mainTo("app:1"), mainTo("app:2")
	// first runs from before the update, again is started after it from the same image.
	first    = running("main", "app:1", 1, t0.Add(-time.Hour))
	again    = running("main", "app:1", 2, t0.Add(time.Second))
	runsV2   = running("main", "app:2", 2, t0)
	alias    = withID("id-app:1", running("main", "app:2", 2, t0.Add(time.Second))) // the first image by its new name
	oldAlias = running("main", "app:1", 2, t0.Add(time.Second))                     // … and by its old one
)

func withID(id string, status corev1.ContainerStatus) corev1.ContainerStatus {
	status.ImageID = id
	return status
}

const hour = time.Hour

// TestDone determines when the kubelet runs what an update asked for.
func TestDone(t *testing.T) {
	const min = time.Minute
	play(t, map[string][]step{
		"nothing happened yet":                                         {updates(0, v2), notDone(min)},
		"the kubelet has seen it only":                                 {updates(0, v2), sees, notDone(min)},
		"the container is between images":                              {updates(0, v2), sees, reports(corev1.ContainerStatus{Name: "main", Image: "app:1"}), notDone(min)},
		"the new image runs":                                           {updates(0, v2), sees, reports(runsV2), done(min)},
		"the new image runs, status of an older spec":                  {updates(0, v2), reports(runsV2), notDone(min)},
		"the new image crashes, which is an answer too":                {updates(0, v2), sees, reports(waitingFor("CrashLoopBackOff", runsV2)), done(min)},
		"the same image under the new name":                            {updates(0, v2), sees, reports(alias), done(min)},
		"the same image, reported by its old name":                     {updates(0, v2), sees, reports(oldAlias), done(min)},
		"the status is gone":                                           {updates(0, v2), sees, noStatus, notDone(min)},
		"an old kubelet runs the new image":                            {updates(0, v2), isOld, reports(runsV2), done(min)},
		"an old kubelet runs the same image, new name":                 {updates(0, v2), isOld, reports(alias), done(min)},
		"an old kubelet runs the same image, reported by its old name": {updates(0, v2), isOld, reports(oldAlias), done(min)},
		"no node yet: it starts with the new image":                    {updates(0, v2), act(func(pod *corev1.Pod) { pod.Spec.NodeName = "" }), done(min)},
		"a sidecar is watched like any other": {
			updates(0, &Change{Images: map[string]string{"proxy": "proxy:2"}}), sees, notDone(0), reports(running("proxy", "proxy:2", 2, t0)), done(0)},
		"a container that never ran is done with its image": {noStatus, updates(0, v2), sees, notDone(0), reportsOnly(running("main", "app:2", 1, t0)), done(0)},
		"somebody has set the image by hand: no restart to wait for": {
			act(func(pod *corev1.Pod) { setImage(pod, "main", "app:2") }), reports(running("main", "app:2", 2, t0.Add(-time.Minute))), updates(0, v2), sees, done(0)},
	})
}

// TestOldNameOfTheSameImage: a container that was started since, but has the old name,
// may be one that the kubelet is about to stop; time decides. It is measured by its own
// update, not by a later one of others.
func TestOldNameOfTheSameImage(t *testing.T) {
	const proven = time.Second + 30*time.Second + stableAfter
	play(t, map[string][]step{
		"time decides":       {updates(0, v2), sees, reports(again), askAgain(2*time.Second, proven), done(proven)},
		"others are updated": {updates(0, v2), reports(again), updates(10*time.Second, &Change{}), sees, done(hour)},
	})
}

// TestRollback: if the kubelet has not acted, the container just keeps running, and that
// is known as soon as the kubelet has observed the last spec; a kubelet that does not
// report that is given time. If it has acted, an exited container proves nothing.
func TestRollback(t *testing.T) {
	play(t, map[string][]step{
		"before the kubelet acted": {updates(0, v2), updates(time.Second, v1), notDone(hour), sees, done(time.Second)},
		"with an old kubelet":      {updates(0, v2), updates(0, v1), isOld, askAgain(0, stableAfter), done(stableAfter)},
		"after the kubelet acted": {
			updates(0, v2), sees, reports(waitingFor("ImagePullBackOff", running("main", "app:1", 1, t0))), updates(time.Minute, v1), sees, notDone(hour),
			reports(running("main", "app:1", 2, t0.Add(2*time.Minute))), done(hour)},
	})
}

// TestThirdRevisionInFlight: the kubelet passes through the second image on its way to
// the third; that must not count as the end.
func TestThirdRevisionInFlight(t *testing.T) {
	third := func(kubelet step) []step {
		return []step{
			updates(0, v2), updates(time.Minute, mainTo("app:3")), sees, kubelet, reports(running("main", "app:2", 2, t0.Add(30*time.Second))), notDone(hour),
			reports(running("main", "app:3", 3, t0.Add(2*time.Minute))), done(hour)}
	}
	play(t, map[string][]step{"a new kubelet": third(sees), "an old kubelet": third(isOld)})
}

// TestUnfinishedContainersAreCarriedOver: a revision that changes another container, or
// only metadata, does not end the wait for the first one.
func TestUnfinishedContainersAreCarriedOver(t *testing.T) {
	then := func(change *Change) []step {
		return []step{updates(0, v2), updates(time.Second, change), sees, reports(running("log", "log:2", 2, t0)), notDone(hour), reports(runsV2), done(hour)}
	}
	play(t, map[string][]step{"another container": then(&Change{Images: map[string]string{"log": "log:2"}}), "metadata only": then(&Change{})})
}

// TestStartingWhenTheSpecChanged: a kubelet that was starting the old image may still do
// so; that is not the end either.
func TestStartingWhenTheSpecChanged(t *testing.T) {
	passing := running("main", "app:1", 1, t0.Add(time.Second))
	play(t, map[string][]step{"": {
		reports(corev1.ContainerStatus{Name: "main", Image: "app:1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}),
		updates(0, v2), sees, reports(passing), notDone(2 * time.Second), reports(waitingFor("", passing)), notDone(hour),
		reports(running("main", "app:2", 2, t0.Add(3*time.Second))), done(4 * time.Second),
	}})
}

// TestPassingThroughEarlierImages: the kubelet may pass through any image that the spec
// asked for since it last reported the container, not only the last one.
func TestPassingThroughEarlierImages(t *testing.T) {
	through := func(known step, passing string, images ...string) []step {
		steps := []step{known}
		for i, image := range images {
			steps = append(steps, updates(time.Duration(i)*time.Second, mainTo(image)))
		}
		last := running("main", images[len(images)-1], 3, t0.Add(time.Minute))
		return append(steps, sees, reportsOnly(running("main", passing, 2, t0.Add(-time.Second))), notDone(hour),
			reportsOnly(last), done(time.Minute), reportsOnly(waitingFor("CrashLoopBackOff", last)), done(time.Minute))
	}
	play(t, map[string][]step{
		"the image of an update two before":                               through(noStatus, "app:2", "app:2", "app:1", "app:3"),
		"the image that it was starting, before two names of another one": through(noStatus, "app:1", "app:2-alias", "app:2"),
		"the image of an update two before, of a container that ran":      through(act(func(*corev1.Pod) {}), "app:2", "app:2", "app:3", "app:4"),
	})
}

// TestNameOfAnImageThatIsNotThere: a kubelet that cannot get the image reports its name,
// with the ID of the container that ran until now; that proves nothing.
func TestNameOfAnImageThatIsNotThere(t *testing.T) {
	then := func(before step, image string, nth int) []step {
		status := waitingFor("ImagePullBackOff", running("main", image, nth, t0))
		status.Image = "app:2"
		return []step{before, updates(0, v2), sees, reportsOnly(status), notDone(hour), reportsOnly(running("main", "app:2", 3, t0.Add(time.Minute))), done(hour)}
	}
	nothing := act(func(*corev1.Pod) {})
	play(t, map[string][]step{
		"the container from before":                                 then(nothing, "app:1", 1),
		"one that was restarted before that, unknown to the record": then(nothing, "app:1", 2),
		"one that nobody knew of":                                   then(noStatus, "app:1", 1),
		"one of an image on the way":                                then(updates(-time.Second, mainTo("app:3")), "app:3", 2),
	})
}

// TestRecordOfOpenKruise: its record has only image IDs, and members of its own.
func TestRecordOfOpenKruise(t *testing.T) {
	record := `{"revision":"web-6f","updateTimestamp":"2026-01-02T03:04:05Z","lastContainerStatuses":{"main":{"imageID":"id-app:1"}},` +
		`"updateImages":true,"verticalUpdateOnly":false,"containerBatchesRecord":[{"timestamp":"2026-01-02T03:04:05Z","containers":["main"]}]}`
	resumed := act(func(pod *corev1.Pod) {
		setImage(pod, "main", "app:2")
		see(pod)
		pod.Annotations[apps.AnnotationInPlaceUpdateState] = record
	})
	play(t, map[string][]step{
		"old container":                       {resumed, reports(first), notDone(hour)},
		"new image":                           {resumed, reports(runsV2), done(hour)},
		"same image, new name":                {resumed, reports(alias), done(hour)},
		"same image, old name, started since": {resumed, reports(again), done(hour)},
	})
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
	want := Begin(runningPod(), v2, "r2", t0).State
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

// TestRunsSpec: without a record only the status decides.
func TestRunsSpec(t *testing.T) {
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
