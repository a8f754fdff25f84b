// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestColumns covers `kubectl get clone` and `kubectl get clone -o wide`.
func TestColumns(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.create(plain)
	s.settled(3)
	kubectl, err := discovery.NewDiscoveryClientForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	data, err := kubectl.RESTClient().Get().AbsPath("/apis/apps.kruise.io/v1alpha1/namespaces", s.namespace, "clonesets").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(data, &table); err != nil || len(table.Rows) != 1 {
		t.Fatalf("table %s: %v", data, err)
	}
	var narrow, wide []string
	for _, column := range table.ColumnDefinitions {
		if column.Priority == 0 {
			narrow = append(narrow, column.Name)
		} else {
			wide = append(wide, column.Name)
		}
	}
	if want := "Name DESIRED UPDATED UPDATED_READY UPDATED_AVAILABLE READY TOTAL AGE"; strings.Join(narrow, " ") != want {
		t.Errorf("columns %v", narrow)
	}
	if want := "CONTAINERS IMAGES SELECTOR WAITING"; strings.Join(wide, " ") != want {
		t.Errorf("wide columns %v", wide)
	}
	cell := func(name string) any {
		i := slices.IndexFunc(table.ColumnDefinitions, func(c metav1.TableColumnDefinition) bool { return c.Name == name })
		return table.Rows[0].Cells[i]
	}
	for name, want := range map[string]any{
		"Name": "web", "DESIRED": float64(3), "UPDATED": float64(3), "UPDATED_READY": float64(3), "UPDATED_AVAILABLE": float64(3),
		"READY": float64(3), "TOTAL": float64(3), "CONTAINERS": "main", "IMAGES": "example.test/web:v1", "SELECTOR": "app=web",
	} {
		if got := cell(name); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
}

func TestShortNameAndCategory(t *testing.T) {
	t.Parallel()
	s := without(t)
	kubectl, err := discovery.NewDiscoveryClientForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	list, err := kubectl.ServerResourcesForGroupVersion(apps.GroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "clonesets" })
	if r := list.APIResources[i]; !slices.Equal(r.ShortNames, []string{"clone"}) || !slices.Equal(r.Categories, []string{"all"}) || !r.Namespaced {
		t.Errorf("%+v", r)
	}
}

// A horizontal autoscaler reads and writes the scale, and finds Pods by its selector.
func TestScaleSubresource(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.create(plain)
	s.settled(3)
	scale := &autoscalingv1.Scale{}
	if err := s.client.SubResource("scale").Get(t.Context(), s.set(), scale); err != nil {
		t.Fatal(err)
	}
	if scale.Spec.Replicas != 3 || scale.Status.Replicas != 3 || scale.Status.Selector != "app=web" {
		t.Errorf("scale %+v %+v", scale.Spec, scale.Status)
	}
	scale.Spec.Replicas = 4
	if err := s.client.SubResource("scale").Update(t.Context(), s.set(), client.WithSubResourceBody(scale)); err != nil {
		t.Fatal(err)
	}
	s.settled(4)
}

// event waits for an event of the set with a reason.
func (s *story) event(reason string) eventsv1.Event {
	s.Helper()
	var found eventsv1.Event
	s.until("an event "+reason, func() bool {
		var list eventsv1.EventList
		if err := s.client.List(s.Context(), &list, client.InNamespace(s.namespace)); err != nil {
			s.Fatal(err)
		}
		i := slices.IndexFunc(list.Items, func(e eventsv1.Event) bool { return e.Reason == reason && e.Regarding.Kind == "CloneSet" })
		if i >= 0 {
			found = list.Items[i]
		}
		return i >= 0
	})
	return found
}

// Events report what is done to Pods, with a limited number of names.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.create(plain, "spec.replicas", 1)
	s.settled(1)
	s.image("example.test/web:v2")
	s.settled(1)
	s.patch(`spec: {updateStrategy: {type: ReCreate}}`)
	s.image("example.test/web:v3")
	s.settled(1)
	s.patch(`spec: {replicas: 0}`)
	s.settled(0)
	for _, reason := range []string{"SuccessfulCreate", "SuccessfulUpdatePodInPlace", "SuccessfulUpdatePodReCreate", "SuccessfulDelete"} {
		e := s.event(reason)
		if e.Type != corev1.EventTypeNormal || e.Related == nil || e.Related.Kind != "Pod" || !strings.Contains(e.Note, "Pod "+e.Related.Name) {
			t.Errorf("%s: type %s, related %v, note %q", reason, e.Type, e.Related, e.Note)
		}
		if len(e.Note) > 200 || strings.Contains(e.Note, "example.test") {
			t.Errorf("%s carries more than a name: %q", reason, e.Note)
		}
	}
}

// A quota stops creation at the first refusal; the set reports this until the quota is
// lifted.
func TestQuota(t *testing.T) {
	t.Parallel()
	s := begin(t)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "few"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}},
	}
	if err := s.client.Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	s.until("the quota to be counted", func() bool {
		err := s.client.Get(t.Context(), client.ObjectKeyFromObject(quota), quota)
		return err == nil && len(quota.Status.Hard) > 0
	})
	s.create(plain, "spec.replicas", 20)
	s.until("the condition FailedScale", func() bool {
		c := s.condition(apps.ConditionFailedScale)
		return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "exceeded quota")
	})
	s.until("two Pods", func() bool { return s.set().Status.AvailableReplicas == 2 })
	if e := s.event("FailedCreate"); e.Type != corev1.EventTypeWarning || !strings.Contains(e.Note, "exceeded quota") || len(e.Note) > 500 {
		t.Errorf("event %s %q", e.Type, e.Note)
	}
	if err := s.client.Patch(t.Context(), quota, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"hard":{"pods":"40"}}}`))); err != nil {
		t.Fatal(err)
	}
	s.until("the quota to be raised", func() bool {
		err := s.client.Get(t.Context(), client.ObjectKeyFromObject(quota), quota)
		hard := quota.Status.Hard[corev1.ResourcePods]
		return err == nil && hard.Value() == 40
	})
	s.patch(`spec: {replicas: 4}`) // otherwise the next attempt is half a minute later
	s.settled(4)
	s.until("FailedScale to clear", func() bool { return s.condition(apps.ConditionFailedScale).Status == corev1.ConditionFalse })
}
