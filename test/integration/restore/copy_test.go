// SPDX-License-Identifier: Apache-2.0

package restore_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/registration"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// observed is how long an original must not notice its copy: several sweeps, and several probes of the Registry.
const observed = 6 * time.Second

var own = registration.Options{Namespace: system}

// TestCopy: a cluster is restored next to its original, with the same keys, and Usher runs in both. The copy has other Pods
// by then, as both have worked on. It leaves the original's entries alone, says why, and does so also with a name of its
// own. With nobody who notices, it takes them out.
func TestCopy(t *testing.T) {
	first := original(t)
	first.nodes()
	first.usher(own)
	first.lists(4)
	first.knows()
	snapshot := first.snapshot()
	first.scale(5)
	before := first.lists(5)

	second := found(t, clustertest.StartFrom(t, snapshot), first.listed)
	second.nodes()
	var namespaces [2]string
	for i, s := range []*site{first, second} {
		kube := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}}
		s.Read(kube)
		namespaces[i] = string(kube.UID)
	}
	second.Same("the UID of kube-system", namespaces[1], namespaces[0])

	since := first.now()
	stop := second.usher(own)
	second.Condition(second.discovery(), "Reachable", metav1.ConditionFalse, "ClusterCopied", "usher-system/usher-cluster", "--cluster-id")
	second.scale(2)
	gone := second.Pods()[0]
	second.Must(second.Delete(second.Context(), &gone, client.GracePeriodSeconds(0)))
	second.Condition(second.Ref("Registration/web"), "Ready", metav1.ConditionFalse, "usher-cluster")
	second.Stays("the original's entries", observed, func() string { return first.differs(before, since) })

	// The original goes on.
	first.scale(6)
	first.lists(6)
	first.Must(first.Delete(first.Context(), &first.Pods()[0]))
	first.Until("another Pod", func() string {
		_, deleted := first.changes(since)
		if len(deleted) == 1 {
			return ""
		}
		return "there is none"
	})
	before = first.lists(6)

	// With a name of its own the copy works, and the original's entries are somebody else's.
	stop()
	since = first.now()
	named := own
	named.ClusterID = "copy"
	stop = second.usher(named)
	second.Condition(second.discovery(), "Reachable", metav1.ConditionTrue)
	second.Condition(second.Ref("Registration/web"), "Waiting", metav1.ConditionTrue, "of somebody else")
	second.Stays("the original's entries", observed, func() string { return first.differs(before, since) })

	// Nobody notices: this is what the check is for.
	stop()
	since = first.now()
	second.usher(registration.Options{})
	second.Until("the harm that a copy does", func() string {
		if _, deleted := first.changes(since); len(deleted) == 0 {
			return "the original's entries are all there"
		}
		return ""
	})
}

// differs says what somebody has changed of these entries since a revision of the registry.
func (s *site) differs(before []string, since int64) string {
	s.Helper()
	put, deleted := s.changes(since)
	changed := slices.DeleteFunc(slices.Concat(put, deleted), func(key string) bool { return !slices.Contains(before, key) })
	if len(changed) > 0 {
		return "somebody has changed " + strings.Join(changed, ", ")
	}
	return ""
}

// knows waits until Usher has noted its API servers.
func (s *site) knows() {
	s.Helper()
	s.Until("what Usher knows of its API servers", func() string {
		record := s.record()
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(record), record); err != nil {
			return err.Error()
		}
		s.Logf("Usher knows this cluster by %v", record.Data)
		return ""
	})
}

// TestMove: the only cluster is restored on other machines. Usher waits for a word of its administrator, and then goes on
// with the entries that it finds.
func TestMove(t *testing.T) {
	first := original(t)
	stopNodes := first.nodes()
	stop := first.usher(own)
	before := first.lists(4)
	first.knows()
	snapshot := first.snapshot()
	stop()
	stopNodes()
	first.Must(first.Stop(first.Context()))

	since := first.now()
	moved := found(t, clustertest.StartFrom(t, snapshot), first.listed)
	moved.nodes()
	moved.usher(own)
	moved.Condition(moved.discovery(), "Reachable", metav1.ConditionFalse, "ClusterCopied")
	moved.Must(moved.Delete(moved.Context(), moved.record()))
	moved.Condition(moved.discovery(), "Reachable", metav1.ConditionTrue)
	moved.Condition(moved.Ref("Registration/web"), "Ready", metav1.ConditionTrue)
	if _, deleted := moved.changes(since); len(deleted) > 0 {
		t.Errorf("these entries of Pods that are there were removed: %q", deleted)
	}
	moved.Same("entries", moved.lists(4), before)
}
