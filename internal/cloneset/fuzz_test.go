// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/cloneset/write"
)

// cloneSetSeeds are the CloneSets that fuzzing starts from: a full one, and one for every
// imaginable kind of mistake.
var cloneSetSeeds = []string{
	`{"apiVersion":"apps.kruise.io/v1alpha1","kind":"CloneSet","metadata":{"name":"web","namespace":"shop"},"spec":{"replicas":3,
	"selector":{"matchLabels":{"app":"web"}},"minReadySeconds":5,"progressDeadlineSeconds":60,
	"template":{"metadata":{"labels":{"app":"web"},"finalizers":["a/b"]},"spec":{"containers":[{"name":"main","image":"app:1","newer":{"x":[1,2.5]}}],
	"readinessGates":[{"conditionType":"own"}]}},
	"scaleStrategy":{"podsToDelete":["web-abcde"],"maxUnavailable":"10%"},
	"updateStrategy":{"type":"InPlaceIfPossible","partition":"50%","maxUnavailable":1,"maxSurge":"20%","paused":false,
	"inPlaceUpdateStrategy":{"gracePeriodSeconds":5},"scatterStrategy":[{"key":"a","value":"b"}],
	"priorityStrategy":{"weightPriority":[{"weight":50,"matchSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["x"]}]}}]}},
	"lifecycle":{"preNormal":{"labelsHandler":{"a":"true"}},"preDelete":{"finalizersHandler":["a/b"],"markPodNotReady":true}}}}`,
	`{"spec":{"template":{},"updateStrategy":{"partition":"x%"}}}`,
	`{"spec":{"template":{},"updateStrategy":{"type":"","maxSurge":"1000000%"}}}`,
	`{"spec":{"template":[],"updateStrategy":{"maxSurge":-1}}}`,
	`{"spec":{"template":{"metadata":{"labels":{"a":"1"}},"spec":{"readinessGates":[1,null]}},"updateStrategy":{"maxUnavailable":"99999%"}}}`,
	`{"spec":{"template":{"spec":{"containers":null}},"updateStrategy":{"priorityStrategy":{"weightPriority":[{"matchSelector":{"matchExpressions":[{"operator":"?"}]}}]}}}}`,
	`{"spec":{"replicas":-1,"selector":{"matchExpressions":[{"key":"","operator":"Exists"}]},"scaleStrategy":{"maxUnavailable":"5"}}}`,
	`{"spec":{"template":{"metadata":{"finalizers":[1,null,"f"],"annotations":{"a":1}},"spec":{"readinessGates":"x"}}}}`,
}

// FuzzCloneSet passes any CloneSet through everything that a pass does with its spec:
// nothing panics, an error names the field, and nothing of the template is lost.
func FuzzCloneSet(f *testing.F) {
	for _, seed := range cloneSetSeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var set apps.CloneSet
		if json.Unmarshal(data, &set) != nil {
			return // the API server and the cache refuse it
		}
		if err := keepsTemplate(&set); err != nil {
			t.Error(err)
		}
		spec, err := plan.SpecOf(&set)
		if err != nil && !strings.HasPrefix(err.Error(), "spec.") {
			t.Errorf("the error names no field: %v", err)
		}
		template, templateErr := rawTemplate(&set)
		if templateErr != nil && !strings.HasPrefix(templateErr.Error(), "spec.template") {
			t.Errorf("the error names no field: %v", templateErr)
		}
		if err == nil && templateErr == nil {
			if err := useTemplate(&set, spec, template); err != nil {
				t.Error(err)
			}
		}
	})
}

// keepsTemplate: a CloneSet that is written and read back keeps its template, and the
// copy shares nothing that could change.
func keepsTemplate(set *apps.CloneSet) error {
	data, err := json.Marshal(set.DeepCopy())
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	var again apps.CloneSet
	if err := json.Unmarshal(data, &again); err != nil {
		return fmt.Errorf("a CloneSet that was read cannot be read again: %w", err)
	}
	var before, after map[string]any
	if raw := set.Spec.Template.Raw(); len(raw) > 0 {
		if err := json.Unmarshal(raw, &before); err != nil {
			return fmt.Errorf("decode the template: %w", err)
		}
	}
	if err := json.Unmarshal(again.Spec.Template.Raw(), &after); err != nil {
		return fmt.Errorf("decode the template that was written: %w", err)
	}
	if diff := cmp.Diff(revision.Normalize(before), revision.Normalize(after)); diff != "" {
		return fmt.Errorf("the template changes on its way: %s", diff)
	}
	return nil
}

// useTemplate uses a template as a rollout does.
func useTemplate(set *apps.CloneSet, spec plan.Spec, template map[string]any) error {
	r, err := revisionOf(template)
	if err != nil || r == nil {
		return err
	}
	manifest := write.PodManifest(set, r, "abcde", now)
	pod := &corev1.Pod{}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(manifest.Object, pod) != nil {
		return nil // the API server refuses it
	}
	s := &plan.Snapshot{
		Now: now, Set: "web", Spec: spec, Current: r, Update: r, Starts: 32,
		Revisions: map[string]*revision.Revision{revision.Short(r.Name): r}, Pods: []*corev1.Pod{pod},
	}
	plan.Review(s)
	for _, a := range plan.Make(s).Actions {
		if a.Pod == nil {
			continue
		}
		for _, subresource := range write.Subresources() {
			if _, _, err := write.Patch(subresource, a.Pod, &a, false, now); err != nil {
				return fmt.Errorf("encode the patch of %v: %w", a, err)
			}
		}
	}
	return nil
}

// revisionOf passes a template through a ControllerRevision; nil if there is none.
func revisionOf(template map[string]any) (*revision.Revision, error) {
	hash, err := revision.Hash(template, 0)
	if err != nil {
		return nil, fmt.Errorf("hash: %w", err)
	}
	data, err := revision.Data(template)
	if errors.Is(err, revision.ErrNoTemplate) {
		return nil, nil // the set reports it
	}
	if err != nil {
		return nil, fmt.Errorf("encode revision: %w", err)
	}
	back, err := revision.Template(data)
	switch {
	case errors.Is(err, revision.ErrNoTemplate):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("decode revision: %w", err)
	case !revision.Equal(template, back):
		return nil, fmt.Errorf("the revision holds another template: %s", cmp.Diff(template, back))
	}
	return &revision.Revision{Name: "web-" + hash, Template: back}, nil
}
