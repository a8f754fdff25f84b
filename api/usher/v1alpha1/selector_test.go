// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestSelects: selectors match what Kubernetes' match, except that an empty one selects no Pod.
func TestSelects(t *testing.T) {
	for _, text := range []string{
		`{}`, `{"matchLabels": {"app": "web"}}`, `{"matchLabels": {"app": "web", "track": "a"}}`, `{"matchLabels": {"app": ""}}`,
		`{"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "shop"]}]}`,
		`{"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web", "shop"]}]}`,
		`{"matchExpressions": [{"key": "app", "operator": "Exists"}, {"key": "track", "operator": "DoesNotExist"}]}`,
		`{"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "track", "operator": "NotIn", "values": ["a"]}]}`,
	} {
		r, theirs := &Registration{}, &metav1.LabelSelector{}
		for _, err := range []error{json.Unmarshal([]byte(text), &r.Spec.Selector), json.Unmarshal([]byte(text), theirs)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		want, err := metav1.LabelSelectorAsSelector(theirs)
		if err != nil {
			t.Fatal(err)
		}
		for _, have := range []labels.Set{nil, {"app": ""}, {"app": "web"}, {"app": "web", "track": "a"}, {"app": "other", "track": "b"}, {"track": "a"}} {
			if got := r.Spec.Selector.Matches(have); got != want.Matches(have) {
				t.Errorf("%s matches %v: %t", text, have, got)
			}
			if got := r.Selects(have); got != (want.Matches(have) && text != "{}") {
				t.Errorf("%s selects %v: %t", text, have, got)
			}
		}
	}
	for _, operator := range []string{"Near", ""} {
		odd := LabelSelector{MatchExpressions: []LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOperator(operator)}}}
		if odd.Matches(labels.Set{"app": "web"}) {
			t.Errorf("an operator %q matches", operator)
		}
	}
}

// TestSelectorsAreNotParsed: to ask a Registration about a Pod costs next to nothing.
func TestSelectorsAreNotParsed(t *testing.T) {
	busy := &Registration{}
	busy.Spec.Selector.MatchExpressions = []LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []LabelValue{"shop"}}}
	if n := testing.AllocsPerRun(10, func() { busy.Selects(map[string]string{"app": "web"}) }); n > 0 {
		t.Errorf("a selector is parsed for each Pod: %v allocations", n)
	}
}
