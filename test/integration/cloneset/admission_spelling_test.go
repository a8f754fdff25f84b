// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// misspelt are fields with nearly correct names; one is in OpenKruise's own proposal of
// preNormal.
var misspelt = map[string]any{
	"spec.updateStrategy.MaxSurge":                  int64(1),
	"spec.updateStrategy.MaxUnavailable":            int64(0),
	"spec.lifecycle.PreNormal":                      map[string]any{"labelsHandler": map[string]any{"a": "b"}},
	"spec.lifecycle.PreDelete":                      map[string]any{},
	"spec.lifecycle.InPlaceUpdate":                  map[string]any{},
	"spec.lifecycle.preNormal.labelHandlers":        map[string]any{"a": "b"},
	"spec.lifecycle.preDelete.finalizerHandlers":    []any{"a.b/c"},
	"spec.scaleStrategy.maxUnavailible":             int64(1),
	"spec.volumeClaimTemplate":                      []any{},
	"spec.updateStrategy.inPlaceUpdateStrategy.sec": int64(1),
}

// TestMisspeltFields: kubectl, which requests strict validation, and server-side apply
// are refused with the field's name; requests without validation get a warning, and the
// field is dropped.
func TestMisspeltFields(t *testing.T) {
	s := without(t)
	heard := &warnings{}
	config := rest.CopyConfig(s.config)
	config.WarningHandler = heard
	plainly, err := client.New(config, client.Options{Scheme: s.scheme})
	if err != nil {
		t.Fatal(err)
	}
	strictly := client.WithFieldValidation(s.client, metav1.FieldValidationStrict)
	for path, value := range misspelt {
		t.Run(path, func(t *testing.T) {
			err := strictly.Create(t.Context(), s.edited(minimal, path, value), client.DryRunAll)
			if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `unknown field "`+path+`"`) {
				t.Errorf("strictly: %v", err)
			}
			applied := client.ApplyConfigurationFromUnstructured(s.edited(minimal, path, value))
			err = s.client.Apply(t.Context(), applied, client.FieldOwner("someone"), client.DryRunAll)
			if err == nil || !strings.Contains(err.Error(), "."+path+": field not declared in schema") {
				t.Errorf("applied: %v", err)
			}
			heard.said = nil
			set := s.edited(minimal, path, value)
			if err := plainly.Create(t.Context(), set, client.DryRunAll); err != nil {
				t.Errorf("plainly: %v", err)
			}
			if _, kept, _ := unstructured.NestedFieldNoCopy(set.Object, strings.Split(path, ".")...); kept || !slices.Contains(heard.said, `unknown field "`+path+`"`) {
				t.Errorf("plainly: kept %v, warnings %q", kept, heard.said)
			}
		})
	}
}

// warnings collects the API server's warnings.
type warnings struct{ said []string }

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) { w.said = append(w.said, text) }

// TestExplain: `kubectl explain` shows each field only under its correct name, with a
// description.
func TestExplain(t *testing.T) {
	s := without(t)
	kubectl, err := discovery.NewDiscoveryClientForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	data, err := kubectl.RESTClient().Get().AbsPath("/openapi/v3/apis/apps.kruise.io/v1alpha1").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Components struct{ Schemas map[string]field }
	}
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
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
		if got := strings.Join(slices.Sorted(maps.Keys(found.Properties)), " "); got != want {
			t.Errorf("%s has the fields %q, want %q", path, got, want)
		}
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
