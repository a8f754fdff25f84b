// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"embed"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// NewSet returns a CloneSet of one replica with one container, changed as the words say.
func NewSet(about string) *apps.CloneSet {
	set := load[*apps.CloneSet]("set.yaml")
	to("replicas 1; type ReCreate; unavailable 20%; image app:1; " + about)(set)
	return set
}

// to changes a CloneSet as words say, such as "replicas 3; image app:2".
func to(about string) func(*apps.CloneSet) {
	return func(set *apps.CloneSet) { say(setWords, set, about) }
}

func say[T any](words map[string]func(T, string), something T, about string) {
	if err := scenariotest.Say(words, something, about); err != nil {
		panic(err) // The words are misspelt.
	}
}

// setWords describe a CloneSet, or a change of it.
var setWords = withPatches(map[string]func(set *apps.CloneSet, value string){
	"claims": func(set *apps.CloneSet, names string) {
		set.Spec.VolumeClaimTemplates = list.Map(strings.Fields(names), func(name string) apps.ClaimTemplate {
			return decode[apps.ClaimTemplate](fmt.Appendf(nil,
				`{"metadata":{"name":%q},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`, name))
		})
	},
	// lifecycle changes the hooks alone, hooks also prepares the template for them.
	"lifecycle": func(set *apps.CloneSet, hooks string) { set.Spec.Lifecycle = hooksNamed(hooks) },
	"hooks":     func(set *apps.CloneSet, hooks string) { hook(set, hooksNamed(hooks)) },
	// ordered has a second container, which is updated before the first one; images gives both
	// another image.
	"ordered": func(set *apps.CloneSet, _ string) {
		Retemplate(func(t *corev1.PodTemplateSpec) {
			t.Spec.Containers = append(t.Spec.Containers, corev1.Container{
				Name: "base", Image: "app:1", Env: []corev1.EnvVar{{Name: apps.EnvContainerPriority, Value: "10"}},
			})
		})(set)
	},
	"images": func(set *apps.CloneSet, image string) {
		Retemplate(func(t *corev1.PodTemplateSpec) {
			for i := range t.Spec.Containers {
				t.Spec.Containers[i].Image = image
			}
		})(set)
	},
})

// withPatches adds the words in words.yaml.
func withPatches(words map[string]func(*apps.CloneSet, string)) map[string]func(*apps.CloneSet, string) {
	patches := load[struct{ Set, Template map[string]string }]("words.yaml")
	for word, patch := range patches.Set {
		words[word] = func(set *apps.CloneSet, value string) { *set = merged(*set, patch, value) }
	}
	for word, patch := range patches.Template {
		words[word] = func(set *apps.CloneSet, value string) {
			Retemplate(func(t *corev1.PodTemplateSpec) { *t = merged(*t, patch, value) })(set)
		}
	}
	// undo rolls back like a client that merges the data of a revision into the set.
	words["undo"] = func(set *apps.CloneSet, image string) {
		before := set.DeepCopy()
		words["image"](before, image)
		Undo(must(revision.Data(must(revision.Decode(before.Spec.Template.Raw())))))(set)
	}
	return words
}

// merged returns something after a patch, in which $ stands for a value.
func merged[T any](something T, patch, value string) T {
	change := must(yaml.YAMLToJSON([]byte(strings.ReplaceAll(patch, "$", value))))
	return decode[T](must(strategicpatch.StrategicMergePatch(must(json.Marshal(something)), change, something)))
}

// hook gives the set hooks and prepares the template for them: a new Pod has the keys that hold it
// before updates and deletion, and lacks those that let it join.
func hook(set *apps.CloneSet, hooks *apps.Lifecycle) {
	if set.Spec.Lifecycle = hooks; hooks != nil {
		Retemplate(func(t *corev1.PodTemplateSpec) { addHooks(t, hooks) })(set)
	}
}

//go:embed testdata/*.yaml testdata/models
var testdata embed.FS

// load decodes a file in testdata.
func load[T any](file string) (out T) {
	if err := yaml.UnmarshalStrict(must(testdata.ReadFile("testdata/"+file)), &out); err != nil {
		panic(err)
	}
	return out
}

var allHooks = load[map[string]*apps.Lifecycle]("hooks.yaml")

// hooksNamed returns hooks by the kind of keys that hold Pods.
func hooksNamed(name string) *apps.Lifecycle {
	hooks, known := allHooks[name]
	if !known {
		panic("no hooks are named " + name)
	}
	return hooks.DeepCopy()
}

// deeds are events other than changes of the set.
var deeds = map[string]func(s *Simulation, value string){
	"cordon":   func(s *Simulation, node string) { s.nodes.cordon(scenariotest.Number(node), true) },
	"uncordon": func(s *Simulation, node string) { s.nodes.cordon(scenariotest.Number(node), false) },
	"delete":   func(s *Simulation, how string) { s.DeleteSet(metav1.DeletionPropagation(how)) },
	// crash ends the controller process; another one takes over.
	"crash": func(s *Simulation, _ string) { s.processes[0].crash() },
	// refuse makes a policy refuse an image to Pods, invalid the API server itself.
	"refuse":  func(s *Simulation, image string) { s.refuse(image, true) },
	"invalid": func(s *Simulation, image string) { s.refuse(image, false) },
	"evict":   func(s *Simulation, _ string) { s.nodes.evict(s.Pods()[0]) },
	// remove deletes the first Pod as kubectl does; apart removes it from the set by its labels.
	"remove": func(s *Simulation, _ string) {
		pod := s.Pods()[0]
		s.World.say("user", "deletes Pod %s", pod.Name)
		_ = s.Server.Delete("user", pod)
	},
	"apart": func(s *Simulation, _ string) {
		s.changePod(s.Pods()[0], func(pod *corev1.Pod) { pod.Labels["app"] = "apart" })
	},
}

// podDeeds are events of one of the Pods.
var podDeeds = map[string]func(s *Simulation, pod *corev1.Pod){
	"name a Pod": func(s *Simulation, pod *corev1.Pod) {
		s.changePod(pod, func(pod *corev1.Pod) { pod.Labels[apps.LabelSpecifiedDelete] = "true" })
	},
	"list a Pod": func(s *Simulation, pod *corev1.Pod) {
		s.Edit("", func(set *apps.CloneSet) { set.Spec.ScaleStrategy.PodsToDelete = []string{pod.Name} })
	},
	"list a Pod and scale": func(s *Simulation, pod *corev1.Pod) {
		s.Edit("", func(set *apps.CloneSet) {
			set.Spec.ScaleStrategy.PodsToDelete, set.Spec.Replicas = []string{pod.Name}, new(*set.Spec.Replicas-1)
		})
	},
}

// happen makes something happen: a deed, or a change of the set.
func (s *Simulation) happen(what, about string) {
	name, value, _ := strings.Cut(about, " ")
	if do := deeds[name]; do != nil {
		do(s, value)
		return
	}
	s.Edit(what, to(about))
}
