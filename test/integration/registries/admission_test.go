// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/integration/scene"
)

// TestAdmission creates valid and invalid Registries and Registrations: the rows of
// testdata/registries.yaml and testdata/registrations.yaml.
func TestAdmission(t *testing.T) {
	for file, base := range map[string]string{
		"registries.yaml": `{apiVersion: usher.dev/v1alpha1, kind: Registry, metadata: {generateName: admission-}, spec: {}}`,
		"registrations.yaml": `{apiVersion: usher.dev/v1alpha1, kind: Registration, metadata: {namespace: default, generateName: admission-},
			spec: {selector: {matchLabels: {app: web}}, registries: [discovery], instance: {service: web, port: 8080}}}`,
	} {
		text := checktest.Must(os.ReadFile(filepath.Join("testdata", file)))(t)
		var rows []struct {
			Name, Refusal string
			Set           map[string]any
		}
		checktest.NoError(t, yaml.UnmarshalStrict(text, &rows))
		for _, row := range rows {
			patch := checktest.Must(yaml.Marshal(map[string]any{"spec": row.Set}))(t)
			object := checktest.Must(scene.Parse(base, string(patch)))(t)
			err := shared.Create(t.Context(), object, client.DryRunAll)
			// Kubernetes 1.33 says of each object that it is one.
			said := strings.ReplaceAll(fmt.Sprint(err), `Invalid value: "object": `, "Invalid value: ")
			if (err == nil) != (row.Refusal == "") || !strings.Contains(said, row.Refusal) {
				t.Errorf("%s, %s: %v, want an error about %q", file, row.Name, err, row.Refusal)
			}
		}
	}
}

// TestRegistrantStays: registeredBy cannot change, either way; other fields can.
func TestRegistrantStays(t *testing.T) {
	for from, to := range map[string]string{"Usher": "Application", "Application": "Usher"} {
		object := checktest.Must(scene.Parse(fmt.Sprintf(`{apiVersion: usher.dev/v1alpha1, kind: Registration,
			metadata: {namespace: default, generateName: registrant-}, spec: {selector: {matchLabels: {app: nobody}}, registries: [nowhere],
			instance: {service: web, port: 8080, registeredBy: %s}}}`, from)))(t)
		checktest.NoError(t, shared.Create(t.Context(), object))
		t.Cleanup(func() { checktest.NoError(t, shared.Delete(context.WithoutCancel(t.Context()), object)) })
		change := func(fields string) error {
			return shared.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"instance":{`+fields+`}}}`)))
		}
		checktest.NoError(t, change(`"port":8081`))
		err := change(fmt.Sprintf(`"registeredBy":%q`, to))
		if !strings.Contains(fmt.Sprint(err), "registeredBy cannot change: delete the Registration") {
			t.Errorf("from %s to %s: %v", from, to, err)
		}
	}
}

// TestRegistryInUseStays: a Registry that Registrations use keeps its place, where their entries would stay. Another
// namespace of Cloud Map is another root, from which Usher moves them, and of target groups that somebody else writes
// nothing would stay.
func TestRegistryInUseStays(t *testing.T) {
	const group = `[{"namespace":"demo","service":"web","arns":["arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/web/1"]}]`
	for spec, changes := range map[string]map[string]bool{
		`{"awsCloudMap":{"region":"eu-west-1","namespaceID":"ns-1"}}`: {
			`{"awsCloudMap":{"region":"eu-west-2"}}`: false, `{"awsCloudMap":{"namespaceID":"ns-2"}}`: true,
		},
		`{"awsTargetGroup":{"region":"eu-west-1","manage":true,"targetGroups":` + group + `}}`: {
			`{"awsTargetGroup":{"region":"eu-west-2"}}`: false, `{"awsTargetGroup":{"manage":false}}`: false,
			`{"awsTargetGroup":{"draining":"Propagation"}}`: true,
		},
		`{"awsTargetGroup":{"region":"eu-west-1"}}`: {`{"awsTargetGroup":{"region":"eu-west-2"}}`: true},
	} {
		object := checktest.Must(scene.Parse(`{apiVersion: usher.dev/v1alpha1, kind: Registry, metadata: {generateName: stays-}, spec: ` + spec + `}`))(t)
		checktest.NoError(t, shared.Create(t.Context(), object))
		t.Cleanup(func() { checktest.NoError(t, shared.Delete(context.WithoutCancel(t.Context()), object)) })
		change := func(change string) error {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":`+change+`}`))
			return shared.Patch(t.Context(), object.DeepCopy(), patch, client.DryRunAll)
		}
		for what := range changes {
			checktest.NoError(t, change(what)) // while nobody uses it
		}
		used := `{"status":{"users":[{"namespace":"demo","registration":"web","service":"web"}],"conditions":[{"type":"Reachable",
			"status":"True","reason":"Reachable","message":"","lastTransitionTime":"2026-11-30T00:00:00Z"}]}}`
		checktest.NoError(t, shared.Status().Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(used))))
		for what, may := range changes {
			err := change(what)
			if may != (err == nil) || err != nil && !strings.Contains(err.Error(), "make another Registry for the new place") {
				t.Errorf("%s, changed to %s: %v", spec, what, err)
			}
		}
	}
}

// TestExamples: the Registries that the documents show are accepted.
func TestExamples(t *testing.T) {
	pages := checktest.Must(filepath.Glob(filepath.Join(scene.Root, "docs/registry/*.md")))(t)
	for _, page := range pages {
		found := 0
		for _, block := range strings.Split(string(checktest.Must(os.ReadFile(page))(t)), "```yaml\n")[1:] {
			objects, _, _ := strings.Cut(block, "```")
			for object := range strings.SplitSeq(objects, "---\n") {
				if !strings.Contains(object, "kind: Registry\n") {
					continue
				}
				found++
				err := shared.Create(t.Context(), checktest.Must(scene.Parse(object))(t), client.DryRunAll)
				if client.IgnoreAlreadyExists(err) != nil {
					t.Errorf("%s: %v", page, err)
				}
			}
		}
		if found == 0 {
			t.Errorf("%s shows no Registry", page)
		}
	}
}
