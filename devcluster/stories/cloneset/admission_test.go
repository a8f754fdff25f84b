// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// What admission refuses, each with words that say what to do.
func TestAdmissionRefuses(t *testing.T) {
	s := without(t)
	for name, c := range map[string]struct {
		edits []any
		want  string
	}{
		"selector that misses the template": {
			[]any{"spec.selector.matchLabels.app", "other"},
			"selector.matchLabels must all be among template.metadata.labels: add the missing labels to the template",
		},
		"empty selector": {
			[]any{"spec.selector", map[string]any{}}, "selector cannot be empty",
		},
		"expression that the template does not meet": {
			[]any{"spec.selector.matchExpressions", []any{map[string]any{"key": "app", "operator": "In", "values": []any{"a", "b"}}}},
			"selector.matchExpressions must match template.metadata.labels",
		},
		"percentage without a sign": {
			[]any{"spec.updateStrategy.maxUnavailable", "5"},
			`must be a number of Pods such as 5, without quotes, or a percentage such as "20%"`,
		},
		"partition that is neither": {
			[]any{"spec.updateStrategy.partition", "all"}, "must be a number of Pods such as 5",
		},
		"negative surge": {
			[]any{"spec.updateStrategy.maxSurge", -1}, "must be a number of Pods such as 5",
		},
		"nothing may move": {
			[]any{"spec.updateStrategy.maxUnavailable", 0},
			"updateStrategy.maxUnavailable and updateStrategy.maxSurge cannot both be 0",
		},
		"nothing may move, in percent": {
			[]any{"spec.updateStrategy.maxUnavailable", "0%", "spec.updateStrategy.maxSurge", "0%"},
			"cannot both be 0: no Pod could ever be updated; raise one of them",
		},
		"surge in place": {
			[]any{"spec.updateStrategy.type", "InPlaceOnly", "spec.updateStrategy.maxSurge", 1},
			"maxSurge must be 0 with type InPlaceOnly",
		},
		"unknown type": {
			[]any{"spec.updateStrategy.type", "Recreate"}, `supported values: "ReCreate", "InPlaceIfPossible", "InPlaceOnly", "OnDelete"`,
		},
		"Pods that end": {
			[]any{"spec.template.spec.restartPolicy", "Never"}, "restartPolicy must be Always",
		},
		"Pods with a deadline": {
			[]any{"spec.template.spec.activeDeadlineSeconds", 5}, "activeDeadlineSeconds is for Pods that end",
		},
		"a Pod named twice": {
			[]any{"spec.scaleStrategy.podsToDelete", []any{"web-a", "web-a"}}, `spec.scaleStrategy.podsToDelete[1]: Duplicate value: "web-a"`,
		},
		"deadline within minReadySeconds": {
			[]any{"spec.progressDeadlineSeconds", 10, "spec.minReadySeconds", 10}, "progressDeadlineSeconds must be larger than minReadySeconds",
		},
		"weight out of range": {
			[]any{"spec.updateStrategy.priorityStrategy.weightPriority", []any{map[string]any{
				"weight": int64(101), "matchSelector": map[string]any{"matchLabels": map[string]any{"a": "b"}}}}},
			"should be less than or equal to 100",
		},
		"weight for everybody": {
			[]any{"spec.updateStrategy.priorityStrategy.weightPriority", []any{map[string]any{
				"weight": int64(1), "matchSelector": map[string]any{}}}},
			"selector cannot be empty",
		},
		"order without a key": {
			[]any{"spec.updateStrategy.priorityStrategy.orderPriority", []any{map[string]any{"orderedKey": ""}}}, "should be at least 1 chars long",
		},
		"weight and order": {
			[]any{"spec.updateStrategy.priorityStrategy.orderPriority", []any{map[string]any{"orderedKey": "a"}},
				"spec.updateStrategy.priorityStrategy.weightPriority", []any{map[string]any{
					"weight": int64(1), "matchSelector": map[string]any{"matchLabels": map[string]any{"a": "b"}}}}},
			"orderPriority and weightPriority exclude each other",
		},
		"claims without a name": {
			[]any{"spec.volumeClaimTemplates", []any{map[string]any{"spec": map[string]any{}}}},
			"each of volumeClaimTemplates needs a metadata.name of its own",
		},
		"claims of one name": {
			[]any{"spec.volumeClaimTemplates", []any{map[string]any{"metadata": map[string]any{"name": "data"}}, map[string]any{"metadata": map[string]any{"name": "data"}}}},
			"each of volumeClaimTemplates needs a metadata.name of its own",
		},
		"claims of a name that no volume can have": {
			[]any{"spec.volumeClaimTemplates", []any{map[string]any{"metadata": map[string]any{"name": "Data"}}}},
			"spec.volumeClaimTemplates[0].metadata.name",
		},
		"misspelt hook":       {[]any{"spec.lifecycle.PreNormal", map[string]any{}}, "PreNormal is spelled preNormal"},
		"misspelt handler":    {[]any{"spec.lifecycle.preNormal.labelHandlers", map[string]any{"a": "b"}}, "labelHandlers is spelled labelsHandler"},
		"misspelt surge":      {[]any{"spec.updateStrategy.MaxSurge", 1}, "MaxSurge is spelled maxSurge"},
		"misspelt budget":     {[]any{"spec.updateStrategy.MaxUnavailable", 0}, "MaxUnavailable is spelled maxUnavailable"},
		"misplaced container": {[]any{"spec.template.metadata.containers", []any{map[string]any{"name": "main"}}, "spec.template.spec", nil}, "containers belong to template.spec.containers"},
		"no Pod spec":         {[]any{"spec.template.spec", nil}, "template.spec is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			err := s.client.Create(t.Context(), s.edited(plain, c.edits...), client.DryRunAll)
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error that says %q", err, c.want)
			}
		})
	}
}

// What is unusual and right is not refused.
func TestAdmissionAccepts(t *testing.T) {
	s := without(t)
	for name, edits := range map[string][]any{
		"defaults alone":            {"spec.updateStrategy", nil, "spec.replicas", nil},
		"surge instead of absence":  {"spec.updateStrategy.maxUnavailable", 0, "spec.updateStrategy.maxSurge", "10%"},
		"nothing may move of zero":  {"spec.updateStrategy.maxUnavailable", 0, "spec.replicas", 0},
		"expressions that are met":  {"spec.selector.matchExpressions", []any{map[string]any{"key": "app", "operator": "Exists"}, map[string]any{"key": "x", "operator": "DoesNotExist"}}},
		"a field of newer Pods":     {"spec.template.spec.fieldOfTheFuture", "x"},
		"a hook by finalizer":       {"spec.lifecycle.preDelete.finalizersHandler", []any{"example.com/hold"}},
		"full percentage as budget": {"spec.updateStrategy.maxUnavailable", "100%"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.client.Create(t.Context(), s.edited(plain, edits...), client.DryRunAll); err != nil {
				t.Error(err)
			}
		})
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

// What may change once the set exists.
func TestMutableFields(t *testing.T) {
	s := without(t)
	s.create(plain)
	for _, change := range []string{
		`{replicas: 5}`, `{minReadySeconds: 5}`, `{progressDeadlineSeconds: 60}`, `{revisionHistoryLimit: 0}`,
		`{template: {spec: {containers: [{name: main, image: "example.test/web:v2"}, {name: side, image: "example.test/web:v1"}]}}}`,
		`{lifecycle: {preDelete: {finalizersHandler: [example.com/hold]}}}`,
		`{scaleStrategy: {maxUnavailable: 1, podsToDelete: [web-aaaaa]}}`,
		`{updateStrategy: {type: ReCreate, partition: 10%, maxSurge: 1, maxUnavailable: 0, paused: true}}`,
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
