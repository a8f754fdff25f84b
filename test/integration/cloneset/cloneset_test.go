// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

func TestScaleOutAndIn(t *testing.T) {
	s := begin(t)
	s.create(plain)
	s.settled(3)
	for _, pod := range s.pods() {
		id := pod.Labels[apps.LabelInstanceID]
		if pod.Name != "web-"+id || len(id) != 5 {
			t.Errorf("Pod %s has the instance id %q", pod.Name, id)
		}
		if long, short := pod.Labels[apps.LabelRevision], pod.Labels[apps.LabelTemplateHash]; long != "web-"+short {
			t.Errorf("revision labels %q and %q", long, short)
		}
	}
	s.patch(`spec: {replicas: 6}`)
	s.settled(6)
	s.patch(`spec: {replicas: 1}`)
	s.settled(1)
}

func TestInPlaceUpdateKeepsThePods(t *testing.T) {
	s := begin(t)
	s.create(plain)
	s.settled(3)
	before := s.identities()
	s.image("example.test/web:v2")
	s.settled(3)
	if after := s.identities(); !maps.Equal(before, after) {
		t.Errorf("Pods were replaced: %v, then %v", before, after)
	}
	for _, pod := range s.pods() {
		if status := pod.Status.ContainerStatuses[0]; status.RestartCount != 1 || status.Image != "example.test/web:v2" {
			t.Errorf("Pod %s: %d restarts, image %s", pod.Name, status.RestartCount, status.Image)
		}
	}
}

func TestMetadataChangesWithoutARestart(t *testing.T) {
	s := begin(t)
	s.create(plain)
	s.settled(3)
	s.patch(`spec: {template: {metadata: {labels: {tier: front}, annotations: {note: x}}}}`)
	s.settled(3)
	for _, pod := range s.pods() {
		if pod.Labels["tier"] != "front" || pod.Annotations["note"] != "x" || pod.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("Pod %s: labels %v, annotations %v, %d restarts",
				pod.Name, pod.Labels, pod.Annotations, pod.Status.ContainerStatuses[0].RestartCount)
		}
	}
}

func TestWhatCannotBeInPlaceIsRecreated(t *testing.T) {
	s := begin(t)
	s.create(plain)
	s.settled(3)
	before := s.identities()
	s.patch(`spec: {template: {spec: {containers: [{name: main, image: "example.test/web:v1", env: [{name: A, value: b}]}]}}}`)
	s.settled(3)
	for name := range s.identities() {
		if _, kept := before[name]; kept {
			t.Errorf("Pod %s was not recreated", name)
		}
	}
}

func TestInPlaceOnlySaysWhyItCannot(t *testing.T) {
	s := begin(t)
	s.create(plain, "spec.updateStrategy.type", "InPlaceOnly")
	s.settled(3)
	before := s.identities()
	s.patch(`spec: {template: {spec: {terminationGracePeriodSeconds: 7}}}`)
	s.until("the condition FailedUpdate", func() bool { return s.condition(apps.ConditionFailedUpdate).Status == corev1.ConditionTrue })
	if message := s.condition(apps.ConditionFailedUpdate).Message; !strings.Contains(message, "spec.template.spec.terminationGracePeriodSeconds differs") {
		t.Errorf("message %q", message)
	}
	if !maps.Equal(before, s.identities()) {
		t.Error("Pods were recreated")
	}
	s.patch(`spec: {template: {spec: {terminationGracePeriodSeconds: null}}}`)
	s.until("the condition to clear", func() bool { return s.condition(apps.ConditionFailedUpdate).Status == corev1.ConditionFalse })
}

// The first seed's life: each gate holds until somebody confirms.
func TestHooksHoldEachGate(t *testing.T) {
	s := begin(t)
	s.create(hooked)
	s.settled(2)
	s.image("example.test/web:v2")
	for range 2 {
		pod := s.one(apps.StatePreparingUpdate)
		s.until("the condition Blocked to name the Pod", func() bool {
			c := s.condition(apps.ConditionBlocked)
			return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, pod.Name) && strings.Contains(c.Message, inPlaceKey)
		})
		if image := pod.Spec.Containers[0].Image; image != "example.test/web:v1" {
			t.Errorf("the held Pod has %s already", image)
		}
		s.label(pod.Name, inPlaceKey, "false")
		if updated := s.one(apps.StateUpdated); updated.Name != pod.Name || updated.Spec.Containers[0].Image != "example.test/web:v2" {
			t.Errorf("updated %s to %s", updated.Name, updated.Spec.Containers[0].Image)
		}
		s.label(pod.Name, inPlaceKey, "true")
	}
	s.settled(2)
	s.until("nothing to be blocked", func() bool { return s.condition(apps.ConditionBlocked).Status == corev1.ConditionFalse })

	s.patch(`spec: {replicas: 1}`)
	pod := s.one(apps.StatePreparingDelete)
	s.label(pod.Name, deleteKey, "false")
	s.settled(1)
}

func TestRecreatePassesThePreDeleteHook(t *testing.T) {
	s := begin(t)
	s.create(hooked, "spec.updateStrategy.type", "ReCreate")
	s.settled(2)
	before := s.identities()
	s.image("example.test/web:v2")
	for range 2 {
		pod := s.one(apps.StatePreparingDelete)
		if count := len(s.pods()); count != 2 {
			t.Errorf("%d Pods while %s is held: %s", count, pod.Name, s.picture())
		}
		s.label(pod.Name, deleteKey, "false")
		s.gone(pod.Name)
	}
	s.settled(2)
	for name := range s.identities() {
		if _, kept := before[name]; kept {
			t.Errorf("Pod %s was not recreated", name)
		}
	}
}

func TestACancelledDeleteIsProtectedAgain(t *testing.T) {
	s := begin(t)
	s.create(hooked, "spec.lifecycle.preNormal.labelsHandler", map[string]any{preNormalKey: "true"},
		"spec.template.metadata.labels", map[string]any{"app": "web", preNormalKey: "false", inPlaceKey: "true", deleteKey: "true"})
	s.until("two Pods before their first gate", func() bool { return len(s.in(apps.StatePreparingNormal)) == 2 })
	for _, pod := range s.pods() {
		s.label(pod.Name, preNormalKey, "true")
	}
	s.settled(2)
	s.patch(`spec: {replicas: 1}`)
	pod := s.one(apps.StatePreparingDelete)
	s.patch(`spec: {replicas: 2}`)
	back := s.one(apps.StatePreparingNormal)
	if back.Name != pod.Name || back.Labels[deleteKey] != "true" || back.Labels[preNormalKey] != "false" {
		t.Errorf("came back as %s with labels %v", back.Name, back.Labels)
	}
	s.label(pod.Name, preNormalKey, "true")
	s.settled(2)
}

func TestARollbackBeforeTheUpdateRestartsNothing(t *testing.T) {
	s := begin(t)
	s.create(hooked)
	s.settled(2)
	s.image("example.test/web:v2")
	s.one(apps.StatePreparingUpdate)
	s.image("example.test/web:v1")
	s.settled(2)
	for _, pod := range s.pods() {
		if pod.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("Pod %s was restarted", pod.Name)
		}
	}
}

func TestPreNormalKeepsNewPodsUnavailable(t *testing.T) {
	s := begin(t)
	s.create(plain, "spec.lifecycle.preNormal.labelsHandler", map[string]any{preNormalKey: "true"},
		"spec.template.metadata.labels", map[string]any{"app": "web", preNormalKey: "false"},
		"spec.updateStrategy", map[string]any{"type": "ReCreate", "maxSurge": int64(1), "maxUnavailable": int64(0)})
	online := func() {
		for _, pod := range s.in(apps.StatePreparingNormal) {
			s.label(pod.Name, preNormalKey, "true")
		}
	}
	s.until("three Pods before their first gate", func() bool { return len(s.in(apps.StatePreparingNormal)) == 3 })
	online()
	s.settled(3)
	old := s.identities()
	s.image("example.test/web:v2")
	s.one(apps.StatePreparingNormal)
	for name := range old {
		if _, kept := s.identities()[name]; !kept {
			t.Errorf("Pod %s went before its successor was available", name)
		}
	}
	s.until("all three to be replaced", func() bool {
		online()
		status := s.set().Status
		return status.UpdatedAvailableReplicas == 3 && status.Replicas == 3
	})
}

func TestPartitionKeepsOldPods(t *testing.T) {
	s := begin(t)
	s.create(plain, "spec.updateStrategy.partition", 2)
	s.until("three available Pods", func() bool { return s.set().Status.AvailableReplicas == 3 })
	s.image("example.test/web:v2")
	s.until("one updated Pod", func() bool {
		status := s.set().Status
		return status.UpdatedAvailableReplicas == 1 && status.AvailableReplicas == 3 && status.ExpectedUpdatedReplicas == 1
	})
	status := s.set().Status
	if status.CurrentRevision == status.UpdateRevision || status.UpdatedReplicas != 1 {
		t.Errorf("the partition did not hold: %+v", status)
	}
	s.patch(`spec: {updateStrategy: {partition: 0}}`)
	s.settled(3)
}

func TestABadTemplateCostsNoPod(t *testing.T) {
	s := begin(t)
	s.create(plain)
	s.settled(3)
	before := s.identities()
	s.patch(`spec: {template: {spec: {containers: [{name: main, image: "example.test/web:v2", imagee: typo}]}}}`)
	s.until("the condition FailedUpdate", func() bool {
		c := s.condition(apps.ConditionFailedUpdate)
		return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "imagee")
	})
	if !maps.Equal(before, s.identities()) || s.set().Status.AvailableReplicas != 3 {
		t.Errorf("the rollout began: %s", s.picture())
	}
	s.image("example.test/web:v2")
	s.settled(3)
}

func TestAnImageThatDoesNotExistStopsTheRollout(t *testing.T) {
	s := begin(t)
	s.create(plain)
	s.settled(3)
	s.image("example.test/missing:v1")
	s.until("one Pod that cannot pull its image", func() bool { return s.set().Status.ReadyReplicas == 2 })
	s.until("the update to have begun with one Pod alone", func() bool {
		status := s.set().Status
		return status.UpdatedReplicas == 1 && status.AvailableReplicas == 2
	})
	s.image("example.test/web:v2")
	s.settled(3)
}

func TestOrphansAreAdoptedAndForeignPodsAreNot(t *testing.T) {
	s := without(t)
	yes := true
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.test/web:v1"}}}
	orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "orphan", Labels: map[string]string{"app": "web"}}, Spec: spec}
	foreign := orphan.DeepCopy()
	foreign.Name = "foreign"
	foreign.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "1234", Controller: &yes}}
	for _, pod := range []*corev1.Pod{orphan, foreign} {
		if err := s.client.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	s.startController()
	s.create(plain, "spec.updateStrategy.type", "OnDelete")
	s.until("three Pods of the set", func() bool { return s.set().Status.Replicas == 3 })
	live := &corev1.Pod{}
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(orphan), live); err != nil {
		t.Fatal(err)
	}
	if owner := metav1.GetControllerOf(live); owner == nil || owner.UID != s.set().UID {
		t.Errorf("the orphan belongs to %v", owner)
	}
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(foreign), live); err == nil && metav1.GetControllerOf(live).Name != "other" {
		t.Errorf("the foreign Pod was touched: %v", live.OwnerReferences)
	}
}

// A controller that crashes at a gate resumes where it was.
func TestACrashAtEachGateLosesNothing(t *testing.T) {
	s := without(t)
	stop := s.startController()
	again := func() { stop(); stop = s.startController() }
	s.create(hooked)
	s.settled(2)
	before := s.identities()
	s.image("example.test/web:v2")
	for range 2 {
		pod := s.one(apps.StatePreparingUpdate)
		again()
		s.label(pod.Name, inPlaceKey, "false")
		s.one(apps.StateUpdated)
		again()
		s.label(pod.Name, inPlaceKey, "true")
	}
	s.settled(2)
	if !maps.Equal(before, s.identities()) {
		t.Error("Pods were replaced")
	}
	s.patch(`spec: {replicas: 1}`)
	pod := s.one(apps.StatePreparingDelete)
	again()
	s.label(pod.Name, deleteKey, "false")
	s.settled(1)
}

func TestAFailedPodIsReplaced(t *testing.T) {
	s := begin(t)
	s.create(plain)
	s.settled(3)
	victim := s.pods()[0]
	victim.Status.Phase = corev1.PodFailed
	victim.Status.Reason = "Evicted"
	if err := s.client.Status().Update(t.Context(), &victim); err != nil {
		t.Fatal(err)
	}
	s.until("the evicted Pod to be replaced and gone", func() bool {
		_, there := s.identities()[victim.Name]
		return !there && s.set().Status.AvailableReplicas == 3
	})
}
