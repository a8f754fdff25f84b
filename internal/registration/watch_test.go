// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// noted is a queue that notes what is added.
type noted struct {
	queue
	added []string
}

func (n *noted) AddAfter(request ctrl.Request, after time.Duration) {
	n.added = append(n.added, fmt.Sprintf("%s after %s", request.Name, after))
}

// beginPass begins a pass of a reconciler without a client, which panics as soon as it reads.
func beginPass(t *testing.T, r *Reconciler, namespace string) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("the pass did not read")
		}
	}()
	_, _ = r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}})
}

// TestEventsAreGathered: a namespace with many events, or with many Registrations, takes no more of
// the time that events of all namespaces share.
func TestEventsAreGathered(t *testing.T) {
	clock, asked, q := clocktesting.NewFakePassiveClock(epoch), map[string]int{}, &noted{}
	selecting := func(app string) *usherv1alpha1.Registration {
		r := &usherv1alpha1.Registration{}
		r.Spec.Selector.MatchLabels = map[string]usherv1alpha1.LabelValue{"app": usherv1alpha1.LabelValue(app)}
		return r
	}
	r := &Reconciler{clock: clock, notes: map[string]*notes{}, gathered: map[string]time.Time{}, listRegistrations: func(_ context.Context, namespace string) ([]*usherv1alpha1.Registration, error) {
		asked[namespace]++
		if namespace == "crowded" {
			return slices.Repeat([]*usherv1alpha1.Registration{nil}, mostAsked+1), nil // to ask one panics
		}
		return []*usherv1alpha1.Registration{selecting("other"), selecting("web")}, nil
	}}
	event := func(namespace, app string) {
		r.ofPod(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{"app": app}}}, q)
	}
	for range 100 {
		event("flapping", "web")
		event("flapping", "unknown")
	}
	event("calm", "unknown")
	event("calm", "web")
	event("crowded", "unknown")
	clock.SetTime(clock.Now().Add(batchDelay))
	event("flapping", "web")
	r.gather(q, "calm")
	beginPass(t, r, "calm") // earlier than it was asked for, since somebody else asked too
	r.gather(q, "calm")
	want := []string{"flapping after 50ms", "calm after 50ms", "crowded after 50ms", "flapping after 50ms", "calm after 50ms", "calm after 50ms"}
	if !slices.Equal(q.added, want) {
		t.Errorf("passes follow over %q, want %q", q.added, want)
	}
	if asked["flapping"] != 2 || asked["calm"] != 2 || asked["crowded"] != 1 {
		t.Errorf("asked %v", asked)
	}
}
