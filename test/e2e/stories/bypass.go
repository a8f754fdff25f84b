// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/e2e"
)

// withoutAsking deletes a Pod and evicts another: the kubelet ends their containers at
// once, and Usher learns of it at the same moment.
func withoutAsking(s *e2e.Scene) {
	pods := s.State().Pods
	s.DeletePod(pods[0].Name)
	awaitGone(s, pods[0].Name)
	s.Settle()
	s.Evict(pods[1].Name)
	awaitGone(s, pods[1].Name)
	s.Settle()
}

func awaitGone(s *e2e.Scene, name string) {
	s.Await(name+" to be gone", func(now e2e.State) string {
		if now.Pod(name) != nil {
			return "it is there"
		}
		return ""
	})
}

var bypasses = []e2e.Story{
	{
		Name:    "deleted-pods",
		About:   "kubectl delete pod, then an eviction: nobody asks Usher, and the container ends at once",
		MayLose: true, Unguarded: true,
		Play: func(s *e2e.Scene) {
			s.Open()
			withoutAsking(s)
		},
	},
	{
		Name:      "deleted-pods-prestop",
		About:     "the same with a preStop sleep longer than the drain time: it gives callers the time that Usher would have",
		Unguarded: true,
		Play: func(s *e2e.Scene) {
			s.Open(preStop(4))
			withoutAsking(s)
		},
	},
	{
		Name:       "deleted-set",
		About:      "a CloneSet is deleted in the background without the guard: it scales in through its preDelete hook all the same",
		Registries: both,
		Unguarded:  true, Ends: true,
		Play: func(s *e2e.Scene) {
			s.Open()
			s.EndService(func() { s.Kubectl("delete", "cloneset", e2e.SetName) })
		},
	},
	{
		Name:       "deleted-namespace",
		About:      "a CloneSet is deleted in the foreground, and with its namespace, without the guard: its Pods end at once, and nothing holds the namespace",
		Registries: both,
		MayLose:    true, Unguarded: true, Ends: true,
		Play: func(s *e2e.Scene) {
			s.Open()
			s.EndService(func() { s.Kubectl("delete", "cloneset", e2e.SetName, "--cascade=foreground") })
			s.Open()
			// kubectl waits until the namespace is gone.
			s.EndService(func() { s.Kubectl("delete", "namespace", s.Namespace()) })
		},
	},
	{
		Name:  "claims",
		About: "Pods with claims: updated in place they keep them, and who follows a deleted Pod takes its over (with a preStop sleep); scaled in, they go",
		Takes: 50 * time.Second,
		Play: func(s *e2e.Scene) {
			s.LocalVolumes(volumes)
			s.Open(preStop(4), fmt.Sprintf(`spec: {volumeClaimTemplates: [{metadata: {name: data},
				spec: {accessModes: [ReadWriteOnce], storageClassName: %s, resources: {requests: {storage: 1Mi}}}}],
				template: {spec: {containers: [{name: main, volumeMounts: [{name: data, mountPath: /data}]}]}}}`, s.StorageClass()))
			before, claimed := s.State(), claimsOf(s)
			s.Image("v2")
			wantSamePods(s, before, s.Settle(), 1)
			first := before.Pods[0]
			s.DeletePod(first.Name)
			s.Await("another Pod of that name", func(now e2e.State) string {
				if pod := now.Pod(first.Name); pod == nil || pod.UID == first.UID {
					return "it is not there"
				}
				return ""
			})
			want(s, names(s.Settle()) == names(before), "the same names, since claims and names go together")
			want(s, slices.Equal(claimsOf(s), claimed), "the same claims %v, not %v", claimed, claimsOf(s))
			settleAt(s, 2)
			s.Await("the claim to go with its Pod", func(e2e.State) string {
				if left := claimsOf(s); len(left) != 2 || !slices.Contains(claimed, left[0]) || !slices.Contains(claimed, left[1]) {
					return fmt.Sprintf("%v of %v are left", left, claimed)
				}
				return ""
			})
		},
	},
}

// volumes is the number of volumes for claims on the node, created by hand because
// there is no provisioner.
const volumes = 5

// claimsOf lists the claims that are not being deleted, with UID and volume.
func claimsOf(s *e2e.Scene) []string {
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
