// SPDX-License-Identifier: Apache-2.0

package restore_test

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

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// later is how many writes of others are lost with the snapshot: until as many have been made again, an API server that was
// restored sends nothing to who watches from a later resourceVersion.
const later = 300

// TestInPlace: etcd goes back to a snapshot under a running Usher. By then the snapshot's Pods had been updated, one of them
// had been deleted, and others were new. Usher goes on from what is there: the Pods of the snapshot stay, and are listed
// again; the entries of those that are no more go; and nobody else's entry does.
func TestInPlace(t *testing.T) {
	s := original(t)
	stopNodes := s.nodes()
	stop := s.usher(own)
	s.lists(4)
	theirs := keys + "theirs"
	checktest.Must(s.listed.Client.Put(t.Context(), theirs, `{"Op":0,"Addr":"192.0.2.1:1"}`))(t)
	pods := s.uids()
	snapshot := s.snapshot()

	s.Change(s.Ref("CloneSet/web"), `spec: {replicas: 6, template: {spec: {containers: [{name: main, image: "web:v2"}]}}}`)
	s.Condition(s.Ref("Registration/web"), "Ready", metav1.ConditionTrue)
	s.becomes(6, "web:v2")
	gone := s.Pods()[0]
	s.Must(s.Delete(t.Context(), &gone))
	s.Gone(&gone)
	s.becomes(6, "web:v2")
	s.lists(7)
	for i := range later {
		s.Make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("later-%d", i)}})
	}

	since := s.now()
	stopNodes()
	s.Must(s.Restore(t.Context(), snapshot))
	s.nodes()
	s.becomes(4, "web:v1")
	after := s.lists(5)
	if !slices.Contains(after, theirs) {
		t.Errorf("somebody else's entry is gone: %q", after)
	}
	s.Same("Pods", slices.Sorted(maps.Keys(s.uids())), slices.Sorted(maps.Keys(pods)))
	_, deleted := s.changes(since)
	for _, key := range deleted {
		if slices.Contains(after, key) {
			t.Errorf("the entry %s was removed, and its Pod was there", key)
		}
	}

	// What changes from now on is noticed.
	s.Change(s.Ref("CloneSet/web"), `spec: {replicas: 5, template: {spec: {containers: [{name: main, image: "web:v3"}]}}}`)
	s.becomes(5, "web:v3")
	s.lists(6)
	ends := stop()
	if !slices.ContainsFunc(ends, func(end string) bool { return strings.Contains(end, "resourceVersions went back") }) {
		t.Errorf("no process ends because of the snapshot; they end with %q", ends)
	}
	t.Logf("processes end: %q", ends)
	for uid := range pods {
		if !s.uids()[uid] {
			t.Errorf("the Pod %s is lost", uid)
		}
	}
}

// uids are those of the site's Pods.
func (s *site) uids() map[types.UID]bool {
	all := map[types.UID]bool{}
	for _, pod := range s.Pods() {
		all[pod.UID] = true
	}
	return all
}

// becomes waits until there are so many Pods, all ready, in service and with this image.
func (s *site) becomes(count int, image string) {
	s.Helper()
	s.Until(fmt.Sprintf("%d Pods with %s", count, image), func() string {
		pods := s.Pods()
		well := slices.DeleteFunc(pods, func(pod corev1.Pod) bool {
			listed := false
			for _, c := range pod.Status.Conditions {
				listed = listed || c.Type == "usher.dev/registered" && c.Status == corev1.ConditionTrue
			}
			return !listed || pod.DeletionTimestamp != nil || pod.Spec.Containers[0].Image != image ||
				pod.Labels["lifecycle.apps.kruise.io/state"] != "Normal"
		})
		var all corev1.PodList
		s.Must(s.List(s.Context(), &all, client.InNamespace(namespace)))
		return registrytest.Unless(len(well) == count && len(all.Items) == count, fmt.Sprintf("%d of %d are so", len(well), len(all.Items)))
	})
}
