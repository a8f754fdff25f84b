// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// minimal is a CloneSet with only the required fields.
const minimal = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "example.test/web:v1"}]}
`

// verdict is OpenKruise 1.9's answer to a manifest.
type verdict string

const (
	accepts verdict = "accepts"
	refuses verdict = "refuses"
	// unasked: not tried there.
	unasked verdict = "unasked"
)

// manifest is the minimal set with edits, and the expected result.
type manifest struct {
	name       string
	edits      []any
	openkruise verdict
	// refusal is a part of Usher's answer; empty if it accepts the manifest.
	refusal string
	// goal is what an accepted set ends in; nil for a complete rollout.
	goal func(*story)
	// why is the reason for different verdicts. docs/compatibility.md says the same.
	why string
}

// of parses an edit's value from YAML.
func of(text string) any {
	var out any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		panic(err)
	}
	return out
}

// many is a list of n YAML items, each with its own name in place of $.
func many(n int, item string) any {
	items := make([]string, n)
	for i := range items {
		items[i] = strings.ReplaceAll(item, "$", fmt.Sprintf("n%d", i))
	}
	return of("[" + strings.Join(items, ", ") + "]")
}

// manyLabels returns n labels in addition to the selector's.
func manyLabels(n int) any {
	out := map[string]any{"app": "web"}
	for _, key := range many(n, "$").([]any) {
		out[key.(string)] = "v"
	}
	return out
}

// TestAdmissionRefuses: each refusal says what to do.
func TestAdmissionRefuses(t *testing.T) {
	s := without(t)
	for _, m := range refused {
		t.Run(m.name, func(t *testing.T) {
			err := s.client.Create(t.Context(), s.edited(minimal, m.edits...), client.DryRunAll)
			// Kubernetes 1.33 also shows the type of the value.
			said := strings.ReplaceAll(fmt.Sprint(err), `Invalid value: "object": `, "Invalid value: ")
			if !apierrors.IsInvalid(err) || !strings.Contains(said, m.refusal) {
				t.Errorf("got %v, want an error that says %q", err, m.refusal)
			}
		})
	}
}

// TestAdmissionAccepts: unusual but valid manifests are accepted, and they run.
func TestAdmissionAccepts(t *testing.T) {
	for _, m := range accepted {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			set := s.edited(minimal, m.edits...)
			s.name = set.GetName()
			if err := s.client.Create(t.Context(), set); err != nil {
				t.Fatal(err)
			}
			if m.goal == nil {
				m.goal = rolledOut
			}
			m.goal(s)
		})
	}
}

// TestDifferencesAreDocumented: the table in docs/compatibility.md lists each manifest
// that OpenKruise and Usher answer differently, with the reason.
func TestDifferencesAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := slices.Collect(strings.Lines(string(text)))
	for _, m := range slices.Concat(refused, accepted) {
		ours := accepts
		if m.refusal != "" {
			ours = refuses
		}
		if differs := m.openkruise != unasked && m.openkruise != ours; differs != (m.why != "") {
			t.Errorf("%s: OpenKruise %s it, Usher %s it, because %q", m.name, m.openkruise, ours, m.why)
		}
		if m.why == "" {
			continue
		}
		if !slices.ContainsFunc(rows, func(row string) bool {
			return strings.HasPrefix(row, "| "+m.name+" | ") && strings.HasSuffix(row, " | "+string(m.openkruise)+" | "+string(ours)+" | "+m.why+" |\n")
		}) {
			t.Errorf("no row of docs/compatibility.md says %q, %q, %q, %q", m.name, m.openkruise, ours, m.why)
		}
	}
}

func TestDefaults(t *testing.T) {
	s := without(t)
	s.create(plain, "spec.updateStrategy", nil, "spec.replicas", nil)
	spec := s.set().Spec
	if *spec.Replicas != 1 || *spec.RevisionHistoryLimit != 10 || spec.UpdateStrategy.Type != "ReCreate" ||
		spec.UpdateStrategy.MaxUnavailable.StrVal != "20%" || spec.UpdateStrategy.MaxSurge.IntVal != 0 ||
		spec.UpdateStrategy.Partition.IntVal != 0 || spec.MinReadySeconds != 0 {
		t.Errorf("defaults: %+v", spec)
	}
}

func TestSelectorCannotChange(t *testing.T) {
	s := without(t)
	s.create(plain)
	set := s.set().DeepCopy()
	before := set.DeepCopy()
	set.Spec.Selector.MatchLabels["app"] = "other"
	err := s.client.Patch(t.Context(), set, client.MergeFrom(before), client.DryRunAll)
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "selector cannot change once the CloneSet exists") {
		t.Errorf("got %v", err)
	}
}

// TestMutableFields covers what may change once the set exists.
func TestMutableFields(t *testing.T) {
	s := without(t)
	s.create(plain)
	for _, change := range []string{
		`{replicas: 5}`, `{minReadySeconds: 5}`, `{progressDeadlineSeconds: 60}`, `{revisionHistoryLimit: 0}`,
		`{template: {spec: {containers: [{name: main, image: "example.test/web:v2"}, {name: side, image: "example.test/web:v1"}]}}}`,
		`{lifecycle: {preDelete: {finalizersHandler: [example.com/hold]}}}`,
		`{scaleStrategy: {maxUnavailable: 1, podsToDelete: [web-aaaaa]}}`,
		`{updateStrategy: {type: ReCreate, partition: 10%, maxSurge: 1, maxUnavailable: 0, paused: true}}`,
		`{updateStrategy: {type: ""}}`,
		`{volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce]}}]}`,
	} {
		data, err := yaml.YAMLToJSON([]byte("spec: " + change))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.client.Patch(t.Context(), s.set(), client.RawPatch(types.MergePatchType, data), client.DryRunAll); err != nil {
			t.Errorf("%s: %v", change, err)
		}
	}
}

// The empty type means ReCreate, on an existing set too.
func TestEmptyTypeRecreates(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.create(plain)
	s.settled(3)
	before := s.identities()
	s.patch(`spec: {updateStrategy: {type: ""}}`)
	s.image("example.test/web:v2")
	s.settled(3)
	if kind := s.set().Spec.UpdateStrategy.Type; kind != "" {
		t.Errorf("the type has become %q", kind)
	}
	for name := range s.identities() {
		if _, kept := before[name]; kept {
			t.Errorf("Pod %s was not recreated", name)
		}
	}
}
