// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
)

// kubectl is the client with which kubectl asks what it shows.
func (s *story) kubectl() *discovery.DiscoveryClient {
	s.Helper()
	return checktest.Must(discovery.NewDiscoveryClientForConfig(s.RESTConfig()))(s)
}

// TestColumns covers `kubectl get clone` and `kubectl get clone -o wide`.
func TestColumns(t *testing.T) {
	s := running(t, "plain")
	table := s.Table("apps.kruise.io/v1alpha1", "clonesets")
	checktest.Same(t, "rows", 1, len(table.Rows))
	names, cells := map[bool][]string{}, map[string]any{}
	for i, column := range table.ColumnDefinitions {
		wide := column.Priority != 0
		names[wide] = append(names[wide], column.Name)
		cells[column.Name] = table.Rows[0].Cells[i]
	}
	checktest.Same(t, "columns", "Name DESIRED UPDATED UPDATED_READY UPDATED_AVAILABLE READY TOTAL AGE", strings.Join(names[false], " "))
	checktest.Same(t, "wide columns", "CONTAINERS IMAGES SELECTOR WAITING", strings.Join(names[true], " "))
	for name, want := range map[string]any{
		"Name": "web", "DESIRED": 3.0, "UPDATED": 3.0, "UPDATED_READY": 3.0, "UPDATED_AVAILABLE": 3.0,
		"READY": 3.0, "TOTAL": 3.0, "CONTAINERS": "main", "IMAGES": "example.test/web:v1", "SELECTOR": "app=web",
	} {
		checktest.Same(t, name, want, cells[name])
	}
}

func TestShortNameAndCategory(t *testing.T) {
	s := withoutController(t)
	list := checktest.Must(s.kubectl().ServerResourcesForGroupVersion(apps.GroupVersion.String()))(s)
	i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "clonesets" })
	if len(list.APIResources) != 3 { // with status and scale, and no ContainerRecreateRequest
		t.Errorf("the API has %d resources", len(list.APIResources))
	}
	if r := list.APIResources[i]; !slices.Equal(r.ShortNames, []string{"clone"}) || !slices.Equal(r.Categories, []string{"all"}) || !r.Namespaced {
		t.Errorf("%+v", r)
	}
}

// TestExplain: `kubectl explain` shows each field only under its correct name, with a
// description.
func TestExplain(t *testing.T) {
	s := withoutController(t)
	data := checktest.Must(s.kubectl().RESTClient().Get().AbsPath("/openapi/v3/apis/apps.kruise.io/v1alpha1").DoRaw(t.Context()))(s)
	var document struct {
		Components struct{ Schemas map[string]field }
	}
	s.Must(json.Unmarshal(data, &document))
	set := document.Components.Schemas["io.kruise.apps.v1alpha1.CloneSet"]
	set.check(t, "cloneset")
	for path, want := range map[string]string{
		"spec.updateStrategy":      "inPlaceUpdateStrategy maxSurge maxUnavailable partition paused priorityStrategy scatterStrategy type",
		"spec.lifecycle":           "inPlaceUpdate preDelete preNormal",
		"spec.lifecycle.preNormal": "finalizersHandler labelsHandler markPodNotReady",
		"spec.template.metadata":   "annotations labels",
	} {
		found := set
		for name := range strings.SplitSeq(path, ".") {
			found = found.Properties[name]
		}
		checktest.Same(t, path+" has the fields", want, strings.Join(slices.Sorted(maps.Keys(found.Properties)), " "))
	}
}

// field is what `kubectl explain` shows of a field.
type field struct {
	Description string
	Properties  map[string]field
	Items       *field
}

var fieldName = regexp.MustCompile(`^[a-z][A-Za-z]*$`)

func (f field) check(t *testing.T, path string) {
	t.Helper()
	for name, property := range f.Properties {
		if path == "cloneset" && name == "metadata" {
			continue // belongs to Kubernetes
		}
		if !fieldName.MatchString(name) || property.Description == "" {
			t.Errorf("%s.%s: %q", path, name, property.Description)
		}
		property.check(t, path+"."+name)
	}
	if f.Items != nil {
		f.Items.check(t, path)
	}
}

// A quota stops creation at the first refusal; the set reports this until the quota is
// lifted.
func TestQuota(t *testing.T) {
	s := begin(t)
	s.Make(s.Object(`{apiVersion: v1, kind: ResourceQuota, metadata: {name: few}, spec: {hard: {pods: "2"}}}`))
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "few"}}
	counted := func(pods int64) {
		t.Helper()
		s.until("the quota to be counted", func() bool {
			s.Read(quota)
			hard := quota.Status.Hard[corev1.ResourcePods]
			return hard.Value() == pods
		})
	}
	counted(2)
	s.create("plain", `spec: {replicas: 20}`)
	s.isTrue(apps.ConditionFailedScale, "exceeded quota")
	s.until("two Pods", func() bool { return s.set().Status.AvailableReplicas == 2 })
	if e := s.Event(s.set(), "FailedCreate"); e.Type != corev1.EventTypeWarning || !strings.Contains(e.Note, "exceeded quota") || len(e.Note) > 500 {
		t.Errorf("event %s %q", e.Type, e.Note)
	}
	s.Change(quota, `spec: {hard: {pods: "40"}}`)
	counted(40)
	s.patch(`spec: {replicas: 4}`) // otherwise the next attempt is half a minute later
	s.settled(4)
	s.isFalse(apps.ConditionFailedScale)
}

func TestOrphansAreAdoptedAndForeignPodsAreNot(t *testing.T) {
	s := withoutController(t)
	orphan, foreign := s.pod("orphan"), s.pod("foreign")
	foreign.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "1234", Controller: new(true)}}
	for _, pod := range []*corev1.Pod{orphan, foreign} {
		pod.Labels = map[string]string{"app": "web"}
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "example.test/web:v1"}}
		s.Make(pod)
	}
	s.startController()
	s.create("plain", `spec: {updateStrategy: {type: OnDelete}}`)
	s.until("three Pods of the set", func() bool { return s.set().Status.Replicas == 3 })
	s.Read(orphan)
	if !metav1.IsControlledBy(orphan, s.set()) {
		t.Errorf("the orphan belongs to %v", orphan.OwnerReferences)
	}
	// The garbage collector may have deleted it, since its owner does not exist.
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign); err == nil && metav1.GetControllerOf(foreign).Name != "other" {
		t.Errorf("the foreign Pod was touched: %v", foreign.OwnerReferences)
	}
}

// Pods carry no field managers, which would double the cost of each write, except Pods
// to which somebody applies server-side: what that manager stops applying is removed,
// after an update too.
func TestFieldManagersOfThoseWhoApply(t *testing.T) {
	s := running(t, "plain")
	for _, pod := range s.pods() {
		if len(pod.ManagedFields) > 0 {
			t.Errorf("Pod %s has managed fields of %s", pod.Name, pod.ManagedFields[0].Manager)
		}
	}
	const theirs = "example.com/theirs"
	name := s.pods()[0].Name
	apply := func(labels map[string]any) {
		t.Helper()
		pod := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"namespace": s.Namespace, "name": name, "labels": labels},
		}}
		s.Must(s.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(pod), client.FieldOwner(theirs)))
	}
	apply(map[string]any{theirs: "1"})
	s.image("web:v2")
	s.settled(3)
	for _, pod := range s.pods() {
		applies := slices.ContainsFunc(pod.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
			return e.Operation == metav1.ManagedFieldsOperationApply && e.Manager == theirs
		})
		if applies != (pod.Name == name) || (len(pod.ManagedFields) > 0) != applies {
			t.Errorf("Pod %s: %d managers, somebody applies: %v", pod.Name, len(pod.ManagedFields), applies)
		}
	}
	apply(nil)
	s.until("the label to go that is no longer applied", func() bool {
		return !slices.ContainsFunc(s.pods(), func(p corev1.Pod) bool { return p.Labels[theirs] != "" })
	})
}
