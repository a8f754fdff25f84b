// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	lua "github.com/yuin/gopher-lua"
	luajson "layeh.com/gopher-json"
	"sigs.k8s.io/yaml"
)

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
