// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

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
