// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// withClaims begins with volumes, and with a set of two Pods with a claim each.
func withClaims(t *testing.T) *story {
	t.Helper()
	s := begin(t)
	s.offerVolumes(8, s.Namespace)
	s.create("claimed")
	s.settled(2)
	return s
}

// offerVolumes creates volumes for claims that select them by the label story.
func (s *story) offerVolumes(count int, label string) {
	s.Helper()
	for i := range count {
		s.Make(s.Object(fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: %s-%d, labels: {story: %s}}, spec: {
			capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], persistentVolumeReclaimPolicy: Retain, hostPath: {path: /nowhere}}}`,
			s.Namespace, i, label)))
	}
}

// claims maps the names of the remaining claims to their UIDs.
func (s *story) claims() map[string]types.UID {
	s.Helper()
	var list corev1.PersistentVolumeClaimList
	s.All(&list)
	out := map[string]types.UID{}
	for _, claim := range list.Items {
		if claim.DeletionTimestamp == nil {
			out[claim.Name] = claim.UID
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
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == "data" && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name
		}) {
			s.Errorf("Pod %s mounts %+v", pod.Name, pod.Spec.Volumes)
		}
	}
}

func TestClaimsComeAndGoWithTheirPods(t *testing.T) {
	s := withClaims(t)
	s.paired()
	id := s.pods()[0].Labels[apps.LabelInstanceID]
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "data-web-" + id}}
	s.Read(claim)
	want := map[string]string{"app": "web", "tier": "storage", apps.LabelInstanceID: id}
	if !maps.Equal(claim.Labels, want) || claim.Annotations["note"] != "x" || !metav1.IsControlledBy(claim, s.set()) {
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

// An additional template affects only new Pods and creates no revision; a template that
// the API server refuses costs no Pod and is reported by name.
func TestClaimTemplatesChange(t *testing.T) {
	s := withClaims(t)
	pods, revision := s.identities(), s.set().Status.UpdateRevision
	both := func(size string) {
		t.Helper()
		claim := `{metadata: {name: %s}, spec: {storageClassName: "", accessModes: [ReadWriteOnce], resources: {requests: {storage: %s}}, selector: {matchLabels: {story: %s}}}}`
		s.patch("spec: {volumeClaimTemplates: ["+claim+", "+claim+"]}", "data", "1Gi", s.Namespace, "log", size, s.Namespace)
	}
	both("-1Gi")
	s.patch(`spec: {replicas: 3}`)
	s.isTrue(apps.ConditionFailedScale, "volumeClaimTemplates log", "storage")
	s.samePods(pods)
	both("1Gi")
	s.settled(3)
	if now := s.set().Status.UpdateRevision; now != revision {
		t.Errorf("revision %s, then %s", revision, now)
	}
	names := slices.Sorted(maps.Keys(s.claims()))
	if logs := strings.Count(" "+strings.Join(names, " "), " log-web-"); logs != 1 {
		t.Errorf("%d claims of the new template, want that of the new Pod alone: %v", logs, names)
	}
}

// A set that was deleted without its Pods adopts them, their claims and their revision
// again; nothing restarts.
func TestClaimsAreAdoptedWithTheirPods(t *testing.T) {
	s := withClaims(t)
	pods, claims, revisions := s.identities(), s.claims(), s.revisionNames()
	s.Must(s.Delete(t.Context(), s.key(), client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	s.Gone(s.key())
	s.create("claimed")
	s.settled(2)
	s.samePods(pods)
	if now := s.claims(); !maps.Equal(claims, now) {
		s.Errorf("claims %v became %v", claims, now)
	}
	if names := s.revisionNames(); !slices.Equal(names, revisions) || s.restarts() != "0 0" {
		t.Errorf("revisions %v became %v, restarts %s", revisions, names, s.restarts())
	}
	s.patch(`spec: {replicas: 0}`)
	s.until("no claim", func() bool { return len(s.claims()) == 0 })
}

// TestDeletingASet deletes a set whose Pods a hook holds, under the real garbage collector.
func TestDeletingASet(t *testing.T) {
	answer := func(s *story) {
		for _, pod := range s.in(apps.StatePreparingDelete) {
			s.label(pod.Name, deleteKey, "false")
		}
	}
	for _, test := range []struct {
		name string
		how  metav1.DeletionPropagation
		// then lets the Pods go; nil if the set waits for none of them.
		then func(*story)
	}{
		{name: "in background", how: metav1.DeletePropagationBackground, then: answer},
		{name: "the hook is removed in mid-deletion", how: metav1.DeletePropagationBackground,
			then: func(s *story) { s.patch(`spec: {lifecycle: {preDelete: null}}`) }},
		{name: "in foreground", how: metav1.DeletePropagationForeground},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := withoutController(t)
			stop := s.startController()
			s.create("hooked")
			s.settled(2)
			s.Must(s.Delete(t.Context(), s.key(), client.PropagationPolicy(test.how)))
			if test.then != nil {
				s.atTheGate()
				stop()
				s.startController()
				test.then(s)
			}
			s.Gone(s.key())
			s.until("its Pods and revisions to be gone", func() bool { return len(s.pods()) == 0 && len(s.revisions()) == 0 })
		})
	}
}

// atTheGate waits until the deleted set says that it waits for both of its Pods.
func (s *story) atTheGate() {
	s.Helper()
	s.until("both Pods at their gate", func() bool { return len(s.in(apps.StatePreparingDelete)) == 2 })
	s.isTrue(apps.ConditionBlocked, deleteKey+" since ", ", before the CloneSet is deleted", "1 other Pod waits")
	if got := s.set().Finalizers; !slices.Contains(got, apps.FinalizerPreDelete) {
		s.Errorf("nothing but %q holds the set", got)
	}
}

// TestDeletingASetWithoutItsPods orphans the Pods, at once or after all, and a new set of
// that name takes them over.
func TestDeletingASetWithoutItsPods(t *testing.T) {
	for name, waits := range map[string]bool{"at once": false, "after it has waited": true} {
		t.Run(name, func(t *testing.T) {
			s := running(t, "hooked")
			before, labels := s.identities(), s.podLabels()
			if waits {
				s.Must(s.Delete(t.Context(), s.key()))
				s.atTheGate()
			}
			s.Must(s.Delete(t.Context(), s.key(), client.PropagationPolicy(metav1.DeletePropagationOrphan)))
			s.Gone(s.key())
			if !waits && !slices.Equal(labels, s.podLabels()) {
				t.Errorf("Pods %q became %q", labels, s.podLabels())
			}
			s.create("hooked")
			s.settled(2)
			s.samePods(before)
		})
	}
}

// podLabels are the labels of each Pod.
func (s *story) podLabels() []string {
	s.Helper()
	var out []string
	for _, pod := range s.pods() {
		out = append(out, pod.Name+" "+metav1.FormatLabelSelector(metav1.SetAsLabelSelector(pod.Labels)))
	}
	return out
}
