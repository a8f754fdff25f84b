// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"
)

func template(t testing.TB, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
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

// edit returns the base template with replacements of its text.
func edit(t testing.TB, pairs ...string) map[string]any {
	t.Helper()
	text := strings.NewReplacer(pairs...).Replace(base)
	if text == base {
		t.Fatalf("nothing to replace in %q", pairs)
	}
	return template(t, text)
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

// TestDiffPossible: what can change in a running Pod.
func TestDiffPossible(t *testing.T) {
	for _, test := range []struct {
		name                        string
		to                          map[string]any
		images, labels, annotations map[string]string
		drains                      bool
	}{
		{"nothing", template(t, base), nil, nil, nil, false},
		{"one image", edit(t, "app:1", "app:2"), map[string]string{"main": "app:2"}, nil, nil, true},
		{"two images", edit(t, "app:1", "app:2", "log:1", "log:2"), map[string]string{"main": "app:2", "log": "log:2"}, nil, nil, true},
		{"sidecar image", edit(t, "proxy:1", "proxy:2"), map[string]string{"proxy": "proxy:2"}, nil, nil, true},
		{"label changed", edit(t, "front", "back"), nil, map[string]string{"tier": "back"}, nil, false},
		{"label removed", edit(t, ", tier: front", ""), nil, map[string]string{"tier": "(removed)"}, nil, false},
		{"annotation added", edit(t, "note: one", "note: one, more: two"), nil, nil, map[string]string{"more": "two"}, false},
		{"annotations removed", edit(t, "  annotations: {note: one}\n", ""), nil, nil, map[string]string{"note": "(removed)"}, false},
		{"all at once", edit(t, "app:1", "app:2", "front", "back", "one", "two"),
			map[string]string{"main": "app:2"}, map[string]string{"tier": "back"}, map[string]string{"note": "two"}, true},
		{"empty fields are no change", edit(t, "spec:", "spec:\n  volumes: []\n  securityContext: {}\n  nodeName: null"), nil, nil, nil, false},
		{"creationTimestamp is no change", edit(t, "metadata:", "metadata:\n  creationTimestamp: null"), nil, nil, nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			change, err := Diff(template(t, base), test.to)
			if err != nil {
				t.Fatal(err)
			}
			got, want := []map[string]string{change.Images, text(change.Labels), text(change.Annotations)}, []map[string]string{test.images, test.labels, test.annotations}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || change.Drains() != test.drains {
				t.Errorf("drains: %t; images, labels, annotations (-want +got):\n%s", change.Drains(), diff)
			}
		})
	}
}

// TestDiffRefused: a refusal names the first field that only a new Pod can have.
func TestDiffRefused(t *testing.T) {
	for _, test := range []struct {
		name  string
		to    map[string]any
		field string
	}{
		{"env", edit(t, `value: "1"`, `value: "2"`), "spec.template.spec.containers[main].env[A].value"},
		{"port", edit(t, "containerPort: 80", "containerPort: 81"), "spec.template.spec.containers[main].ports[0].containerPort"},
		{"image that was not there", edit(t, `image: "log:1"`, "tty: true"), "spec.template.spec.containers[log].image"},
		{"container added", edit(t, `- {name: log, image: "log:1"}`, `- {name: log, image: "log:1"}`+"\n  - {name: new, image: new}"),
			"spec.template.spec.containers"},
		{"container renamed", edit(t, "name: log", "name: logs"), "spec.template.spec.containers[logs].name"},
		{"init image", edit(t, "setup:1", "setup:2"), "spec.template.spec.initContainers[setup].image"},
		{"grace period", edit(t, "Seconds: 30", "Seconds: 31"), "spec.template.spec.terminationGracePeriodSeconds"},
		{"unknown field", edit(t, "spec:", "spec:\n  fromTheFuture: {deep: [1]}"), "spec.template.spec.fromTheFuture.deep"},
		{"metadata other than labels", edit(t, "metadata:", "metadata:\n  finalizers: [a/b]"), "spec.template.metadata.finalizers"},
	} {
		t.Run(test.name, func(t *testing.T) {
			refusedWith(t, template(t, base), test.to, test.field, "")
		})
	}
}

// TestDiffLeavesItsArguments: templates are shared, so a diff must not write.
func TestDiffLeavesItsArguments(t *testing.T) {
	from, to := template(t, base), edit(t, "app:1", "app:2")
	before, _ := json.Marshal([]any{from, to})
	if _, err := Diff(from, to); err != nil {
		t.Fatal(err)
	}
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
		if got := SameImage(test.a, test.b); got != test.want {
			t.Errorf("SameImage(%q, %q) = %v", test.a, test.b, got)
		}
		if got := SameImage(test.b, test.a); got != test.want {
			t.Errorf("SameImage(%q, %q) = %v, and the other way round", test.b, test.a, got)
		}
	}
}
