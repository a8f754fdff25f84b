// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

const (
	weightPath = "metadata.annotations['example.com/weight']"
	trackPath  = "metadata.labels['track']"
)

func podSource(path string) usherv1alpha1.PodSource {
	return usherv1alpha1.PodSource{FieldRef: usherv1alpha1.FieldRef{FieldPath: path}}
}

func weightFrom() *usherv1alpha1.PodSource {
	s := podSource(weightPath)
	return &s
}

func metadataFrom(key, path string) []usherv1alpha1.MetadataSource {
	return []usherv1alpha1.MetadataSource{{Key: key, FieldRef: usherv1alpha1.FieldRef{FieldPath: path}}}
}

// annotate puts a value where weightPath reads it.
func (b *podBuilder) annotate(value string) *podBuilder {
	b.pod.Annotations = map[string]string{"example.com/weight": value}
	return b
}

func TestWeightFrom(t *testing.T) {
	for _, c := range []struct {
		given string
		want  int32
		bad   string // What the complaint mentions; empty for none.
	}{
		{"30", 30, ""}, {"1", 1, ""}, {"65535", 65535, ""}, {"", 10, ""},
		{"abc", 10, `"abc"`}, {"0", 10, "from 1 to 65535"}, {"-1", 10, `"-1"`}, {"65536", 10, "from 1"},
		{"99999999999999999999", 10, "from 1"}, {"1.5", 10, `"1.5"`}, {"1\n", 10, "control characters"},
		{strings.Repeat("1", maxValue+1), 10, "513 bytes"},
	} {
		f := newFixture()
		pod := f.add("a", appsv1alpha1.StateNormal).annotate(c.given).pod
		v := valuesOf(&usherv1alpha1.Instance{Weight: 10, WeightFrom: weightFrom()}, pod)
		if v.weight != c.want || (len(v.bad) > 0) != (c.bad != "") {
			t.Errorf("%.20q became %d with %v, want %d", c.given, v.weight, v.bad, c.want)
		}
		if said := strings.Join(v.bad, ""); !strings.Contains(said, c.bad) || c.bad != "" && !strings.Contains(said, weightPath) {
			t.Errorf("%.20q: the complaint %q does not mention %q and the field", c.given, said, c.bad)
		}
	}
}

func TestFieldsOfPods(t *testing.T) {
	pod := newFixture().add("a", appsv1alpha1.StateNormal).label("track", "canary").annotate("30").pod
	pod.Spec.NodeName, pod.Spec.ServiceAccountName, pod.Status.HostIP = "node-1", "web", "192.0.2.9"
	for path, want := range map[string]string{
		"metadata.name": "a", "metadata.namespace": namespace, "metadata.uid": "uid-a-0000", trackPath: "canary",
		weightPath: "30", "spec.nodeName": "node-1", "spec.serviceAccountName": "web", "status.podIP": "10.0.0.1",
		"status.hostIP": "192.0.2.9", "metadata.labels['none']": "", "metadata.finalizers['x']": "", "spec.hostname": "",
	} {
		if have, ok := podField(pod, path); have != want || ok != (want != "") {
			t.Errorf("%s is %q, %t; want %q", path, have, ok, want)
		}
	}
}

func TestTagsAndMetadataFrom(t *testing.T) {
	static := usherv1alpha1.Instance{Metadata: map[string]string{"zone": "a", "version": "unknown"}}
	for _, c := range []struct {
		name  string
		given usherv1alpha1.Instance
		want  map[string]string
	}{
		{"nothing of the Pod", static, map[string]string{"zone": "a", "version": "unknown"}},
		{"a label", usherv1alpha1.Instance{MetadataFrom: metadataFrom("track", trackPath)}, map[string]string{"track": "canary"}},
		{"a label that is not there", usherv1alpha1.Instance{Metadata: static.Metadata,
			MetadataFrom: metadataFrom("version", "metadata.labels['version']")}, static.Metadata},
		{"a label over a default", usherv1alpha1.Instance{Metadata: static.Metadata, MetadataFrom: metadataFrom("version", trackPath)},
			map[string]string{"zone": "a", "version": "canary"}},
		{"tags, sorted and once", usherv1alpha1.Instance{Tags: []string{"v2", "canary"},
			TagsFrom: []usherv1alpha1.PodSource{podSource(trackPath), podSource(weightPath), podSource("metadata.labels['none']")}},
			map[string]string{metaTags: "a,b,canary,v2"}},
	} {
		pod := newFixture().add("a", appsv1alpha1.StateNormal).label("track", "canary").annotate("b, a,,b").pod
		v := valuesOf(&c.given, pod)
		if diff := cmp.Diff(c.want, v.metadata); diff != "" || len(v.bad) > 0 {
			t.Errorf("%s: %v (-want +have):\n%s", c.name, v.bad, diff)
		}
	}
	if static.Metadata["version"] != "unknown" {
		t.Error("the Registration itself was changed")
	}
}

// TestServiceMatters: the kubelet's answer to the gate makes a pass look again.
func TestServiceMatters(t *testing.T) {
	f := newFixture()
	b := f.add("a", "")
	b.gate("on")
	before := b.condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse).pod.DeepCopy()
	if b.gate("off"); !Matters(before, b.pod) {
		t.Error("the kubelet has answered, and nobody looks")
	}
}
