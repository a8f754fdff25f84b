// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
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

// reading is a template whose containers have labels and annotations in their environment.
const reading = `
metadata: {labels: {tier: front, zone: a}, annotations: {note: one}}
spec:
  initContainers:
  - {name: once, image: "o:1", env: [{name: TIER, valueFrom: {fieldRef: {fieldPath: "metadata.labels['tier']"}}}]}
  containers:
  - name: a
    image: a:1
    env:
    - {name: X, value: "1"}
    - {name: TIER, valueFrom: {fieldRef: {fieldPath: "metadata.labels['tier']"}}}
  - name: b
    image: b:1
    env:
    - {name: NOTE, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['note']"}}}
    - {name: TIER, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
`

// TestDiff checks the edits in testdata/diffs.txt: the text that is replaced in a template, and the
// changes that follow for a Pod.
func TestDiff(t *testing.T) {
	scenariotest.Run(t, "testdata/diffs.txt", func(t *testing.T, lines []string) []string {
		var before string
		var edits []string
		for _, line := range lines {
			if name, ok := strings.CutPrefix(line, "Template "); ok {
				before = cmp.Or(map[string]string{"base": base, "sized": sized, "reading": reading}[name], name)
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

// TestRereads: a container that has a changed label in its environment restarts with its image by another name.
func TestRereads(t *testing.T) {
	scenariotest.Table(t, "testdata/rereads.txt", func(_ *testing.T, test struct{ Runs, ID string }) string {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: test.Runs}}}}
		if test.ID != "" {
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ImageID: test.ID, ContainerID: "c1"}}
		}
		change, err := (&Change{Rereads: map[string]string{"main": "metadata.labels['tier']"}}).For(pod)
		if err != nil {
			return err.Error()
		}
		image := change.Images["main"]
		if image != "" && !Runs(pod, "main", image) {
			return "another image: " + image
		}
		return cmp.Or(image, "does not restart")
	})
}

// render lists what a change consists of, or why it is refused.
func render(change *Change, err error) []string {
	if err != nil {
		return []string{"refused: " + err.Error()}
	}
	lines := list.Map(slices.Sorted(maps.Keys(change.Images)), func(name string) string { return "image " + name + ": " + change.Images[name] })
	lines = append(lines, list.Map(slices.Sorted(maps.Keys(change.Resources)), func(name string) string {
		return "resources " + name + ": " + amounts(change.Resources[name])
	})...)
	for _, kind := range []struct {
		name   string
		values map[string]*string
	}{{"label ", change.Labels}, {"annotation ", change.Annotations}} {
		lines = append(lines, list.Map(slices.Sorted(maps.Keys(kind.values)), func(key string) string {
			return kind.name + key + ": " + ptr.Deref(kind.values[key], "(removed)")
		})...)
	}
	for _, name := range slices.Sorted(maps.Keys(change.Rereads)) {
		lines = append(lines, "restarts "+name+" for "+change.Rereads[name])
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

// TestSameImage: names are completed before they are compared. A registry's port is not a tag, and
// missing parts of a name are those of Docker Hub.
func TestSameImage(t *testing.T) {
	for image, want := range map[string]string{
		"":                            "",
		"nginx":                       "docker.io/library/nginx:latest",
		"nginx:1.30":                  "docker.io/library/nginx:1.30",
		"me/web:2":                    "docker.io/me/web:2",
		"docker.io/web:2":             "docker.io/library/web:2",
		"index.docker.io/me/web":      "docker.io/me/web:latest",
		"index.docker.io/library/web": "docker.io/library/web:latest",
		"localhost/web":               "localhost/web:latest",
		"registry.k8s.io/pause:3":     "registry.k8s.io/pause:3",
		"registry:5000/a/b":           "registry:5000/a/b:latest",
		"registry:5000/name:5000":     "registry:5000/name:5000",
		"reg.io:80/deep/er/web:2.1":   "reg.io:80/deep/er/web:2.1",
		"web@sha256:12":               "docker.io/library/web@sha256:12",
		"web:1@sha256:12":             "docker.io/library/web:1@sha256:12",
	} {
		checktest.Same(t, image, want, FullImage(image))
		checktest.Same(t, "it is the same image as "+want, true, SameImage(image, want) && SameImage(want, image))
	}
	checktest.Same(t, "another tag is the same image", false, SameImage("nginx:1", "nginx:2"))
}

// TestQOS: the QoS class of a Pod.
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
