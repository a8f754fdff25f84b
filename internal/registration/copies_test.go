// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"slices"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// TestCopiedClusters: a cluster restored from a copy of another one has the same UID of kube-system, and takes the
// entries of Pods that it does not have for its own orphans, unless it has a name of its own.
func TestCopiedClusters(t *testing.T) {
	for name, id := range map[string]string{"as the original": "", "with a name of its own": "copy"} {
		t.Run(name, func(t *testing.T) {
			a := attack(t, podOf("bad", "web", "web"))
			a.options.ClusterID = id
			entry := registry.Entry{ID: "later", Address: "192.0.2.2", Port: 80, Weight: 1}
			entry.Owner = registry.Owner{Cluster: clusterNamespace, Namespace: namespace, Registration: "web", Pod: "later", PodUID: "later"}
			checktest.NoError(t, a.store.Apply(t.Context(), "web", []registry.Change{{Op: registry.Put, Entry: entry}}))
			for range 10 {
				_, _, err := a.pass()
				checktest.NoError(t, err)
			}
			for _, kept := range []string{"good", "later"} { // good goes here, and not in the original
				there := slices.ContainsFunc(a.store.Entries("web"), func(e registry.Entry) bool { return e.ID == kept })
				checktest.Same(t, "the original's entry "+kept+" is there", id != "", there)
			}
			checktest.Same(t, "the Pod that is deleted here is gone", true, a.goes())
		})
	}
}
