// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// A Pod can be named for deletion in two ways, and be replaced or removed; the hook
// stops both.
func TestNamedPodsAreReplacedOrGoFirst(t *testing.T) {
	s := running(t, "hooked", `spec: {replicas: 3, updateStrategy: {maxUnavailable: 1}}`)
	pods := s.pods()
	s.label(pods[0].Name, apps.LabelSpecifiedDelete, "false")
	s.label(pods[1].Name, apps.LabelSpecifiedDelete, "true")
	s.patch(`spec: {scaleStrategy: {podsToDelete: [%s]}}`, pods[2].Name)
	first := s.one(apps.StatePreparingDelete) // maxUnavailable is 1: the other one waits
	s.label(first.Name, deleteKey, "false")
	s.gone(first.Name)
	second := s.one(apps.StatePreparingDelete)
	s.label(second.Name, deleteKey, "false")
	s.settled(3)
	left := s.identities()
	if left[pods[0].Name] != pods[0].UID || left[pods[1].Name] != "" || left[pods[2].Name] != "" {
		t.Errorf("of %v, %v are left", []string{pods[0].Name, pods[1].Name, pods[2].Name}, left)
	}
	s.until("the name to leave the list", func() bool { return len(s.set().Spec.ScaleStrategy.PodsToDelete) == 0 })

	victim := s.pods()[1].Name
	s.patch(`spec: {replicas: 2, scaleStrategy: {podsToDelete: [%s]}}`, victim)
	if waiting := s.one(apps.StatePreparingDelete); waiting.Name != victim {
		t.Errorf("%s goes, not %s", waiting.Name, victim)
	}
	s.label(victim, deleteKey, "false")
	s.settled(2)
	s.until("the name to leave the list", func() bool { return len(s.set().Spec.ScaleStrategy.PodsToDelete) == 0 })
	s.patch(`spec: {scaleStrategy: {podsToDelete: [another]}}`)
	s.isTrue(apps.ConditionFailedScale, "another, which is not a Pod of this CloneSet")
	s.event("PodsToDeleteUnknown")
}

// With the label on the CloneSet, a Pod at the gate before its deletion does not count:
// its replacement is created at once.
func TestPreparingDeleteLeftOutOfTheCount(t *testing.T) {
	s := running(t, "hooked", `metadata: {labels: {`+apps.LabelScalingExcludePreparingDelete+`: "true"}}`)
	victim := s.pods()[0].Name
	s.label(victim, apps.LabelSpecifiedDelete, "true")
	s.until("a replacement beside the Pod at its gate", func() bool {
		waiting := s.in(apps.StatePreparingDelete)
		return len(waiting) == 1 && waiting[0].Name == victim && len(s.pods()) == 3 && s.set().Status.AvailableReplicas == 2
	})
	s.label(victim, deleteKey, "false")
	s.settled(2)
}

// scaleStrategy.maxUnavailable limits how many Pods are created at a time.
func TestScaleOutIsBounded(t *testing.T) {
	s := begin(t)
	s.create("plain", preNormal, `spec: {scaleStrategy: {maxUnavailable: 1}}`)
	for count := range 3 {
		s.until("one more Pod, and no more", func() bool {
			return len(s.pods()) == count+1 && len(s.in(apps.StatePreparingNormal)) == 1
		})
		if e := s.event("ScaleUpLimited"); e.Type != corev1.EventTypeWarning || !strings.Contains(e.Note, "scaleStrategy.maxUnavailable keeps") {
			t.Errorf("event %s %q", e.Type, e.Note)
		}
		s.label(s.in(apps.StatePreparingNormal)[0].Name, preNormalKey, "true")
	}
	s.settled(3)
}

// A partition keeps old Pods. A percentage is rounded up; below 100 %, at least one Pod is
// updated.
func TestPartition(t *testing.T) {
	s := running(t, "plain")
	for _, step := range []struct {
		partition string
		updated   int32
	}{{"100%", 0}, {"99%", 1}, {"34%", 1}, {"2", 1}, {"33%", 2}, {"1", 2}, {"0%", 3}} {
		s.patch(`spec: {updateStrategy: {partition: %s}, template: {metadata: {annotations: {note: x}}}}`, step.partition)
		s.untilStatus("partition "+step.partition, func(status *apps.CloneSetStatus) bool {
			return status.ExpectedUpdatedReplicas == step.updated && status.UpdatedReplicas == step.updated &&
				status.UpdatedAvailableReplicas == step.updated && status.AvailableReplicas == 3 &&
				(status.CurrentRevision == status.UpdateRevision) == (step.updated == 3)
		})
	}
}

// A paused set keeps its replicas and states, and updates no Pod; once it is resumed, the
// update continues.
func TestPausedSet(t *testing.T) {
	s := running(t, "tooled", `spec: {progressDeadlineSeconds: 600}`)
	before := s.identities()
	s.patch(`spec: {updateStrategy: {paused: true, maxSurge: 1}}`)
	s.setImage("web:v2")
	s.untilStatus("the pause to be reported", func(*apps.CloneSetStatus) bool {
		return s.condition(apps.ConditionProgressing).Reason == "CloneSetPaused"
	})
	s.unchanged()
	if got := s.restarts(); got != "0+0 0+0 0+0" || s.set().Status.UpdatedReplicas != 0 {
		t.Errorf("restarts %s, updated %d", got, s.set().Status.UpdatedReplicas)
	}
	s.patch(`spec: {replicas: 4}`)
	s.until("a fourth Pod in service", func() bool { return s.set().Status.AvailableReplicas == 4 })
	s.observed()
	for _, pod := range s.pods() {
		if image := pod.Spec.Containers[0].Image; before[pod.Name] != "" && image != "example.test/web:v1" {
			t.Errorf("Pod %s was updated to %s", pod.Name, image)
		}
	}
	s.patch(`spec: {updateStrategy: {paused: false, maxSurge: 0}}`)
	if says := s.rolloutStatus(); says != "successfully rolled out" {
		t.Error(says)
	}
	s.settled(4)
	now := s.identities()
	for name, uid := range before {
		if now[name] != uid {
			t.Errorf("Pod %s was recreated", name)
		}
	}
	if got := s.restarts(); got != "0+0 1+0 1+0 1+0" {
		t.Errorf("restarts %s", got)
	}
}

// With OnDelete a Pod gets the new revision when somebody deletes it.
func TestOnDelete(t *testing.T) {
	s := running(t, "plain", `spec: {updateStrategy: {type: OnDelete}}`)
	before := s.identities()
	s.image("web:v2")
	s.observed()
	s.samePods(before)
	if s.set().Status.UpdatedReplicas != 0 {
		t.Errorf("Pods were updated: %s", s.picture())
	}
	for _, pod := range s.pods() {
		s.remove(pod.Name)
		s.until("its replacement in service", func() bool {
			status := s.set().Status
			return s.identities()[pod.Name] == "" && status.AvailableReplicas == 3 && status.Replicas == 3
		})
		for _, other := range s.pods() {
			want := "example.test/web:v2"
			if before[other.Name] != "" {
				want = "example.test/web:v1"
			}
			if image := other.Spec.Containers[0].Image; image != want {
				t.Errorf("Pod %s has %s, want %s", other.Name, image, want)
			}
		}
	}
	s.settled(3)
}

// The hook shows the order in which Pods are updated.
func TestOrderOfUpdates(t *testing.T) {
	tests := []struct {
		name, strategy string
		// labels of the four Pods, in the order of their names.
		labels [4]map[string]string
		// want are the Pods in the order of their update.
		want string
	}{
		{
			"by a label's trailing number",
			`priorityStrategy: {orderPriority: [{orderedKey: rank}]}`,
			[4]map[string]string{{"rank": "x-2"}, {"rank": "x-10"}, {}, {"rank": "x-3"}}, "1 3 0 2",
		},
		{
			"by the sum of weights",
			`priorityStrategy: {weightPriority: [{weight: 30, matchSelector: {matchLabels: {canary: "true"}}}, {weight: 20, matchSelector: {matchLabels: {zone: b}}}]}`,
			[4]map[string]string{{}, {"zone": "b"}, {"canary": "true"}, {"canary": "true", "zone": "b"}}, "3 2 1 0",
		},
		{
			"scattered", `scatterStrategy: [{key: group, value: a}]`,
			[4]map[string]string{{"group": "a"}, {"group": "a"}, {}, {}}, "0 2 3 1",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := running(t, "hooked", `spec: {replicas: 4, updateStrategy: {maxUnavailable: 1, `+test.strategy+`}}`)
			var names []string
			for i, pod := range s.pods() {
				names = append(names, pod.Name)
				for key, value := range test.labels[i] {
					s.label(pod.Name, key, value)
				}
			}
			s.image("web:v2")
			var order []string
			for range names {
				pod := s.one(apps.StatePreparingUpdate)
				order = append(order, strconv.Itoa(slices.Index(names, pod.Name)))
				s.confirm(pod.Name)
				s.until("the Pod to be in service", func() bool { return len(s.in(apps.StateUpdated)) == 0 })
			}
			if got := strings.Join(order, " "); got != test.want {
				t.Errorf("updated in the order %s, want %s", got, test.want)
			}
			s.settled(4)
		})
	}
}

// A Pod counts as available once it has been ready for long enough, and a rollout waits
// for that.
func TestMinReadySeconds(t *testing.T) {
	s := begin(t)
	s.create("plain", `spec: {replicas: 2, minReadySeconds: 2}`)
	s.until("two ready Pods", func() bool { return s.set().Status.ReadyReplicas == 2 })
	s.settled(2)
	s.longEnough()
	s.patch(`spec: {updateStrategy: {type: ReCreate}}`)
	s.image("web:v2")
	var status apps.CloneSetStatus
	s.until("the first one to be updated", func() bool {
		status = s.set().Status
		return status.UpdatedReadyReplicas == 1
	})
	if status.UpdatedAvailableReplicas != 0 || status.UpdatedReplicas != 1 {
		t.Errorf("the rollout goes on before its first Pod is available: %+v", status)
	}
	s.settled(2)
	s.longEnough()
}

// longEnough checks that all Pods have been ready for two seconds, except for the
// fraction of a second that an API time lacks.
func (s *story) longEnough() {
	s.Helper()
	now := metav1.Now()
	for _, pod := range s.pods() {
		if since := now.Sub(conditionOf(&pod, corev1.PodReady).LastTransitionTime.Time); since < 2*time.Second {
			s.Errorf("Pod %s passed for available %v after it was ready", pod.Name, since)
		}
	}
}

// The condition Progressing goes through its five reasons.
func TestProgressDeadline(t *testing.T) {
	s := begin(t)
	s.create("plain", `spec: {progressDeadlineSeconds: 600}`)
	progress := func(reason string, status corev1.ConditionStatus) {
		t.Helper()
		s.until("Progressing for the reason "+reason, func() bool {
			c := s.condition(apps.ConditionProgressing)
			return c.Reason == reason && c.Status == status && c.Message != ""
		})
	}
	progress("CloneSetAvailable", corev1.ConditionTrue)
	s.patch(`spec: {updateStrategy: {partition: 2}}`)
	s.image("web:v2")
	progress("ProgressPartitionAvailable", corev1.ConditionTrue)
	s.patch(`spec: {updateStrategy: {partition: 0}}`)
	s.image("missing:v1")
	progress("CloneSetUpdated", corev1.ConditionTrue)
	s.patch(`spec: {updateStrategy: {paused: true}}`)
	progress("CloneSetPaused", corev1.ConditionTrue)
	s.patch(`spec: {updateStrategy: {paused: false}, progressDeadlineSeconds: 1}`)
	progress("ProgressDeadlineExceeded", corev1.ConditionFalse)
	s.image("web:v3")
	progress("CloneSetAvailable", corev1.ConditionTrue)
	s.settled(3)
}
