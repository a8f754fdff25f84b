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
