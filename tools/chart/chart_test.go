// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	lua "github.com/yuin/gopher-lua"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	luajson "layeh.com/gopher-json"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files")

const root = "../.."

var chartFolder = filepath.Join(root, "charts", "usher")

// cases are the values that the chart is tested with, by file name.
func cases(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no values in testdata/values: %v", err)
	}
	all := map[string]map[string]any{}
	for _, file := range files {
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = read(t, file)
	}
	return all
}

func read(t *testing.T, file string) map[string]any {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return parse[map[string]any](t, string(content))
}

func parse[T any](t *testing.T, text string) (out T) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return out
}

func render(t *testing.T, values map[string]any) []Object {
	t.Helper()
	objects, err := Render(chartFolder, Release{Name: "usher", Namespace: "usher-system"}, values)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestLint(t *testing.T) {
	for name, values := range cases(t) {
		for _, message := range lint.RunAll(chartFolder, values, "usher-system").Messages {
			if message.Severity > support.InfoSev {
				t.Errorf("values %s: %s", name, message)
			}
		}
	}
}

// TestGolden covers the output for each set of values, without the CRDs' text. The
// tests on a real API server read the same files.
func TestGolden(t *testing.T) {
	for name, values := range cases(t) {
		t.Run(name, func(t *testing.T) {
			var text strings.Builder
			fmt.Fprintf(&text, "# Rendered with values/%s.yaml; go test -update writes it.\n", name)
			var others []Object
			for _, object := range render(t, values) {
				if object.Kind == crdKind {
					fmt.Fprintf(&text, "# CRD %s\n", metaOf(t, object).Name)
				} else {
					others = append(others, object)
				}
			}
			text.WriteString(Join(others))
			file := filepath.Join("testdata", "golden", name+".yaml")
			if *update {
				if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), text.String()); diff != "" {
				t.Errorf("the chart renders something else (go test -update, if it is right):\n%s", diff)
			}
		})
	}
}

func metaOf(t *testing.T, object Object) metav1.ObjectMeta {
	t.Helper()
	return parse[metav1.PartialObjectMetadata](t, object.Text).ObjectMeta
}

// TestValuesRefused: invalid values are refused with the field's name.
func TestValuesRefused(t *testing.T) {
	for _, test := range []struct{ values, want string }{
		{"replica: 3", "replica"},
		{"replicas: two", "replicas"},
		{"image: {digest: latest}", "digest"},
		{"image: {pullPolicy: Sometimes}", "pullPolicy"},
		{"halves: {clonesets: true}", "clonesets"},
		{"halves: {cloneset: false, registration: false}", "turn on cloneset, registration, or both"},
		{"log: {level: loud}", "level"},
		{"parallel: 0", "parallel"},
		{"extraArgs: [leader-elect]", "extraArgs"},
		{"metrics: {port: 70000}", "port"},
		{"serviceAccount: {create: false}", "serviceAccount.name"},
		{"serviceAccount: {name: mine}", "set serviceAccount.create to false"},
		{"halves: {registration: false}\nxds: {enabled: true}", "turn on halves.registration"},
		{"xds: {enabled: true, clientCA: true}", "set xds.tlsSecret"},
		{"metrics: {enabled: false}\nprometheusRule: {enabled: true}", "alerts need metrics.enabled"},
		{"metrics: {enabled: false}\ngrafana: {enabled: true}", "the dashboard needs metrics.enabled"},
		{"topologySpreadConstraints: [{maxSkew: 1}]", "topologySpreadConstraints"},
	} {
		_, err := Render(chartFolder, Release{Name: "usher", Namespace: "usher-system"}, parse[map[string]any](t, test.values))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.values, err, test.want)
		}
	}
}

// TestSchemaKnowsAllValues: a documented value is in the schema, since the defaults
// must match it; and the schema contains only documented values.
func TestSchemaKnowsAllValues(t *testing.T) {
	schema, values := read(t, filepath.Join(chartFolder, "values.schema.json")), read(t, filepath.Join(chartFolder, "values.yaml"))
	properties, _ := schema["properties"].(map[string]any)
	for key := range properties {
		if _, ok := values[key]; !ok && key != "global" {
			t.Errorf("values.yaml does not document %s", key)
		}
	}
}

// TestNames: every object is named after the release, so that two releases do not
// conflict.
func TestNames(t *testing.T) {
	for _, test := range []struct{ release, values, want string }{
		{"usher", "{}", "usher"},
		{"my-usher", "{}", "my-usher"},
		{"drain", "{}", "drain-usher"},
		{"drain", "fullnameOverride: other", "other"},
	} {
		objects, err := Render(chartFolder, Release{Name: test.release, Namespace: "x"}, parse[map[string]any](t, test.values))
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			name := metaOf(t, object).Name
			if object.Kind != crdKind && name != test.want && !strings.HasPrefix(name, test.want+"-") {
				t.Errorf("release %s: %s %s does not begin with %s", test.release, object.Kind, name, test.want)
			}
		}
	}
}

// TestCRDsAreKept: uninstalling keeps the CRDs.
func TestCRDsAreKept(t *testing.T) {
	var names []string
	for _, object := range render(t, nil) {
		if object.Kind != crdKind {
			continue
		}
		meta := metaOf(t, object)
		names = append(names, meta.Name)
		if meta.Annotations["helm.sh/resource-policy"] != "keep" || meta.Labels["usher.dev/protected"] != "true" ||
			!strings.Contains(meta.Annotations["argocd.argoproj.io/sync-options"], "Delete=false") {
			t.Errorf("CRD %s: labels %v, annotations %v", meta.Name, meta.Labels, meta.Annotations)
		}
	}
	if want := []string{"clonesets.apps.kruise.io", "registrations.usher.dev", "registries.usher.dev"}; !slices.Equal(names, want) {
		t.Errorf("CRDs %v, want %v", names, want)
	}
}

// checks are the Argo CD health checks in docs/install.md, by key.
func checks(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n  # argocd-cm\n(.*?)\n  ```").FindSubmatch(text)
	if block == nil {
		t.Fatal("docs/install.md has no block for argocd-cm")
	}
	found := map[string]string{}
	if err := yaml.Unmarshal(block[1], &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// health runs a check as Argo CD does, with the same decoder: the object is the table obj.
func health(t *testing.T, script, object string) (status, message string) {
	t.Helper()
	state := lua.NewState()
	defer state.Close()
	content, err := yaml.YAMLToJSON([]byte(object))
	if err != nil {
		t.Fatal(err)
	}
	obj, err := luajson.Decode(state, content)
	if err != nil {
		t.Fatal(err)
	}
	state.SetGlobal("obj", obj)
	if err := state.DoString(script); err != nil {
		t.Fatal(err)
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the check returns %s", state.Get(-1))
	}
	return table.RawGetString("status").String(), table.RawGetString("message").String()
}

func TestHealthChecks(t *testing.T) {
	const (
		set          = "resource.customizations.health.apps.kruise.io_CloneSet"
		registration = "resource.customizations.health.usher.dev_Registration"
	)
	done := "metadata: {generation: 2}\nspec: {replicas: 3, updateStrategy: {partition: 0}}\n"
	for name, test := range map[string]struct{ check, object, want string }{
		"nothing seen yet": {set, "metadata: {generation: 1}\nspec: {}", "Progressing"},
		"an older one seen": {set, done + "status: {observedGeneration: 1, replicas: 3, availableReplicas: 3, updatedAvailableReplicas: 3, expectedUpdatedReplicas: 3}",
			"Progressing"},
		"all there": {set, done + "status: {observedGeneration: 2, replicas: 3, availableReplicas: 3, updatedAvailableReplicas: 3, expectedUpdatedReplicas: 3}",
			"Healthy"},
		"one is updated": {set, done + "status: {observedGeneration: 2, replicas: 3, availableReplicas: 2, updatedAvailableReplicas: 1, expectedUpdatedReplicas: 3}",
			"Progressing"},
		"a partition is reached": {set, done + "status: {observedGeneration: 2, replicas: 3, availableReplicas: 3, updatedAvailableReplicas: 1, expectedUpdatedReplicas: 1}",
			"Healthy"},
		"one too many": {set, done + "status: {observedGeneration: 2, replicas: 4, availableReplicas: 4, updatedAvailableReplicas: 3, expectedUpdatedReplicas: 3}",
			"Progressing"},
		"paused": {set, "metadata: {generation: 2}\nspec: {updateStrategy: {paused: true}}\nstatus: {observedGeneration: 2}", "Suspended"},
		"too late": {set, done + "status: {observedGeneration: 2, conditions: [{type: Progressing, status: 'False', reason: ProgressDeadlineExceeded, message: m}]}",
			"Degraded"},
		"a quota": {set, done + "status: {observedGeneration: 2, conditions: [{type: FailedScale, status: 'True', message: m}]}", "Degraded"},
		"a quota that was": {set, done + "status: {observedGeneration: 2, replicas: 3, availableReplicas: 3, updatedAvailableReplicas: 3, expectedUpdatedReplicas: 3, conditions: [{type: FailedScale, status: 'False', message: m}]}",
			"Healthy"},
		"scaled to nothing":  {set, "metadata: {generation: 2}\nspec: {replicas: 0}\nstatus: {observedGeneration: 2}", "Healthy"},
		"a new Registration": {registration, "metadata: {generation: 1}", "Progressing"},
		"registries answer":  {registration, "metadata: {generation: 1}\nstatus: {observedGeneration: 1, conditions: [{type: Ready, status: 'True', message: m}]}", "Healthy"},
		"a registry is away": {registration, "metadata: {generation: 1}\nstatus: {observedGeneration: 1, conditions: [{type: Ready, status: 'False', message: m}]}", "Degraded"},
	} {
		t.Run(name, func(t *testing.T) {
			status, message := health(t, checks(t)[test.check], test.object)
			if status != test.want || message == "" || message == "nil" {
				t.Errorf("%s, %q; want %s", status, message, test.want)
			}
		})
	}
}
