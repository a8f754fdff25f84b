// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/integration/scene"
)

// hooked is a CloneSet whose Pods Usher drains, and which somebody else holds once more
// before they go.
const hooked = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web, set: web}}
  lifecycle:
    inPlaceUpdate: {labelsHandler: {web.usher.dev/drained: "true"}}
    preDelete: {labelsHandler: {web.usher.dev/drained: "true", example.com/told: "true"}}
  template:
    metadata: {labels: {app: web, set: web, web.usher.dev/drained: "true", example.com/told: "true"}}
    spec: {containers: [{name: main, image: "example.test/web:v1"}]}
  updateStrategy: {type: InPlaceIfPossible, maxUnavailable: 1}
`

// plugin is the program kubectl usher.
type plugin struct {
	*story
	program, kubeconfig string
}

// run returns what the plugin prints; fails means that its exit code is not 0.
func (p *plugin) run(args ...string) (printed string, fails bool) {
	p.Helper()
	command := exec.CommandContext(p.Context(), p.program, append([]string{"-n", p.Namespace, "--kubeconfig", p.kubeconfig}, args...)...)
	command.Env = append(os.Environ(), "HOME="+filepath.Dir(p.program))
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		p.Fatal(err)
	}
	return out.String(), err != nil
}

// says runs the plugin, which succeeds and prints all of the texts.
func (p *plugin) says(args string, texts ...string) {
	p.Helper()
	p.Until("kubectl usher "+args, func() string {
		printed, fails := p.run(strings.Fields(args)...)
		for _, text := range texts {
			if fails || !strings.Contains(printed, text) {
				return "it does not say " + text + ", but:\n" + printed
			}
		}
		return ""
	})
}

// does runs the plugin once, which succeeds and prints all of the texts.
func (p *plugin) does(args string, texts ...string) {
	p.Helper()
	printed, fails := p.run(strings.Fields(args)...)
	for _, text := range texts {
		if fails || !strings.Contains(printed, text) {
			p.Errorf("kubectl usher %s fails: %v; want %q in\n%s", args, fails, text, printed)
		}
	}
}

// refuses runs the plugin once, which fails with the text.
func (p *plugin) refuses(args, text string) {
	p.Helper()
	if printed, fails := p.run(strings.Fields(args)...); !fails || !strings.Contains(printed, "error: ") || !strings.Contains(printed, text) {
		p.Errorf("kubectl usher %s fails: %v; want %q in\n%s", args, fails, text, printed)
	}
}

// TestPlugin plays the commands of the kubectl plugin.
func TestPlugin(t *testing.T) {
	p := &plugin{story: begin(t), program: filepath.Join(t.TempDir(), "kubectl-usher"), kubeconfig: plane.Kubeconfig()}
	p.Must(checkout.Program{Name: "kubectl-usher", Module: "../../../cmd/kubectl-usher", Pkg: ".", Out: p.program}.Compile(t.Context(), nil))
	p.Make(p.Object(hooked))
	set := &appsv1alpha1.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "web"}}
	p.inService(2)
	t.Run("looks", func(t *testing.T) { p.at(t).looks(set) })
	t.Run("acts", func(t *testing.T) { p.at(t).acts(set) })
	t.Run("shows a page", func(t *testing.T) { p.at(t).dashboard(set) })
	t.Run("releases", func(t *testing.T) { p.at(t).releases(set) })
	t.Run("drains", func(t *testing.T) { p.at(t).drains(set) })
	t.Run("refuses", func(t *testing.T) { p.at(t).refusals() })
}

// at lets a part of the story report to its own test.
func (p *plugin) at(t *testing.T) *plugin {
	return &plugin{&story{&scene.Scene{T: t, Plane: plane, Namespace: p.Namespace}}, p.program, p.kubeconfig}
}

func (p *plugin) looks(set *appsv1alpha1.CloneSet) {
	p.says("status clone/web", "CloneSet "+p.Namespace+"/web  Done", "2 of 2, 2 ready, 2 available, 2 of 2 updated")
	p.says("status clone web -o json", `"phase": "Done"`)
	p.says("why clone/web", "waits for nothing")
	p.Change(set, `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"example.test/web:v2"}]}}}}`)
	p.says("history clone/web", "example.test/web:v1", "example.test/web:v2")
	p.says("diff clone/web", "-  - image: example.test/web:v1", "+  - image: example.test/web:v2")
	p.says("status clone/web", "Done", "example.test/web:v2")
}

func (p *plugin) acts(set *appsv1alpha1.CloneSet) {
	p.does("pause clone/web", "clone/web paused")
	p.says("undo clone/web --dry-run", "rolled back to revision 1", "(dry run)")
	p.does("undo clone/web --to-revision 1", "rolled back to revision 1")
	p.says("why clone/web", "is paused", "usher resume clone/web")
	p.does("partition clone/web 1", "clone/web keeps 1 at the old revision")
	p.does("resume clone/web", "clone/web resumed")
	p.says("status clone/web", "Done", "1 of 1 updated")
	p.does("partition clone/web 0", "clone/web keeps 0")
	p.says("status clone/web", "2 of 2 updated")
	p.Read(set)
	if template, err := set.Spec.Template.Decode(); err != nil || template.Spec.Containers[0].Image != "example.test/web:v1" {
		p.Errorf("undo leads to %v, %v", template, err)
	}
}

// releases answers a hook that nobody answers.
func (p *plugin) releases(set *appsv1alpha1.CloneSet) {
	p.Change(set, `{"spec":{"replicas":1}}`)
	p.says("why clone/web", "to answer the hook example.com/told", "--hook=example.com/told")
	name := ""
	p.Until("a Pod waits", func() string {
		for _, pod := range p.Pods() {
			if pod.Labels[appsv1alpha1.LabelLifecycleState] == string(appsv1alpha1.StatePreparingDelete) && pod.Labels["web.usher.dev/drained"] != "true" {
				name = pod.Name
				return ""
			}
		}
		return "none is drained"
	})
	p.refuses("release pod/"+name+" --hook=example.com/told --reason=test", "nothing was changed")
	p.refuses("release pod/"+name+" --hook=example.com/other --reason=test -y", "does not wait for")
	p.does("release pod/"+name+" --hook=example.com/told --reason=told-by-hand -y", "released from example.com/told")
	p.Event(nil, "HookReleasedByHand", "told-by-hand")
	p.inService(1)
}

// drains takes Pods out of their registries and away, without help of the guard.
func (p *plugin) drains(set *appsv1alpha1.CloneSet) {
	p.Change(set, `{"spec":{"lifecycle":{"preDelete":{"labelsHandler":{"example.com/told":null}}}}}`)
	p.does("drain pod/"+p.Pods()[0].Name, "is named for deletion: clone/web replaces it", "has left memory", "is gone")
	p.inService(1)
	p.bare("bare")
	p.inService(2)
	p.does("drain pod/bare", "leaves its registries", "has left memory", "is deleted", "is gone")
	p.inService(1)
	p.says("registry", "memory", "yes")
	p.says("registry memory", p.Namespace+"/web")
	p.refuses("doctor", "no Deployment has the label")
}

func (p *plugin) refusals() {
	p.refuses("status clone/none", "there is no cloneset/none in namespace "+p.Namespace)
	p.refuses("status tank/web", `no resource type "tank"`)
	p.refuses("pause deployment/web", "works for CloneSets")
	p.refuses("drain pod/none", "there is no pod/none")
	p.refuses("undo clone/web --to-revision 99", "has no revision")
	p.refuses("partition clone/web some", "neither a number of Pods nor a percentage")
	p.refuses("release pod/web", "--hook and --reason are needed")
	stranger, err := plane.UserKubeconfig("stranger")
	p.Must(err)
	p.kubeconfig = stranger
	p.refuses("status clone/web", "forbidden")
	p.refuses("dashboard", "you may not list and watch Pods in namespace "+p.Namespace)
}
