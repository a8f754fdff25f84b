// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// TestConversions: each scenario is a CloneSet as YAML in one line, below it the same in the other
// version, and what is lost.
func TestConversions(t *testing.T) {
	scenariotest.Run(t, "testdata/conversions.txt", func(t *testing.T, lines []string) []string {
		from := strings.TrimPrefix(lines[0], "from ")
		version, document, _ := strings.Cut(from, ": ")
		object := map[string]any{"kind": "CloneSet", "apiVersion": "apps.kruise.io/" + version}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		to := Beta
		if version == "v1beta1" {
			to = Alpha
		}
		out, losses, err := CloneSet(object, to)
		if err != nil {
			return []string{"error: " + err.Error()}
		}
		if out["apiVersion"] != to {
			t.Errorf("apiVersion is %v", out["apiVersion"])
		}
		delete(out, "kind")
		delete(out, "apiVersion")
		data, err := json.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		return append([]string{string(data)}, losses...)
	})
}

// draw draws values for a random object.
type draw struct{ *rand.Rand }

func (d draw) maybe(in map[string]any, name string, values ...any) {
	if d.IntN(2) == 0 {
		in[name] = values[d.IntN(len(values))]
	}
}

// common draws the fields that have the same meaning in both versions, under the update strategy and
// under scaleStrategy.
func (d draw) common() (update, scale, metadata, spec map[string]any) {
	update, scale = map[string]any{}, map[string]any{}
	d.maybe(update, "partition", int64(0), int64(3), "20%")
	d.maybe(update, "maxUnavailable", int64(1), "20%")
	d.maybe(update, "maxSurge", int64(0), int64(2), "30%")
	d.maybe(update, "paused", true, false)
	d.maybe(update, "priorityStrategy", map[string]any{"orderPriority": []any{map[string]any{"orderedKey": "order"}}})
	d.maybe(update, "scatterStrategy", []any{map[string]any{"key": "a", "value": "b"}})
	d.maybe(update, "inPlaceUpdateStrategy", map[string]any{"gracePeriodSeconds": int64(d.IntN(30))})
	d.maybe(scale, "podsToDelete", []any{"web-a"})
	d.maybe(scale, "maxUnavailable", int64(1), "50%")
	annotations, labels := map[string]any{}, map[string]any{"app": "web"}
	d.maybe(annotations, "note", "x")
	d.maybe(annotations, lastApplied, "{}")
	d.maybe(annotations, apps.AnnotationPullParallelism, "5", "20%", "x", "-1")
	d.maybe(annotations, apps.AnnotationPullTimeout, "600", "5%")
	d.maybe(annotations, apps.AnnotationPullMinUpdatedReady, "1", "x")
	d.maybe(labels, apps.LabelScalingExcludePreparingDelete, "true", "false")
	metadata = map[string]any{"name": "web", "annotations": annotations, "labels": labels}
	spec = map[string]any{
		"selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
		"template": map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": "app:1", "aNewField": int64(1)}}},
		},
	}
	d.maybe(spec, "replicas", int64(d.IntN(9)))
	d.maybe(spec, "minReadySeconds", int64(10))
	d.maybe(spec, "lifecycle", map[string]any{"preDelete": map[string]any{"finalizersHandler": []any{"a/b"}, "markPodNotReady": true}})
	d.maybe(spec, "volumeClaimTemplates", []any{map[string]any{"metadata": map[string]any{"name": "data"}}})
	d.maybe(spec, "revisionHistoryLimit", int64(3))
	return update, scale, metadata, spec
}

func (d draw) alpha() map[string]any {
	update, scale, metadata, spec := d.common()
	d.maybe(update, "type", "", "ReCreate", "InPlaceIfPossible", "InPlaceOnly", "OnDelete")
	d.maybe(scale, "disablePVCReuse", true, false)
	put(spec, fieldUpdate, update)
	put(spec, fieldScale, scale)
	return map[string]any{"apiVersion": Alpha, "kind": "CloneSet", "metadata": metadata, "spec": spec}
}

func (d draw) beta() map[string]any {
	under, scale, metadata, spec := d.common()
	d.maybe(under, "podUpdatePolicy", "ReCreate", "InPlaceIfPossible", "InPlaceOnly")
	if d.IntN(2) == 0 {
		fields, grace := map[string]any{}, map[string]any{}
		d.maybe(fields, "parallelism", int64(5), "20%")
		d.maybe(fields, "timeoutSeconds", int64(60))
		d.maybe(fields, "minUpdatedReadyPods", int64(2))
		put(grace, fieldDownload, fields)
		put(under, fieldInPlace, grace)
	}
	d.maybe(scale, "enablePVCReuse", true, false)
	d.maybe(scale, "excludePreparingDelete", true, false)
	update := map[string]any{}
	d.maybe(update, "type", "RollingUpdate", "OnDelete")
	put(update, fieldRolling, under)
	put(spec, fieldUpdate, update)
	put(spec, fieldScale, scale)
	return map[string]any{"apiVersion": Beta, "kind": "CloneSet", "metadata": metadata, "spec": spec}
}

// inside returns an object in an object, which it makes if it is absent.
func inside(in map[string]any, names ...string) map[string]any {
	for _, name := range names {
		next, _ := in[name].(map[string]any)
		if next == nil {
			next = map[string]any{}
			in[name] = next
		}
		in = next
	}
	return in
}

// pruned returns an object without empty objects.
func pruned(object map[string]any) map[string]any {
	for name, value := range object {
		if member, ok := value.(map[string]any); ok {
			put(object, name, pruned(member))
		}
	}
	return object
}

// TestThereAndBack: 10,000 random CloneSets of each version are the same after both conversions, but for
// defaults that are now explicit, and for what the conversions have said is lost.
func TestThereAndBack(t *testing.T) {
	d := draw{rand.New(rand.NewPCG(1, 2))}
	for n := range 10000 {
		checkAlpha(t, n, d.alpha())
		checkBeta(t, n, d.beta())
		if t.Failed() {
			return
		}
	}
}

func checkAlpha(t *testing.T, n int, object map[string]any) {
	t.Helper()
	_, lost, back := bothWays(t, object, Beta, Alpha)
	want := deepCopy(object).(map[string]any)
	update, scale, annotations := inside(want, "spec", fieldUpdate), inside(want, "spec", fieldScale), inside(want, "metadata", "annotations")
	if update["type"] == nil || update["type"] == "" {
		update["type"] = "ReCreate"
	}
	if scale["disablePVCReuse"] == false {
		delete(scale, "disablePVCReuse")
	}
	expected := 0
	for _, d := range download {
		if text, there := annotations[d.annotation]; there && !isRead(text, d.percent) {
			expected++
		}
	}
	expected += forgetApplied(annotations)
	compare(t, n, pruned(want), back)
	if len(lost) != expected {
		t.Errorf("set %d: %d losses, want %d: %q", n, len(lost), expected, lost)
	}
	if was, is := specOf(t, want), specOf(t, back); !reflect.DeepEqual(was, is) {
		t.Errorf("set %d: the planner reads another spec:\n%s", n, cmp.Diff(fmt.Sprintf("%+v", was), fmt.Sprintf("%+v", is)))
	}
}

func checkBeta(t *testing.T, n int, object map[string]any) {
	t.Helper()
	alpha, lost, back := bothWays(t, object, Alpha, Beta)
	specOf(t, alpha)
	want := deepCopy(object).(map[string]any)
	update, scale := inside(want, "spec", fieldUpdate), inside(want, "spec", fieldScale)
	annotations, labels := inside(want, "metadata", "annotations"), inside(want, "metadata", "labels")
	expected := loseOf(update) + loseLabel(labels, scale) + loseAnnotations(annotations, inside(update, fieldRolling, fieldInPlace, fieldDownload)) +
		forgetApplied(annotations)
	compare(t, n, pruned(want), back)
	if len(lost) != expected {
		t.Errorf("set %d: %d losses, want %d: %q", n, len(lost), expected, lost)
	}
}

// loseOf makes the defaults of an update strategy explicit, and removes what a conversion to v1alpha1
// loses of it. It and those below return how many losses that is.
func loseOf(update map[string]any) int {
	under := inside(update, fieldRolling)
	_, there := under[fieldPolicy]
	if update["type"] == "OnDelete" {
		delete(under, fieldPolicy)
		return one(there)
	}
	update["type"] = "RollingUpdate"
	if !there {
		under[fieldPolicy] = "ReCreate"
	}
	return 0
}

// loseLabel is about the label that v1beta1 does not read, and the fields whose default is false.
func loseLabel(labels, scale map[string]any) int {
	labelled := labels[apps.LabelScalingExcludePreparingDelete] == "true"
	excluded := scale[fieldExclude] == true
	for _, name := range []string{fieldReuse, fieldExclude} {
		if scale[name] == false {
			delete(scale, name)
		}
	}
	if labelled || excluded {
		delete(labels, apps.LabelScalingExcludePreparingDelete)
	}
	return one(labelled && !excluded)
}

// loseAnnotations is about annotations that v1beta1 does not read.
func loseAnnotations(annotations, fields map[string]any) (lost int) {
	for _, d := range download {
		text, there := annotations[d.annotation]
		if _, field := fields[d.field]; there && (isRead(text, d.percent) || field) {
			delete(annotations, d.annotation)
			lost++
		}
	}
	return lost
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// bothWays converts an object there and back. The way back loses nothing that the way there has not lost.
func bothWays(t *testing.T, object map[string]any, to, from string) (there map[string]any, lost []string, back map[string]any) {
	t.Helper()
	before := deepCopy(object)
	there, lost, err := CloneSet(object, to)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(before, object) {
		t.Fatal("the argument has changed")
	}
	back, _, err = CloneSet(there, from)
	if err != nil {
		t.Fatal(err)
	}
	return there, lost, back
}

func isRead(text any, percent bool) bool {
	_, ok := read(fmt.Sprint(text), percent)
	return ok
}

func forgetApplied(annotations map[string]any) int {
	if _, there := annotations[lastApplied]; !there {
		return 0
	}
	delete(annotations, lastApplied)
	return 1
}

func compare(t *testing.T, n int, want, got map[string]any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("set %d is another one (-want +got):\n%s", n, diff)
	}
}

// specOf reads a CloneSet of v1alpha1 as the planner does.
func specOf(t *testing.T, object map[string]any) plan.Spec {
	t.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var set apps.CloneSet
	if err := json.Unmarshal(data, &set); err != nil {
		t.Fatal(err)
	}
	spec, err := plan.SpecOf(&set)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}
