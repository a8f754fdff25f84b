// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// TestPodInfosOfAnIdleSet are forgotten, and so are those of a deleted set.
func TestPodInfosOfAnIdleSet(t *testing.T) {
	r, web, shop := newPodInfos(), types.NamespacedName{Name: "web"}, types.NamespacedName{Name: "shop"}
	read := plan.ReadPods([]*corev1.Pod{inState("")}, nil)
	r.keep(web, read, false)
	r.keep(shop, read, false)
	if len(r.of(web)) != 1 || len(r.of(shop)) != 1 {
		t.Fatalf("kept %v", r.sets)
	}
	r.keep(web, read, true)
	r.forget(shop)
	if len(r.sets) > 0 {
		t.Errorf("left: %v", r.sets)
	}
}
