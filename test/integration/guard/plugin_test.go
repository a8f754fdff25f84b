// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/forecast"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
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

// run returns what the plugin prints, and its exit code.
func (p *plugin) run(args string) (printed string, code int) {
	p.Helper()
	all := append([]string{"-n", p.Namespace, "--kubeconfig", p.kubeconfig}, strings.Fields(args)...)
	command := exec.CommandContext(p.Context(), p.program, all...)
	command.Env = append(os.Environ(), "HOME="+filepath.Dir(p.program))
	out, err := command.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		p.Fatal(err)
	}
	return string(out), command.ProcessState.ExitCode()
}

// says runs the plugin until it succeeds and prints all of the texts.
func (p *plugin) says(args string, texts ...string) {
	p.Helper()
	p.Until("kubectl usher "+args, func() string {
		printed, code := p.run(args)
		return registrytest.Unless(code == 0 && scene.Contains(printed, texts), fmt.Sprintf("it ends with %d, want %q in\n%s", code, texts, printed))
	})
}

// ends runs the plugin once, which ends with the code and prints all of the texts.
func (p *plugin) ends(code int, args string, texts ...string) (printed string) {
	p.Helper()
	printed, got := p.run(args)
	if got != code || !scene.Contains(printed, texts) {
		p.Errorf("kubectl usher %s ends with %d; want %d and %q in\n%s", args, got, code, texts, printed)
	}
	return printed
}

// does runs the plugin once, which succeeds and prints all of the texts.
func (p *plugin) does(args string, texts ...string) {
	p.Helper()
	p.ends(0, args, texts...)
}

// refuses runs the plugin once, which fails with the text.
func (p *plugin) refuses(args, text string) {
	p.Helper()
	p.ends(1, args, "error: ", text)
}

// TestPlugin plays the commands of the kubectl plugin.
func TestPlugin(t *testing.T) {
	p := &plugin{story: begin(t), program: filepath.Join(t.TempDir(), "kubectl-usher"), kubeconfig: plane.Kubeconfig()}
	p.Must(checkout.Program{Name: "kubectl-usher", Module: "../../../cmd/kubectl-usher", Pkg: ".", Out: p.program}.Compile(t.Context(), nil))
	p.Make(p.Object(hooked))
	set := &appsv1alpha1.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "web"}}
	p.inService(2)
	t.Run("looks", func(t *testing.T) { p.at(t).looks(set) })
	t.Run("plans", func(t *testing.T) { p.at(t).plans(set) })
	t.Run("acts", func(t *testing.T) { p.at(t).acts(set) })
	t.Run("shows a page", func(t *testing.T) { p.at(t).dashboard(set) })
	t.Run("releases", func(t *testing.T) { p.at(t).releases(set) })
	t.Run("drains", func(t *testing.T) { p.at(t).drains(set) })
	t.Run("drains a node", func(t *testing.T) { p.at(t).drainsNode() })
	t.Run("a Deployment's Pods", func(t *testing.T) { p.ofDeployment(t) })
	t.Run("completes", func(t *testing.T) { p.at(t).completes() })
	t.Run("refuses", func(t *testing.T) { p.at(t).refusals() })
	t.Run("rights", func(t *testing.T) { p.at(t).rights() })
}

// at lets a part of the story report to its own test.
func (p *plugin) at(t *testing.T) *plugin {
	return &plugin{story: &story{&scene.Scene{T: t, Plane: plane, Namespace: p.Namespace}}, program: p.program, kubeconfig: p.kubeconfig}
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

// plans foresees a change, makes it, and compares what happens.
func (p *plugin) plans(set *appsv1alpha1.CloneSet) {
	p.ends(0, "plan clone/web --replicas 2", "would not change")
	p.ends(2, "plan clone/web --partition 1", "would change, and no Pod with it")
	p.ends(1, "plan clone/web --image other=x", "error: ", `there is no container "other"; there are main`)
	p.ends(1, "plan clone/none --replicas 1", "there is no cloneset/none")
	p.ends(1, "plan clone/web", "say what is to change")
	p.ends(1, "plan deployment/web --replicas 1", "works for CloneSets")
	p.ends(2, "plan clone/web --image main=in:va:lid:", "would change")
	p.files(set)
	p.quota()
	p.ends(2, "plan clone/web --image main=example.test/web:v3", "at least 1 of 2 Pods, 2 now", "web.usher.dev/drained", "Registration web, when Registry memory confirms")
	var f forecast.Forecast
	p.Must(json.Unmarshal([]byte(p.ends(2, "plan clone/web --image main=example.test/web:v3 -o json", "waves")), &f))
	p.Change(set, `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"example.test/web:v3"}]}}}}`)
	p.says("status clone/web", "Done", "2 of 2 updated", "example.test/web:v3")
	var foreseen, happened []string
	for _, wave := range f.Waves {
		foreseen = append(foreseen, fmt.Sprint(wave.Pods))
	}
	updates := p.Events(set, "SuccessfulUpdatePodInPlace")
	slices.SortFunc(updates, func(a, b eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	for _, update := range updates[max(len(updates)-2, 0):] {
		happened = append(happened, fmt.Sprint([]forecast.Step{{Pod: update.Related.Name, Does: forecast.InPlace}}))
	}
	if !slices.Equal(foreseen, happened) {
		p.Errorf("foreseen %v, happened %v", foreseen, happened)
	}
}

// files foresees what kubectl apply would do.
func (p *plugin) files(set *appsv1alpha1.CloneSet) {
	file := filepath.Join(p.TempDir(), "set.yaml")
	for _, test := range []struct {
		text  string
		code  int
		texts []string
	}{
		{hooked, 2, []string{"would change", "example.test/web:v1", "in place: " + p.Pods()[0].Name}},
		{strings.ReplaceAll(hooked, "example.test/web:v1", "example.test/web:v2"), 0, []string{"would not change"}},
		{strings.Replace(hooked, "name: web}", "name: new}", 1), 2, []string{"would be created", "2 new", "at least 0 of 2 Pods"}},
		{strings.Replace(hooked, "InPlaceIfPossible", "InPlaceOnly, maxSurge: 1", 1), 1, []string{"does not accept the change", "maxSurge"}},
		{strings.Replace(hooked, "replicas", "repliccas", 1), 1, []string{"repliccas"}},
		{strings.Replace(hooked, "main, image", "main, imagePullPolicy: Sometimes, image", 1), 1, []string{"is refused", "Sometimes"}},
		{strings.NewReplacer("name: web}", "name: new}", "  selector:", `  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [Sometimes]}}]
  selector:`).Replace(hooked), 1, []string{"is refused", "PersistentVolumeClaim", "Sometimes"}},
		{strings.Replace(hooked, "CloneSet", "Deployment", 1), 1, []string{"holds no CloneSet (Deployment)"}},
	} {
		p.Must(os.WriteFile(file, []byte(test.text), 0o600))
		p.ends(test.code, "plan -f "+file, test.texts...)
	}
	p.ends(1, "plan -f "+file+"x", "does not exist")
	p.Read(set)
}

// quota has room for the two Pods that there are: one more is refused, another image is not.
func (p *plugin) quota() {
	quota := &corev1.ResourceQuota{}
	quota.Name, quota.Namespace, quota.Spec.Hard = "few", p.Namespace, corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}
	p.Make(quota)
	p.Until("the quota to be counted", func() string {
		p.Read(quota)
		used := quota.Status.Used[corev1.ResourcePods]
		return registrytest.Unless(used.Value() == 2, used.String()+" are")
	})
	p.ends(1, "plan clone/web --replicas 4", "is refused", "error: quota few: pods 2 more wanted, 0 left; raise it or ask for fewer")
	p.ends(2, "plan clone/web --image main=example.test/web:v9", "would change", "in place")
	p.Must(p.Delete(p.Context(), quota))
	p.Gone(quota)
}

func (p *plugin) acts(set *appsv1alpha1.CloneSet) {
	p.does("pause clone/web", "clone/web paused")
	p.says("undo clone/web --dry-run", "rolled back to revision 2", "(dry run)")
	p.does("undo clone/web --to-revision 1", "rolled back to revision 1")
	p.says("why clone/web", "is paused", "usher resume clone/web")
	p.does("partition clone/web 1", "clone/web keeps 1 at the old revision")
	p.does("resume clone/web", "clone/web resumed")
	p.says("status clone/web", "Done", "1 of 1 updated")
	p.does("partition clone/web 0 -w", "clone/web keeps 0", "Updating", "Done", "2 of 2 updated")
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
	p.says("registry memory --diff", "Registration "+p.Namespace+"/web, service "+p.Namespace+": 1 entries should be listed, 1 are, 0 differ")
	p.says("registry memory --diff -o wide", "SHOULD BE", p.Pods()[0].Name)
	p.refuses("doctor", "no Deployment has the label")
}

// onNode is a Deployment with a budget.
const onNode = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  replicas: 2
  selector: {matchLabels: {tier: node}}
  template:
    metadata: {labels: {app: web, tier: node}}
    spec: {containers: [{name: main, image: "example.test/shop:v1"}]}
`

// drainsNode takes the Pods of a Deployment off a node, as many at a time as a budget allows.
func (p *plugin) drainsNode() {
	p.cordon(secondNode, true)
	p.Make(p.Object(onNode), p.Object(
		"{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: shop}, spec: {maxUnavailable: 1, selector: {matchLabels: {tier: node}}}}"))
	p.inService(3)
	p.cordon(secondNode, false)
	p.cordon(firstNode, false)
	p.says("status deployment/shop", "Deployment "+p.Namespace+"/shop  Done", "2 of 2, 2 ready")
	p.does("drain node/node-1 --pod-selector tier=node --dry-run", "node/node-1 cordoned (dry run)", "pod/shop-", "drained (dry run)")
	p.does("drain node/node-1 --pod-selector tier=node --timeout 3m",
		"node/node-1 cordoned", "leaves its registries", "has left memory", "is evicted", "is gone", "node/node-1 drained")
	p.inService(3)
	if left := p.on(firstNode); slices.ContainsFunc(left, func(name string) bool { return strings.HasPrefix(name, "shop-") }) {
		p.Errorf("node-1 still has %v", left)
	}
}

// ofDeployment plays the Pods of a Deployment with nothing but a Registration: one leaves, and
// one is held by a registry that is down until somebody breaks the glass.
func (p *plugin) ofDeployment(t *testing.T) {
	d := &plugin{story: begin(t), program: p.program, kubeconfig: p.kubeconfig}
	d.deployment(2)
	d.says("why deployment/web", "waits for nothing: 2 of 2 Pods serve")
	d.does("drain pod/"+d.Pods()[0].Name, "leaves its registries", "has left memory", "is deleted", "is gone")
	d.inService(2)
	pod := d.Pods()[0]
	callers.registry.Break(memory.Down)
	defer callers.registry.Break(memory.None)
	d.refuses("drain pod/"+pod.Name+" --timeout 1s", "is still there; kubectl usher why pod/"+pod.Name)
	d.says("why pod/"+pod.Name, "leaves memory before it is deleted, as ", "Registration web, when Registry memory confirms")
	d.Change(&pod, `metadata: {annotations: {usher.dev/skip-drain: "true"}}`)
	d.Must(d.Delete(t.Context(), &pod))
	d.says("why pod/"+pod.Name, "is deleted, and stays until memory no longer lists it", "usher.dev/registration")
	d.refuses("release pod/"+pod.Name+" --hook=usher.dev/registration --reason=outage", "nothing was changed")
	d.does("release pod/"+pod.Name+" --hook=usher.dev/registration --reason=outage -y", "released from usher.dev/registration")
	d.Event(nil, "HookReleasedByHand", "outage")
	d.Gone(&pod)
	callers.registry.Break(memory.None)
	d.inService(2)
	callers.forget(d.Namespace)
}

// completes offers the words that somebody may type next.
func (p *plugin) completes() {
	for typed, want := range map[string]string{
		"status clo": "clone/", "status clone/w": "clone/web", "status clone we": "web", "drain no": "node/", "drain node/node-": "node/node-1",
		"history clone/": "clone/web", "registry mem": "memory", "plan clone/web --image m": "main=example.test/web:", "status -n " + p.Namespace[:6]: p.Namespace, "status clone/web -o j": "json",
		"partition clone/web 5": "50%", "pause deploy": ":4", "status clone/web x": ":4",
	} {
		printed, code := p.run("__complete " + typed)
		if lines := strings.Split(printed, "\n"); code != 0 || !slices.Contains(lines, want) || want == ":4" && lines[0] != want {
			p.Errorf("kubectl usher %s: want %q in %q", typed, want, printed)
		}
	}
}

func (p *plugin) refusals() {
	for args, text := range map[string]string{
		"status clone/none":                 "there is no cloneset/none in namespace " + p.Namespace,
		"status tank/web":                   `no resource type "tank"`,
		"status clone/web -o table":         "none of json, yaml, wide, name",
		"pause deployment/web":              "works for CloneSets",
		"drain pod/none":                    "there is no pod/none",
		"drain node/none":                   "there is no node/none; kubectl get nodes",
		"undo clone/web --to-revision 99":   "has no revision",
		"partition clone/web some":          "neither a number of Pods nor a percentage",
		"release pod/web":                   "--hook and --reason are needed",
		"registry none":                     "there is no registry/none; kubectl get registries",
		"registry --diff":                   "--diff needs the name",
		"why clone/none":                    "there is no cloneset/none",
		"history clone/none":                "there is no cloneset/none",
		"plan clone/none --image main=a:v1": "there is no cloneset/none",
	} {
		p.refuses(args, text)
	}
}

// looking is what somebody needs to look at a CloneSet.
const looking = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: look}
rules:
- {apiGroups: [apps.kruise.io, usher.dev], resources: ["*"], verbs: [get, list]}
- {apiGroups: ["", apps], resources: [pods, controllerrevisions], verbs: [get, list]}
`

// rights are those of somebody who may look at a CloneSet once, and at nothing else.
func (p *plugin) rights() {
	p.Make(p.Object(looking), p.Object(`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: look},
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: look},
		subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: onlooker}]}`))
	pods := p.Pods()
	pod := pods[len(pods)-1].Name // one of the CloneSet
	var err error
	p.kubeconfig, err = plane.UserKubeconfig("onlooker")
	p.Must(err)
	p.says("status clone/web", "CloneSet")
	for args, missing := range map[string]string{
		"status clone/web -w":     "watch",
		"status deployment/shop":  `get resource "deployments"`,
		"pause clone/web":         `patch resource "clonesets"`,
		"partition clone/web 50%": `patch resource "clonesets"`,
		"restart clone/web":       `patch resource "pods"`,
		"drain pod/" + pod:        `watch resource "pods"`,
		"drain node/node-1":       `get resource "nodes"`,
		"registry":                `list resource "registries"`,
		"registry memory --diff":  `get resource "registries"`,
		"release pod/" + pod + " --hook=web.usher.dev/drained --reason=test -y": `patch resource "pods"`,
	} {
		p.refuses(args, `User "onlooker" cannot `+missing)
		p.refuses(args, "docs/plugin.md")
	}
	p.refuses("doctor", "not looked at: Registries (forbidden)")
	p.kubeconfig, err = plane.UserKubeconfig("stranger")
	p.Must(err)
	p.refuses("status clone/web", `User "stranger" cannot get resource "clonesets"`)
	p.refuses("dashboard", "you may not list and watch Pods in namespace "+p.Namespace)
	p.refuses("plan clone/web --replicas 1", "forbidden")
}
