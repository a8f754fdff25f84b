// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// littered is a namespace with Registration web, whose new Pod joins, and with so many orphans in web that the
// first sweep leaves them there.
func littered(t *testing.T) *attacked {
	t.Helper()
	joins := podOf("joins", "web", "web")
	joins.Status = corev1.PodStatus{PodIP: "192.0.2.2", Conditions: []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}}
	joins.Spec.Containers = []corev1.Container{{Name: "main", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}
	a := attack(t, joins)
	web := &usherv1alpha1.Registration{}
	checktest.NoError(t, a.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "web"}, web))
	web.Spec.Instance.Port = intstr.FromInt32(80)
	checktest.NoError(t, a.client.Update(t.Context(), web))
	var entries []registry.Change
	for n := range 20 {
		name := fmt.Sprintf("orphan-%d", n)
		entries = append(entries, registry.Change{Op: registry.Put, Entry: registry.Entry{
			ID: name, Address: "192.0.2.9", Port: 80, Weight: 1,
			Owner: registry.Owner{Cluster: clusterNamespace, Namespace: namespace, Registration: "web", Pod: name, PodUID: name},
		}})
	}
	checktest.NoError(t, a.store.Apply(t.Context(), "web", entries))
	a.passes(2)
	n := a.stateOf(namespace).pass
	if got := testutil.ToFloat64(a.metrics.orphans.WithLabelValues(namespace, "discovery")); got != 20 {
		t.Fatalf("%g orphans are shown, want 20", got)
	}
	if len(n.sweeps.swept) == 0 || len(n.sweeps.suspects) == 0 || len(n.sweeps.remaining) == 0 || len(n.confirmed) == 0 {
		t.Fatalf("nothing is remembered, so that this test proves nothing: %+v", n)
	}
	return a
}

// soonerThanASweep is a number of passes that end before the next sweep, which would correct the metric.
const soonerThanASweep = 20

func (a *attacked) passes(count int) {
	for range count {
		_, _, err := a.pass()
		checktest.NoError(a, err)
	}
}

// gone deletes an object at once, whatever finalizers it has.
func (a *attacked) gone(object client.Object) {
	checktest.NoError(a, a.client.Get(a.Context(), client.ObjectKeyFromObject(object), object))
	object.SetFinalizers(nil)
	checktest.NoError(a, a.client.Update(a.Context(), object))
	checktest.NoError(a, a.client.Delete(a.Context(), object))
}

// TestOrphansOfNobodyAreNotCounted: a Registration or a Registry that goes between two sweeps takes its
// orphans out of the metric. Nobody would sweep there again, so that it would stay, and its alert fire.
func TestOrphansOfNobodyAreNotCounted(t *testing.T) {
	for name, object := range map[string]client.Object{
		"Registration": &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}},
		"Registry":     &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: "discovery"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := littered(t)
			a.gone(object)
			if name == "Registry" {
				a.metrics.forgetRegistry("discovery")
			}
			a.passes(soonerThanASweep)
			checktest.Same(t, "orphans shown", 0, int(orphansShown(a)))
		})
	}
}

// orphansShown is the sum over all series.
func orphansShown(a *attacked) (sum float64) {
	for _, family := range checktest.Must(a.scraped.Gather())(a) {
		if family.GetName() == "usher_registry_orphans" {
			for _, series := range family.GetMetric() {
				sum += series.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// TestNotesAreFreed: what passes remember of Registrations, Registries and namespaces goes with them. Otherwise
// whoever creates and deletes them fills Usher's memory.
func TestNotesAreFreed(t *testing.T) {
	a := littered(t)
	a.gone(&usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}})
	a.passes(soonerThanASweep)
	n := a.stateOf(namespace).pass
	for target := range n.sweeps.swept {
		checktest.Same(t, "service that is remembered", "other", target.Service)
	}
	checktest.Same(t, "what is remembered of sweeps", []int{1, 1, 1}, []int{len(n.sweeps.swept), len(n.sweeps.suspects), len(n.sweeps.remaining)})
	checktest.Same(t, "web is remembered", false, n.confirmed["web"])
	a.gone(&usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "other"}})
	for _, name := range []string{"good", "joins"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		if a.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod) == nil {
			a.gone(pod)
		}
	}
	a.passes(2)
	a.states.Range(func(namespace, _ any) bool {
		t.Errorf("namespace %s is remembered", namespace)
		return true
	})
}
