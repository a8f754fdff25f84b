// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// claimed is a CloneSet whose Pods have one claim each. The claims select the story's
// own volumes, so that stories do not take each other's.
const claimed = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: main
        image: "example.test/web:v1"
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data, labels: {tier: storage}, annotations: {note: x}}
    spec: %s
  updateStrategy: {type: InPlaceIfPossible, maxUnavailable: 1}
`

func (s *story) claimSpec() string {
	return fmt.Sprintf(`{storageClassName: "", accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, selector: {matchLabels: {story: %s}}}`, s.namespace)
}

// beginClaimed creates volumes, and the set with its edits.
func beginClaimed(t *testing.T, edits ...any) *story {
	t.Helper()
	s := begin(t)
	s.offerVolumes(8, s.namespace)
	s.create(fmt.Sprintf(claimed, s.claimSpec()), edits...)
	s.settled(s.replicas())
	return s
}

// offerVolumes creates volumes for claims that select them by the label story.
func (s *story) offerVolumes(count int, label string) {
	s.Helper()
	for i := range count {
		volume := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", s.namespace, i), Labels: map[string]string{"story": label}},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
			},
		}
		if err := s.client.Create(s.Context(), volume); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *story) replicas() int32 {
	s.Helper()
	return *s.set().Spec.Replicas
}

// claims maps the names of the remaining claims to their UIDs.
func (s *story) claims() map[string]types.UID {
	s.Helper()
	var list corev1.PersistentVolumeClaimList
	if err := s.client.List(s.Context(), &list, client.InNamespace(s.namespace)); err != nil {
		s.Fatal(err)
	}
	out := map[string]types.UID{}
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			out[list.Items[i].Name] = list.Items[i].UID
		}
	}
	return out
}

// paired checks that each Pod has its claim from the template and mounts it.
func (s *story) paired() {
	s.Helper()
	claims := s.claims()
	for _, pod := range s.pods() {
		name := plan.ClaimName("data", "web", pod.Labels[apps.LabelInstanceID])
		if claims[name] == "" {
			s.Errorf("Pod %s has no claim %s; there are %v", pod.Name, name, slices.Sorted(maps.Keys(claims)))
		}
		i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "data" })
		if i < 0 || pod.Spec.Volumes[i].PersistentVolumeClaim == nil || pod.Spec.Volumes[i].PersistentVolumeClaim.ClaimName != name {
			s.Errorf("Pod %s mounts %+v", pod.Name, pod.Spec.Volumes)
		}
	}
}

// remove deletes a Pod, as kubectl does.
func (s *story) remove(pod string) {
	s.Helper()
	if err := s.client.Delete(s.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: pod}}); err != nil {
		s.Fatal(err)
	}
}

func TestClaimsComeAndGoWithTheirPods(t *testing.T) {
	s := beginClaimed(t)
	s.paired()
	var claim corev1.PersistentVolumeClaim
	pod := s.pods()[0]
	id := pod.Labels[apps.LabelInstanceID]
	if err := s.client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "data-web-" + id}, &claim); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"app": "web", "tier": "storage", apps.LabelInstanceID: id}
	if !maps.Equal(claim.Labels, want) || claim.Annotations["note"] != "x" || !metav1.IsControlledBy(&claim, s.set()) {
		t.Errorf("claim with labels %v, annotations %v, owners %v", claim.Labels, claim.Annotations, claim.OwnerReferences)
	}
	s.patch(`spec: {replicas: 3}`)
	s.settled(3)
	s.paired()
	s.patch(`spec: {replicas: 1}`)
	s.settled(1)
	s.until("one claim", func() bool { return len(s.claims()) == 1 })
	s.paired()
	s.patch(`spec: {replicas: 0}`)
	s.until("no claim", func() bool { return len(s.claims()) == 0 })
}

func TestClaimsOutliveAnUpdateInPlace(t *testing.T) {
	s := beginClaimed(t)
	pods, claims := s.identities(), s.claims()
	s.patch(`spec: {template: {spec: {containers: [{name: main, image: "example.test/web:v2", volumeMounts: [{name: data, mountPath: /data}]}]}}}`)
	s.settled(2)
	if !maps.Equal(s.identities(), pods) || !maps.Equal(s.claims(), claims) {
		t.Errorf("Pods %v, then %v; claims %v, then %v", pods, s.identities(), claims, s.claims())
	}
}

func TestARecreateMakesNewClaims(t *testing.T) {
	s := beginClaimed(t)
	before := s.claims()
	s.patch(`spec: {updateStrategy: {type: ReCreate}, template: {spec: {containers: [{name: main, image: "example.test/web:v2", volumeMounts: [{name: data, mountPath: /data}]}]}}}`)
	s.settled(2)
	s.until("two new claims", func() bool {
		after := s.claims()
		return len(after) == 2 && !slices.ContainsFunc(slices.Collect(maps.Keys(after)), func(name string) bool { return before[name] != "" })
	})
	s.paired()
}

// The replacement of a deleted Pod has its name, its instance ID and its data.
func TestADeletedPodsClaimsAreReused(t *testing.T) {
	s := beginClaimed(t)
	claims, pod := s.claims(), s.pods()[0]
	s.remove(pod.Name)
	s.until("another Pod of that name", func() bool {
		uid := s.identities()[pod.Name]
		return uid != "" && uid != pod.UID
	})
	s.settled(2)
	s.paired()
	if after := s.claims(); !maps.Equal(after, claims) {
		t.Errorf("claims %v, then %v", claims, after)
	}
}

func TestDisablePVCReuse(t *testing.T) {
	s := beginClaimed(t, "spec.scaleStrategy.disablePVCReuse", true)
	pod := s.pods()[0]
	lost := plan.ClaimName("data", "web", pod.Labels[apps.LabelInstanceID])
	s.remove(pod.Name)
	s.until("the claim to go", func() bool { return s.claims()[lost] == "" })
	s.settled(2)
	s.paired()
	if _, there := s.identities()[pod.Name]; there {
		t.Errorf("the instance id of %s is used again", pod.Name)
	}
}

// An additional template affects only new Pods and creates no revision; a template that
// the API server refuses costs no Pod and is reported by name.
func TestClaimTemplatesChange(t *testing.T) {
	s := beginClaimed(t)
	pods, revision := s.identities(), s.set().Status.UpdateRevision
	both := func(size string) string {
		return fmt.Sprintf(`spec: {volumeClaimTemplates: [{metadata: {name: data}, spec: %s}, {metadata: {name: log}, spec: %s}]}`,
			s.claimSpec(), strings.Replace(s.claimSpec(), "1Gi", size, 1))
	}
	s.patch("%s", both("-1Gi"))
	s.patch(`spec: {replicas: 3}`)
	s.until("a condition that names the template", func() bool {
		c := s.condition(apps.ConditionFailedScale)
		return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "volumeClaimTemplates log") && strings.Contains(c.Message, "storage")
	})
	if now := s.identities(); !maps.Equal(now, pods) {
		t.Errorf("Pods %v, then %v", pods, now)
	}
	s.patch("%s", both("1Gi"))
	s.settled(3)
	if now := s.set().Status.UpdateRevision; now != revision {
		t.Errorf("revision %s, then %s", revision, now)
	}
	logs := 0
	for name := range s.claims() {
		if strings.HasPrefix(name, "log-web-") {
			logs++
		}
	}
	if logs != 1 {
		t.Errorf("%d claims of the new template, want that of the new Pod alone: %v", logs, s.claims())
	}
}

// A set that was deleted without its Pods adopts them and their claims again.
func TestClaimsAreAdoptedWithTheirPods(t *testing.T) {
	s := beginClaimed(t)
	pods, claims := s.identities(), s.claims()
	set := s.set()
	if err := s.client.Delete(t.Context(), set, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
		t.Fatal(err)
	}
	s.until("the set to go", func() bool {
		var list apps.CloneSetList
		return s.client.List(t.Context(), &list, client.InNamespace(s.namespace)) == nil && len(list.Items) == 0
	})
	s.create(fmt.Sprintf(claimed, s.claimSpec()))
	s.settled(2)
	if !maps.Equal(s.identities(), pods) || !maps.Equal(s.claims(), claims) {
		t.Errorf("Pods %v, then %v; claims %v, then %v", pods, s.identities(), claims, s.claims())
	}
	s.patch(`spec: {replicas: 0}`)
	s.until("no claim", func() bool { return len(s.claims()) == 0 })
}
