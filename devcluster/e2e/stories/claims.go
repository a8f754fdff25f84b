// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/devcluster/e2e"
)

// diskClass is the storage class of the disks that the story makes: nobody
// provisions more.
const diskClass = "disks"

func claims() e2e.Story {
	return e2e.Story{
		Name:  "claims",
		About: "claims stay through an update in place and a deleted Pod, go on scale in and with recreated Pods",
		Play: func(s *e2e.Scene) {
			makeDisks(s, 8)
			// A Pod that somebody deletes is asked to end at once: the sleep gives
			// callers the time to turn away.
			s.Open(fmt.Sprintf(`
spec:
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], storageClassName: %s, resources: {requests: {storage: 1Mi}}}
  template:
    spec:
      containers:
      - name: main
        lifecycle: {preStop: {sleep: {seconds: 4}}}
        volumeMounts: [{name: data, mountPath: /data}]
`, diskClass))
			first := s.State()
			disks := claimed(s)
			want(s, len(disks) == 3, "three claims with disks, not %v", disks)
			s.Image("v2")
			sameAfterRestarts(s, first, s.Settle(), 1)
			want(s, slices.Equal(claimed(s), disks), "the claims %v after an update in place, not %v", disks, claimed(s))

			victim := first.Pods[0]
			s.DeletePod(victim.Name)
			s.Await("the next "+victim.Name, func(now e2e.State) string {
				if pod := now.Pod(victim.Name); pod == nil || pod.UID == victim.UID {
					return "it is not there"
				}
				return ""
			})
			s.Settle()
			want(s, slices.Equal(claimed(s), disks), "the claims %v after a deleted Pod, not %v", disks, claimed(s))

			s.Scale(2)
			s.Settle()
			left := awaitClaims(s, 2)
			for _, claim := range left {
				want(s, slices.Contains(disks, claim), "two of %v left, not %v", disks, left)
			}
			s.Step("recreate")
			s.Change(`spec: {updateStrategy: {type: ReCreate}, template: {spec: {containers: [{name: main, image: "usher.test/web:v3"}]}}}`)
			allRun(s, s.Settle(), "v3")
			for _, claim := range awaitClaims(s, 2) {
				want(s, !slices.Contains(disks, claim), "new claims for recreated Pods, not %s of %v", claim, disks)
			}
		},
	}
}

// makeDisks makes volumes that are folders of the node.
func makeDisks(s *e2e.Scene, n int) {
	kind := corev1.HostPathDirectoryOrCreate
	for i := range n {
		name := fmt.Sprintf("%s-%d", s.Namespace(), i)
		disk := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			StorageClassName:              diskClass,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/disks/" + name, Type: &kind}},
		}}
		s.Check(s.Kube().Create(s.Context(), disk))
	}
}

// claimed are the claims that are not being deleted, each with its UID and disk.
func claimed(s *e2e.Scene) []string {
	list := &corev1.PersistentVolumeClaimList{}
	s.Check(s.Kube().List(s.Context(), list, client.InNamespace(s.Namespace())))
	var found []string
	for _, c := range list.Items {
		if c.DeletionTimestamp == nil {
			found = append(found, fmt.Sprintf("%s (%s) on %s", c.Name, c.UID, c.Spec.VolumeName))
		}
	}
	return found
}

// awaitClaims waits until so many are left: a claim that a Pod uses goes after it.
func awaitClaims(s *e2e.Scene, n int) (left []string) {
	s.Await("claims to go", func(e2e.State) string {
		if left = claimed(s); len(left) != n {
			return fmt.Sprintf("there are %v", left)
		}
		return ""
	})
	return left
}
