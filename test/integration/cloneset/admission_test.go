// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
)

// row is a manifest of testdata/accepted.yaml or testdata/refused.yaml; the files
// describe the fields.
type row struct {
	Name, OpenKruise, Why string
	Set                   map[string]any
	Remove                string
	Refusal               string
	Goal, Error           string
	Volumes               int
}

func rows(t *testing.T, file string) (out []row) {
	t.Helper()
	text := checktest.Must(template.ParseFiles(filepath.Join("testdata", file)))(t)
	var content strings.Builder
	checktest.NoError(t, text.Execute(&content, nil))
	if err := yaml.UnmarshalStrict([]byte(content.String()), &out); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return out
}

// minimal is a set of the required fields alone, with values set by path, even to null.
func (s *story) minimal(values map[string]any) *unstructured.Unstructured {
	s.Helper()
	set := s.Prop("minimal")
	for _, path := range slices.Sorted(maps.Keys(values)) {
		s.Must(unstructured.SetNestedField(set.Object, values[path], strings.Split(path, ".")...))
	}
	return set
}

// TestAdmissionRefuses: each refusal says what to do.
func TestAdmissionRefuses(t *testing.T) {
	s := withoutController(t)
	for _, m := range rows(t, "refused.yaml") {
		t.Run(m.Name, func(t *testing.T) {
			set := s.minimal(m.Set)
			unstructured.RemoveNestedField(set.Object, strings.Split(m.Remove, ".")...)
			err := s.Create(t.Context(), set, client.DryRunAll)
			// Kubernetes 1.33 also shows the type of the value.
			said := strings.ReplaceAll(fmt.Sprint(err), `Invalid value: "object": `, "Invalid value: ")
			if !apierrors.IsInvalid(err) || m.Refusal == "" || !strings.Contains(said, m.Refusal) {
				t.Errorf("got %v, want an error that says %q", err, m.Refusal)
			}
		})
	}
}

// TestAdmissionAccepts: unusual but valid manifests are accepted, and they run.
func TestAdmissionAccepts(t *testing.T) {
	goals := map[string]func(*story){"": rolledOut, "settled": func(s *story) { s.settled(s.replicas()) }, "observed": (*story).observed}
	for _, m := range rows(t, "accepted.yaml") {
		t.Run(m.Name, func(t *testing.T) {
			s := begin(t)
			s.offerVolumes(m.Volumes, "admission")
			set := s.minimal(m.Set)
			s.name = set.GetName()
			s.Make(set)
			if m.Error != "" {
				s.refusedLater(m.Error)
			} else {
				goals[m.Goal](s)
			}
		})
	}
}

// rolledOut: all Pods are created, and an update reaches all of them.
func rolledOut(s *story) {
	s.settled(s.replicas())
	s.otherImage("web:v2")
	s.settled(s.replicas())
}

// refusedLater: no Pod is created, and a condition quotes the API server.
func (s *story) refusedLater(answer string) {
	s.Helper()
	s.Await(fmt.Sprintf("a condition that says %q", answer), func() bool {
		return slices.ContainsFunc(s.set().Status.Conditions, func(c apps.CloneSetCondition) bool {
			return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, answer)
		})
	})
	if len(s.pods()) > 0 {
		s.Errorf("there are Pods: %s", s.Picture())
	}
}

// TestDifferencesAreDocumented: the table in docs/compatibility.md lists each manifest
// that OpenKruise and Usher answer differently, with the reason.
func TestDifferencesAreDocumented(t *testing.T) {
	text := checktest.Must(os.ReadFile(filepath.Join("..", "..", "..", "docs", "compatibility.md")))(t)
	documented := slices.Collect(strings.Lines(string(text)))
	for ours, file := range map[string]string{"refuses": "refused.yaml", "accepts": "accepted.yaml"} {
		for _, m := range rows(t, file) {
			if !slices.Contains([]string{"accepts", "refuses", "unasked"}, m.OpenKruise) {
				t.Errorf("%s: OpenKruise %q", m.Name, m.OpenKruise)
			}
			if differs := m.OpenKruise != "unasked" && m.OpenKruise != ours; differs != (m.Why != "") {
				t.Errorf("%s: OpenKruise %s it, Usher %s it, because %q", m.Name, m.OpenKruise, ours, m.Why)
			}
			if m.Why != "" && !slices.ContainsFunc(documented, func(line string) bool {
				return strings.HasPrefix(line, "| "+m.Name+" | ") && strings.HasSuffix(line, " | "+m.OpenKruise+" | "+ours+" | "+m.Why+" |\n")
			}) {
				t.Errorf("no row of docs/compatibility.md says %q, %q, %q, %q", m.Name, m.OpenKruise, ours, m.Why)
			}
		}
	}
}

// TestMisspeltFields: kubectl, which requests strict validation, and server-side apply
// are refused with the field's name; requests without validation get a warning, and the
// field is dropped.
func TestMisspeltFields(t *testing.T) {
	s := withoutController(t)
	var said strings.Builder
	config := rest.CopyConfig(s.RESTConfig())
	config.WarningHandler = rest.NewWarningWriter(&said, rest.WarningWriterOptions{})
	lenient := checktest.Must(client.New(config, client.Options{Scheme: s.Scheme()}))(s)
	strict := client.WithFieldValidation(s, metav1.FieldValidationStrict)
	var misspelt map[string]any
	s.Must(yaml.Unmarshal(checktest.Must(os.ReadFile(filepath.Join("testdata", "misspelt.yaml")))(s), &misspelt))
	for path, value := range misspelt {
		set := func() *unstructured.Unstructured { return s.minimal(map[string]any{path: value}) }
		unknown := `unknown field "` + path + `"`
		if err := strict.Create(t.Context(), set(), client.DryRunAll); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), unknown) {
			t.Errorf("%s, strictly: %v", path, err)
		}
		err := s.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(set()), client.FieldOwner("someone"), client.DryRunAll)
		checktest.Says(t, path+", applied,", err, "."+path+": field not declared in schema")
		said.Reset()
		created := set()
		checktest.NoError(t, lenient.Create(t.Context(), created, client.DryRunAll))
		if _, kept, _ := unstructured.NestedFieldNoCopy(created.Object, strings.Split(path, ".")...); kept || !strings.Contains(said.String(), "Warning: "+unknown+"\n") {
			t.Errorf("%s, leniently: kept %v, warnings %q", path, kept, said.String())
		}
	}
}
