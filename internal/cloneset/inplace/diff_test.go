// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/scenariotest"
)

func template(text string) map[string]any {
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		panic(err) // A template is misspelt.
	}
	return out
}

const base = `
metadata:
  labels: {app: web, tier: front}
  annotations: {note: one}
spec:
  terminationGracePeriodSeconds: 30
  initContainers:
  - {name: setup, image: "setup:1"}
  - {name: proxy, image: "proxy:1", restartPolicy: Always}
  containers:
  - name: main
    image: app:1
    env: [{name: A, value: "1"}]
    ports: [{containerPort: 80}]
  - {name: log, image: "log:1"}
`

// sized is a template whose containers ask for cpu and memory.
const sized = `
metadata: {labels: {app: web}}
spec:
  initContainers:
  - {name: setup, image: "setup:1", resources: {requests: {cpu: 10m}}}
  - {name: proxy, image: "proxy:1", restartPolicy: Always, resources: {requests: {cpu: 50m}}}
  containers:
  - name: main
    image: app:1
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 128Mi}}
  - {name: log, image: "log:1"}
`

// TestDiff checks the edits in testdata/diffs.txt: what is replaced in the text of a template,
// and what that changes in a Pod.
func TestDiff(t *testing.T) {
	scenariotest.Run(t, "testdata/diffs.txt", func(t *testing.T, lines []string) []string {
		var before string
		var edits []string
		for _, line := range lines {
			if name, ok := strings.CutPrefix(line, "Template "); ok {
				before = cmp.Or(map[string]string{"base": base, "sized": sized}[name], name)
				continue
			}
			from, to, _ := strings.Cut(strings.ReplaceAll(line, `\n`, "\n"), " → ")
			edits = append(edits, from, strings.TrimPrefix(to, "(nothing)"))
		}
		after := strings.NewReplacer(edits...).Replace(before)
		if len(edits) > 0 && after == before {
			t.Fatalf("nothing to replace in %q", edits)
		}
		return render(Diff(template(before), template(after)))
	})
}

// render lists what a change consists of, or why it is refused.
func render(change *Change, err error) []string {
	if err != nil {
		return []string{"refused: " + err.Error()}
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(change.Images)) {
		lines = append(lines, "image "+name+": "+change.Images[name])
	}
	for _, name := range slices.Sorted(maps.Keys(change.Resources)) {
		lines = append(lines, "resources "+name+": "+amounts(change.Resources[name]))
	}
	for _, kind := range []struct {
		name   string
		values map[string]string
	}{{"label ", text(change.Labels)}, {"annotation ", text(change.Annotations)}} {
		for _, key := range slices.Sorted(maps.Keys(kind.values)) {
			lines = append(lines, kind.name+key+": "+kind.values[key])
		}
	}
	if change.Unranked != "" {
		lines = append(lines, "unranked "+change.Unranked)
	}
	if change.Drains() {
		lines = append(lines, "drains")
	}
	if len(lines) == 0 {
		return []string{"nothing"}
	}
	return lines
}

func text(values map[string]*string) map[string]string {
	out := map[string]string{}
	for key, value := range values {
		out[key] = "(removed)"
		if value != nil {
			out[key] = *value
		}
	}
	return out
}

// TestDiffLeavesItsArguments: templates are shared, so a diff must not write.
func TestDiffLeavesItsArguments(t *testing.T) {
	from, to := template(base), template(strings.ReplaceAll(base, "app:1", "app:2"))
	before, _ := json.Marshal([]any{from, to})
	checktest.Must(Diff(from, to))(t)
	if after, _ := json.Marshal([]any{from, to}); string(before) != string(after) {
		t.Errorf("arguments changed:\n%s\n%s", before, after)
	}
}

// TestSameImage: a registry's port is not a tag.
func TestSameImage(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"nginx", "nginx:latest", true},
		{"nginx", "docker.io/library/nginx:latest", true},
		{"docker.io/nginx:1", "docker.io/library/nginx:1", true},
		{"index.docker.io/library/nginx:1", "nginx:1", true},
		{"team/app", "docker.io/team/app:latest", true},
		{"registry:5000/name", "registry:5000/name:latest", true},
		{"registry:5000/name", "registry:5000/name:5000", false},
		{"registry:5000/name:2", "registry:5000/name", false},
		{"localhost/name", "localhost/name:latest", true},
		{"localhost/name", "docker.io/localhost/name", false},
		{"name@sha256:abc", "name@sha256:abc", true},
		{"name@sha256:abc", "name:latest", false},
		{"name:1@sha256:abc", "docker.io/library/name:1@sha256:abc", true},
		{"nginx:1", "nginx:2", false},
		{"", "", true},
		{"", "nginx", false},
	} {
		checktest.Same(t, "SameImage of "+test.a+" and "+test.b, test.want, SameImage(test.a, test.b))
		checktest.Same(t, "SameImage of "+test.b+" and "+test.a, test.want, SameImage(test.b, test.a))
	}
}

// TestQOS: the class of a Pod.
func TestQOS(t *testing.T) {
	class := func(containers string) corev1.PodQOSClass {
		return qos(specOf(revision.Normalize(template(`spec: {containers: [` + containers + `]}`))))
	}
	classes := map[string]corev1.PodQOSClass{
		"{}":                              corev1.PodQOSBestEffort,
		"{requests: {cpu: 0}}":            corev1.PodQOSBestEffort,
		"{requests: {cpu: 1}}":            corev1.PodQOSBurstable,
		"{limits: {cpu: 1}}":              corev1.PodQOSBurstable,
		"{limits: {cpu: 1, memory: 1Gi}}": corev1.PodQOSGuaranteed,
		"{requests: {cpu: 1000m}, limits: {cpu: 1, memory: 1Gi}}":              corev1.PodQOSGuaranteed,
		"{requests: {cpu: 500m}, limits: {cpu: 1, memory: 1Gi}}":               corev1.PodQOSBurstable,
		"{requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}":     corev1.PodQOSGuaranteed,
		"{requests: {cpu: 1, memory: 1Gi}, limits: {memory: 1Gi}}":             corev1.PodQOSBurstable,
		"{requests: {ephemeral-storage: 1Gi}, limits: {ephemeral-storage: 1}}": corev1.PodQOSBestEffort,
	}
	for resources, want := range classes {
		checktest.Same(t, resources, want, class("{name: main, image: a, resources: "+resources+"}"))
	}
	checktest.Same(t, "one container without limits", corev1.PodQOSBurstable, class("{name: a, resources: {limits: {cpu: 1, memory: 1}}}, {name: b}"))
}
