// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestRevisionsAreAdopted: a set adopts the ownerless revisions that have its name and
// labels, and no others; and none while it is being deleted.
func TestRevisionsAreAdopted(t *testing.T) {
	object := func(name, app string, owner *apps.CloneSet) *appsv1.ControllerRevision {
		out := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": app}},
			Data:       runtime.RawExtension{Raw: []byte(`{}`)},
		}
		if owner != nil {
			out.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, apps.KindCloneSet)}
		}
		return out
	}
	stranger := web()
	stranger.UID = "another"
	at := metav1.NewTime(now)
	tests := []struct {
		name      string
		there     *appsv1.ControllerRevision
		set, live func(*apps.CloneSet)
		want      bool
	}{
		{"an orphan", object("web-6f", "web", nil), nil, nil, true},
		{"ours already", object("web-6f", "web", web()), nil, nil, true},
		{"somebody else's", object("web-6f", "web", stranger), nil, nil, false},
		{"other labels", object("web-6f", "db", nil), nil, nil, false},
		{"another set's name", object("db-6f", "web", nil), nil, nil, false},
		{"a longer name", object("web-front-6f", "web", nil), nil, nil, false},
		{"the set goes", object("web-6f", "web", nil), func(set *apps.CloneSet) { set.DeletionTimestamp = &at }, nil, false},
		{"the set goes, as the cache does not show yet", object("web-6f", "web", nil), nil, func(set *apps.CloneSet) {
			set.DeletionTimestamp, set.Finalizers = &at, []string{"orphan"}
		}, false},
		{"another set of that name by now", object("web-6f", "web", nil), nil, func(set *apps.CloneSet) { set.UID = "later" }, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			set, live := web(), web()
			set.Spec.Selector.MatchLabels = map[string]apps.LabelValue{"app": "web"}
			if test.set != nil {
				test.set(set)
			}
			if test.live != nil {
				test.live(live)
			}
			c := indexed(t, live, test.there)
			r := New(c, c, events.NewFakeRecorder(1), Options{})
			if err := r.adoptRevisions(t.Context(), set); err != nil {
				t.Fatal(err)
			}
			after := &appsv1.ControllerRevision{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(test.there), after); err != nil {
				t.Fatal(err)
			}
			if got := metav1.IsControlledBy(after, set); got != test.want {
				t.Errorf("belongs to the set: %v, owners %v", got, after.OwnerReferences)
			}
		})
	}
}
