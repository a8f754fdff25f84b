// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"embed"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// NewSet is a CloneSet of one replica with one container, changed as the words say.
func NewSet(about string) *apps.CloneSet {
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: "sim", Name: "demo"}}
	set.Spec.Selector.MatchLabels = map[string]apps.LabelValue{"app": "demo"}
	set.Spec.Template = rawTemplate(corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "demo"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "app:1"}}},
	})
	to("replicas 1; type ReCreate; unavailable 20%; " + about)(set)
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

func count(text string) *apps.Count {
	value := intstr.Parse(text)
	return (*apps.Count)(&value)
}

func number(text string) int32 { return int32(scenariotest.Number(text)) }

// setWords are what can be said about a CloneSet, and changed.
var setWords = map[string]func(set *apps.CloneSet, value string){
	"replicas": func(set *apps.CloneSet, n string) { set.Spec.Replicas = new(number(n)) },
	"type":     func(set *apps.CloneSet, kind string) { set.Spec.UpdateStrategy.Type = apps.UpdateStrategyType(kind) },
	// inPlace updates one Pod at a time.
	"inPlace": func(set *apps.CloneSet, _ string) {
		set.Spec.UpdateStrategy.Type, set.Spec.UpdateStrategy.MaxUnavailable = apps.UpdateInPlaceIfPossible, count("1")
	},
	"unavailable": func(set *apps.CloneSet, n string) { set.Spec.UpdateStrategy.MaxUnavailable = count(n) },
	"surge":       func(set *apps.CloneSet, n string) { set.Spec.UpdateStrategy.MaxSurge = count(n) },
	"partition":   func(set *apps.CloneSet, n string) { set.Spec.UpdateStrategy.Partition = count(n) },
	"paused":      func(set *apps.CloneSet, yes string) { set.Spec.UpdateStrategy.Paused = yes == "true" },
	"grace": func(set *apps.CloneSet, seconds string) {
		set.Spec.UpdateStrategy.InPlaceUpdateStrategy = &apps.InPlaceUpdateStrategy{GracePeriodSeconds: number(seconds)}
	},
	"minReady": func(set *apps.CloneSet, seconds string) { set.Spec.MinReadySeconds = number(seconds) },
	"excluded": func(set *apps.CloneSet, yes string) {
		set.Labels = map[string]string{apps.LabelScalingExcludePreparingDelete: yes}
	},
	"claims": func(set *apps.CloneSet, names string) {
		set.Spec.VolumeClaimTemplates = claimTemplates(strings.Fields(names)...)
	},
	// lifecycle changes the hooks alone, hooks also prepares the template for them.
	"lifecycle": func(set *apps.CloneSet, hooks string) { set.Spec.Lifecycle = hooksNamed(hooks) },
	"hooks":     func(set *apps.CloneSet, hooks string) { hook(set, hooksNamed(hooks)) },
	"image":     setImage,
	"env":       ofContainer(func(c *corev1.Container, value string) { c.Env = []corev1.EnvVar{{Name: "VALUE", Value: value}} }),
	"cpu":       ofContainer(requestCPU),
	"memory": ofContainer(func(c *corev1.Container, value string) {
		c.Resources.Requests[corev1.ResourceMemory] = resource.MustParse(value)
	}),
	// restarting is a container that has to restart to change its CPU.
	"restarting": ofContainer(func(c *corev1.Container, _ string) {
		c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
	}),
	"tier": func(set *apps.CloneSet, value string) {
		Retemplate(func(t *corev1.PodTemplateSpec) { t.Labels["tier"] = value })(set)
	},
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
	// undo rolls back as a client does that merges the data of a revision into the set.
	"undo": func(set *apps.CloneSet, image string) {
		before := set.DeepCopy()
		setImage(before, image)
		Undo(must(revision.Data(must(revision.Decode(before.Spec.Template.Raw())))))(set)
	},
}

// ofContainer changes the first container of the template.
func ofContainer(change func(*corev1.Container, string)) func(*apps.CloneSet, string) {
	return func(set *apps.CloneSet, value string) {
		Retemplate(func(t *corev1.PodTemplateSpec) { change(&t.Spec.Containers[0], value) })(set)
	}
}

func setImage(set *apps.CloneSet, image string) {
	ofContainer(func(c *corev1.Container, image string) { c.Image = image })(set, image)
}

func requestCPU(c *corev1.Container, cpu string) {
	if c.Resources.Requests == nil {
		c.Resources.Requests = corev1.ResourceList{}
	}
	c.Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
}

// hook gives the set hooks and prepares the template for them: what holds a Pod is present, what
// lets it pass is not.
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

// hooksNamed are hooks by what holds Pods.
func hooksNamed(name string) *apps.Lifecycle {
	hooks, known := allHooks[name]
	if !known {
		panic("no hooks are named " + name)
	}
	return hooks.DeepCopy()
}

// deeds are what else can happen, besides changes of the set.
var deeds = map[string]func(s *Simulation, value string){
	"cordon":   func(s *Simulation, node string) { s.nodes.cordon(scenariotest.Number(node), true) },
	"uncordon": func(s *Simulation, node string) { s.nodes.cordon(scenariotest.Number(node), false) },
	"delete":   func(s *Simulation, how string) { s.DeleteSet(metav1.DeletionPropagation(how)) },
	// crash ends the controller process; another one takes over.
	"crash": func(s *Simulation, _ string) { s.processes[0].crash() },
	"evict": func(s *Simulation, _ string) { s.nodes.evict(s.Pods()[0]) },
	// remove deletes the first Pod as kubectl does; apart takes it out by its labels.
	"remove": func(s *Simulation, _ string) {
		pod := s.Pods()[0]
		s.World.say("user", "deletes Pod %s", pod.Name)
		_ = s.Server.Delete("user", pod)
	},
	"apart": func(s *Simulation, _ string) {
		s.changePod(s.Pods()[0], func(pod *corev1.Pod) { pod.Labels["app"] = "apart" })
	},
}

// podDeeds happen to one of the Pods.
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
