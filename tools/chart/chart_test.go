// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	luajson "layeh.com/gopher-json"
	"sigs.k8s.io/yaml"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
)

var update = flag.Bool("update", false, "write the golden files")

const root = "../.."

var chartFolder = filepath.Join(root, "charts", "usher")

// cases returns the values that the chart is tested with, by file name.
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
	return parse[map[string]any](t, string(checktest.Must(os.ReadFile(file))(t)))
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
	return checktest.Must(Render(chartFolder, Release{Name: "usher", Namespace: "usher-system"}, values))(t)
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

// TestGolden covers the output for each set of values; of the CRDs, which an uninstall keeps,
// the metadata. The tests on a real API server read the same files.
func TestGolden(t *testing.T) {
	for name, values := range cases(t) {
		t.Run(name, func(t *testing.T) {
			var text strings.Builder
			fmt.Fprintf(&text, "# Rendered with values/%s.yaml; go test -update writes it.\n", name)
			var others []Object
			for _, object := range render(t, values) {
				if object.Kind == crdKind {
					meta := metaOf(t, object)
					fmt.Fprintf(&text, "# CRD %s, labels %v, annotations %v\n", meta.Name, meta.Labels, meta.Annotations)
				} else {
					others = append(others, object)
				}
			}
			text.WriteString(Join(others))
			file := filepath.Join("testdata", "golden", name+".yaml")
			if *update {
				checktest.NoError(t, os.WriteFile(file, []byte(text.String()), 0o600))
			}
			want := checktest.Must(os.ReadFile(file))(t)
			checktest.Same(t, "what the chart renders (go test -update, if it is right)", string(want), text.String())
		})
	}
}

// TestNotes: the notes after an installation say how to look at Usher, and have a first Registration
// that the API server accepts. Their lines fit a terminal.
func TestNotes(t *testing.T) {
	var text strings.Builder
	for _, name := range []string{"default", "beside-openkruise", "cloneset"} {
		release := Release{Name: "usher", Namespace: "usher-system"}
		files := checktest.Must(renderFiles(chartFolder, release, cases(t)[name]))(t)
		fmt.Fprintf(&text, "# With values/%s.yaml.\n%s\n", name, strings.TrimSpace(files["usher/templates/NOTES.txt"]))
	}
	file := filepath.Join("testdata", "notes.txt")
	if *update {
		checktest.NoError(t, os.WriteFile(file, []byte(text.String()), 0o600))
	}
	checktest.Same(t, "the notes (go test -update, if they are right)", string(checktest.Must(os.ReadFile(file))(t)), text.String())
	for line := range strings.Lines(text.String()) {
		if len(line) > 110 {
			t.Errorf("too long: %s", line)
		}
	}
	example := regexp.MustCompile("(?s)<<'END'\n(.*?)\nEND\n").FindStringSubmatch(text.String())
	var registration usherv1alpha1.Registration
	checktest.NoError(t, yaml.UnmarshalStrict([]byte(example[1]), &registration))
	checktest.Same(t, "its Service", "cart", registration.Spec.Instance.Service)
}

func metaOf(t *testing.T, object Object) metav1.ObjectMeta {
	t.Helper()
	return parse[metav1.PartialObjectMetadata](t, object.Text).ObjectMeta
}

// TestValuesRefused: the values of testdata/refused.yaml are refused with the field's name.
func TestValuesRefused(t *testing.T) {
	text := checktest.Must(os.ReadFile("testdata/refused.yaml"))(t)
	for _, row := range parse[[]struct {
		Values map[string]any
		Says   string
	}](t, string(text)) {
		_, err := Render(chartFolder, Release{Name: "usher", Namespace: "usher-system"}, row.Values)
		if err == nil || !strings.Contains(err.Error(), row.Says) {
			t.Errorf("%v: %v, want %q", row.Values, err, row.Says)
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
		{"drain", "nameOverride: other", "drain-other"},
		{"other", "nameOverride: other", "other"},
	} {
		objects := checktest.Must(Render(chartFolder, Release{Name: test.release, Namespace: "x"}, parse[map[string]any](t, test.values)))(t)
		for _, object := range objects {
			name := metaOf(t, object).Name
			if object.Kind != crdKind && name != test.want && !strings.HasPrefix(name, test.want+"-") {
				t.Errorf("release %s: %s %s does not begin with %s", test.release, object.Kind, name, test.want)
			}
		}
	}
}

// TestSelectorsStay: no value changes the selector of a Deployment, a Service, a budget or a policy,
// since selectors cannot change; extra labels are on everything else. Selectors depend only on the
// number of parts.
func TestSelectorsStay(t *testing.T) {
	selectors := func(values string) map[string]string {
		found := map[string]string{}
		for _, object := range render(t, parse[map[string]any](t, values)) {
			of := parse[struct {
				Spec struct{ Selector, PodSelector any }
			}](t, object.Text)
			found[object.Kind+" "+metaOf(t, object).Name] = string(checktest.Must(json.Marshal(of))(t))
		}
		return found
	}
	plain := selectors("separate: true")
	checktest.Same(t, "what is selected", plain, selectors(
		"{separate: true, commonLabels: {team: a}, podLabels: {team: b}, podAnnotations: {c: d}, nameOverride: usher, hostNetwork: true}"))
	for _, object := range render(t, parse[map[string]any](t, "commonLabels: {team: a}")) {
		if metaOf(t, object).Labels["team"] != "a" {
			t.Errorf("%s %s lacks the label", object.Kind, metaOf(t, object).Name)
		}
	}
}

// TestRestricted: with the default values, the Pod Security standard restricted admits each Pod.
func TestRestricted(t *testing.T) {
	type context struct {
		RunAsNonRoot, AllowPrivilegeEscalation, ReadOnlyRootFilesystem *bool
		SeccompProfile                                                 struct{ Type string }
		Capabilities                                                   struct{ Drop, Add []string }
	}
	deployments := 0
	for _, object := range render(t, parse[map[string]any](t, "separate: true")) {
		if object.Kind != "Deployment" {
			continue
		}
		deployments++
		pod := parse[struct {
			Spec struct {
				Template struct {
					Spec struct {
						HostNetwork     bool
						SecurityContext context
						Containers      []struct{ SecurityContext context }
					}
				}
			}
		}](t, object.Text).Spec.Template.Spec
		c := pod.Containers[0].SecurityContext
		if pod.HostNetwork || !*pod.SecurityContext.RunAsNonRoot || pod.SecurityContext.SeccompProfile.Type != "RuntimeDefault" ||
			*c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || fmt.Sprint(c.Capabilities) != "{[ALL] []}" {
			t.Errorf("%s has %+v", metaOf(t, object).Name, pod)
		}
	}
	checktest.Same(t, "Deployments", 4, deployments)
}

// TestNoWarnings: API servers print no warning about a CRD, as they do about lists that are sets of
// objects.
func TestNoWarnings(t *testing.T) {
	for _, object := range render(t, nil) {
		if object.Kind == crdKind {
			for _, where := range setsOfObjects(parse[map[string]any](t, object.Text), metaOf(t, object).Name) {
				t.Errorf("%s is a set of objects: make it a map with keys", where)
			}
		}
	}
}

// setsOfObjects finds schemas of lists of the type set whose items are no scalars.
func setsOfObjects(node any, at string) (found []string) {
	switch node := node.(type) {
	case []any:
		for i, item := range node {
			found = append(found, setsOfObjects(item, fmt.Sprint(at, "[", i, "]"))...)
		}
	case map[string]any:
		items, _ := node["items"].(map[string]any)
		if node["x-kubernetes-list-type"] == "set" && (items["type"] == "object" || items["type"] == "array") {
			found = append(found, at)
		}
		for name, value := range node {
			found = append(found, setsOfObjects(value, at+"."+name)...)
		}
	}
	return found
}

// checks returns the Argo CD health checks in docs/install.md, by key.
func checks(t *testing.T) map[string]string {
	t.Helper()
	text := checktest.Must(os.ReadFile(filepath.Join(root, "docs", "install.md")))(t)
	block := regexp.MustCompile("(?s)```yaml\n  # argocd-cm\n(.*?)\n  ```").FindSubmatch(text)
	if block == nil {
		t.Fatal("docs/install.md has no block for argocd-cm")
	}
	found := map[string]string{}
	checktest.NoError(t, yaml.Unmarshal(block[1], &found))
	return found
}

// health runs a check as Argo CD does, with the same decoder: the object is the table obj.
func health(t *testing.T, script string, object []byte) (status, message string) {
	t.Helper()
	state := lua.NewState()
	defer state.Close()
	obj := checktest.Must(luajson.Decode(state, object))(t)
	state.SetGlobal("obj", obj)
	checktest.NoError(t, state.DoString(script))
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the check returns %s", state.Get(-1))
	}
	return table.RawGetString("status").String(), table.RawGetString("message").String()
}

// TestHealthChecks judges the objects of testdata/health.yaml.
func TestHealthChecks(t *testing.T) {
	rows := parse[[]struct {
		Name, Kind, Want string
		Object           map[string]any
	}](t, string(checktest.Must(os.ReadFile("testdata/health.yaml"))(t)))
	if len(rows) < 14 {
		t.Errorf("%d rows", len(rows))
	}
	for _, row := range rows {
		t.Run(row.Name, func(t *testing.T) {
			status, message := health(t, checks(t)["resource.customizations.health."+row.Kind], checktest.Must(json.Marshal(row.Object))(t))
			if status != row.Want || message == "" || message == "nil" {
				t.Errorf("%s, %q; want %s", status, message, row.Want)
			}
		})
	}
}
