// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// TestLayoutCannotChange pins the layout in which existing entries were written.
func TestLayoutCannotChange(t *testing.T) {
	e := newEnv(t)
	r := &usherv1alpha1.Registry{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "layout-"},
		Spec:       usherv1alpha1.RegistrySpec{ZooKeeper: &usherv1alpha1.ZooKeeperRegistry{Servers: []string{"127.0.0.1:1"}}},
	}
	e.create(r)
	if r.Spec.ZooKeeper.Layout != usherv1alpha1.LayoutCurator {
		t.Errorf("the layout is %q by default", r.Spec.ZooKeeper.Layout)
	}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"zookeeper":{"layout":"Dubbo"}}}`))
	if err := e.Patch(t.Context(), r, patch); err == nil || !strings.Contains(err.Error(), "make another Registry") {
		t.Errorf("another layout: %v", err)
	}
}
