// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// anyTemplate builds a template as a user might write it.
func anyTemplate(d *checktest.Dice) map[string]any {
	metadata := map[string]any{}
	for _, field := range []string{"labels", "annotations"} {
		if values := anyMap(d, []string{"a", "b", "x/y~z"}, "", "1", "2", "true"); len(values) > 0 || d.Roll(4) == 3 {
			metadata[field] = values
		}
	}
	spec := anyMap(d, []string{"nodeName", "newerField"}, "", "x", []any{}, map[string]any{"deep": "x"})
	spec["containers"] = anyContainers(d, "main", "log", "web")
	if list := anyContainers(d, "setup", "proxy"); len(list) > 0 {
		spec["initContainers"] = list
	}
	return map[string]any{"metadata": metadata, "spec": spec}
}

// anyMap gives each key one of the values, null, or nothing.
func anyMap(d *checktest.Dice, keys []string, values ...any) map[string]any {
	out := map[string]any{}
	for _, key := range keys {
		if n := d.Roll(len(values) + 2); n > 0 {
			out[key] = append(values, nil)[n-1]
		}
	}
	return out
}

func anyContainers(d *checktest.Dice, names ...string) []any {
	out := []any{}
	for _, name := range names[:d.Roll(len(names)+1)] {
		c := map[string]any{"name": name}
		if image := checktest.Pick(d, "app:1", "app:2", "app", "registry:5000/app", ""); image != "" || d.Roll(2) == 1 {
			c["image"] = image
		}
		if d.Roll(3) == 2 {
			c["env"] = checktest.Pick[any](d, nil, []any{}, []any{map[string]any{"name": "A", "value": checktest.Pick(d, "1", "2")}})
		}
		if d.Roll(3) == 2 {
			c["resources"] = checktest.Pick[any](d, nil, map[string]any{}, cpuRequest("1"), cpuRequest("1000m"), cpuRequest("2"),
				map[string]any{"requests": map[string]any{"cpu": "1", "memory": "1Gi"}})
		}
		if d.Roll(2) == 1 {
			c["restartPolicy"] = checktest.Pick(d, "Always", "Never")
		}
		out = append(out, c)
	}
	return out
}

func cpuRequest(cpu string) map[string]any {
	return map[string]any{"requests": map[string]any{"cpu": cpu}}
}

// applied returns the template of a Pod that was created from a well-formed template and then changed
// according to a Diff.
func applied(template map[string]any, change *Change) map[string]any {
	out := runtime.DeepCopyJSON(template)
	metadata, _ := out["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		out["metadata"] = metadata
	}
	for field, values := range map[string]map[string]*string{"labels": change.Labels, "annotations": change.Annotations} {
		have, _ := metadata[field].(map[string]any)
		have = maps.Clone(have)
		if have == nil {
			have = map[string]any{}
		}
		for key, value := range values {
			if delete(have, key); value != nil {
				have[key] = *value
			}
		}
		metadata[field] = have
	}
	for _, c := range containersOf(out) {
		name := c["name"].(string)
		if image, ok := change.Images[name]; ok {
			c["image"] = image
		}
		if resources, ok := change.Resources[name]; ok {
			// A value that was decoded from JSON can be encoded again.
			c["resources"], _ = runtime.DefaultUnstructuredConverter.ToUnstructured(&resources)
		}
	}
	return out
}

// containersOf returns the containers of a template; nil for one that is no object.
func containersOf(template map[string]any) (out []map[string]any) {
	spec, _ := template["spec"].(map[string]any)
	for _, field := range []string{"containers", "initContainers"} {
		list, _ := spec[field].([]any)
		for _, item := range list {
			c, _ := item.(map[string]any)
			out = append(out, c)
		}
	}
	return out
}

func addsResources(change *Change) bool { return change != nil && len(change.Resources) > 0 }

// wellFormed reports whether the API server would accept the names in a Pod of the
// template: every container has its own, and labels are strings.
func wellFormed(template map[string]any) error {
	names := map[string]bool{}
	for _, c := range containersOf(template) {
		name, _ := c["name"].(string)
		if name == "" || names[name] {
			return fmt.Errorf("%s has no name of its own", name)
		}
		names[name] = true
	}
	metadata, _ := template["metadata"].(map[string]any)
	for _, field := range []string{"labels", "annotations"} {
		values, ok := metadata[field].(map[string]any)
		if metadata[field] != nil && !ok {
			return fmt.Errorf("%s is not a map", field)
		}
		for key, value := range values {
			if _, ok := value.(string); value != nil && !ok {
				return fmt.Errorf("%s[%s] is not a text", field, key)
			}
		}
	}
	return nil
}

// content returns the part of the template that a Diff compares.
func content(template map[string]any) any {
	out := runtime.DeepCopyJSON(template)
	if metadata, ok := out["metadata"].(map[string]any); ok {
		delete(metadata, "creationTimestamp")
	}
	return revision.Normalize(out)
}

// checkDiff checks that a possible change leads to the new template, that the opposite change leads
// back, and that equal templates need no change.
func checkDiff(from, to map[string]any) error {
	forth, err := Diff(from, to)
	back, errBack := Diff(to, from)
	// A request can be added in place, but not removed again.
	if (err == nil) != (errBack == nil) && !addsResources(forth) && !addsResources(back) {
		return fmt.Errorf("possible one way only: %w", errors.Join(err, errBack))
	}
	if none, err := Diff(from, from); err != nil || none.Drains() || len(none.Labels)+len(none.Annotations) > 0 {
		return errors.Join(fmt.Errorf("a template differs from itself: %v", none), err)
	}
	if err != nil || wellFormed(from) != nil || wellFormed(to) != nil {
		return nil
	}
	return checkThereAndBack(from, to, forth, back)
}

// checkThereAndBack applies forth, and then back unless it is nil, and checks the results.
func checkThereAndBack(from, to map[string]any, forth, back *Change) error {
	there := applied(from, forth)
	if diff := cmp.Diff(content(to), content(there)); diff != "" {
		return fmt.Errorf("the change does not lead to the new template: %s", diff)
	}
	if back == nil {
		return nil
	}
	if diff := cmp.Diff(content(from), content(applied(there, back))); diff != "" {
		return fmt.Errorf("the change back does not lead to the old template: %s", diff)
	}
	return nil
}

// FuzzChange compares two templates as people write them.
func FuzzChange(f *testing.F) {
	f.Add([]byte{}, []byte{1})
	for i := range 32 {
		a, b := make([]byte, 60), make([]byte, 60)
		for j := range a {
			a[j], b[j] = byte(i*31+j*j*7), byte(i*17+j*j*5)
		}
		f.Add(a, b)
		f.Add(a, slices.Concat(a[:20+i], b[20+i:])) // alike at first
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		from, to := anyTemplate(&checktest.Dice{Data: a}), anyTemplate(&checktest.Dice{Data: b})
		if err := checkDiff(from, to); err != nil {
			t.Errorf("%v\nfrom %v\nto %v", err, from, to)
		}
		again := []any{anyTemplate(&checktest.Dice{Data: a}), anyTemplate(&checktest.Dice{Data: b})}
		checktest.Same(t, "the templates, which are shared,", again, []any{from, to})
	})
}

// FuzzChangeRaw compares two templates of any JSON.
func FuzzChangeRaw(f *testing.F) {
	f.Add(`{}`, `{"spec":null}`)
	f.Add(`{"metadata":{"labels":{"a":"1","b":null}}}`, `{"metadata":{"labels":null,"annotations":{"a":1}}}`)
	f.Add(`{"spec":{"containers":[{"name":"main","image":"app:1"}]}}`, `{"spec":{"containers":[{"name":"main","image":"app:2"},null,[],1]}}`)
	f.Add(`{"spec":{"containers":[{"image":"app:1"},{"image":"app:1"}]}}`, `{"spec":{"containers":[{"image":"app:2"},{"name":"","image":""}]}}`)
	f.Add(`{"spec":{"initContainers":[{"name":"p","image":"a","restartPolicy":"Always"}]}}`, `{"spec":{"initContainers":[{"name":"p","image":"b"}]}}`)
	f.Add(`{"spec":{"containers":{"name":"x"}}}`, `{"metadata":{"labels":[1],"annotations":{"a":1}}}`)
	f.Add(`{"metadata":3,"spec":null}`, `{}`)
	for _, edited := range [][2]string{
		{base, strings.ReplaceAll(base, "app:1", "app:2")}, {base, `spec: {containers: [{name: main}, 1, null, {image: x}]}`},
		{sized, strings.ReplaceAll(sized, "100m", "200m")}, {sized, strings.ReplaceAll(sized, "{cpu: 50m}", "[1]")},
	} {
		a, errA := yaml.YAMLToJSON([]byte(edited[0]))
		b, errB := yaml.YAMLToJSON([]byte(edited[1]))
		checktest.NoError(f, errors.Join(errA, errB))
		f.Add(string(a), string(b))
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		from, errA := revision.Decode([]byte(a))
		to, errB := revision.Decode([]byte(b))
		if errA != nil || errB != nil {
			return
		}
		checktest.NoError(t, checkDiff(from, to))
		var refusal *Refusal
		if _, err := Diff(from, to); err != nil && !errors.As(err, &refusal) {
			t.Errorf("an error that is no refusal: %v", err)
		}
		var pod corev1.Pod
		if json.Unmarshal([]byte(a), &pod) == nil {
			Pending(&pod, to)
		}
	})
}
