// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/integration/scene"
	"github.com/usher-dev/usher/test/stage"
)

// TestStories plays the stories in testdata/stories, each in a namespace of its own.
func TestStories(t *testing.T) { scenariotest.Tell(t, "testdata/stories/*.txt", words, begin) }

// words are what a step can begin with. What is to happen is awaited.
var words = scene.Words(func(s *story) *scene.Scene { return s.Scene }, map[string]func(s *story, rest string){
	// What the controller does.
	"controller crashes":              crash(func(*story) {}),
	"controller keeps field managers": crash(func(s *story) { s.options.KeepFieldManagers = true }),
	"images first":                    crash(func(s *story) { s.options.PullImage = "example.test/usher:v1" }),
	"resizes are unknown":             crash(func(s *story) { s.options.NoResize = true }),
	"resizes are not found":           crash(func(s *story) { s.intercept = withoutResize }),

	"resizes are forbidden":       func(s *story, _ string) { s.forbidResizes() },
	"updates are forbidden to":    (*story).forbidImage,
	"another pass writes nothing": func(s *story, _ string) { s.unchanged() },
	"OpenKruise leaves":           (*story).takeOver,
	"handed back":                 func(s *story, _ string) { s.handedBack() },

	// What users do, with kubectl, and with OpenKruise's plugin.
	"create": (*story).createFrom,
	"running": func(s *story, rest string) {
		s.createFrom(rest)
		s.settled(s.replicas())
		s.note()
	},
	"patch":             func(s *story, rest string) { s.patch("%s", rest) },
	"image":             (*story).image,
	"other image":       (*story).otherImage,
	"annotation of":     (*story).annotate,
	"volumes":           func(s *story, n string) { s.offerVolumes(scenariotest.Number(n), s.Namespace) },
	"restricted":        (*story).restrict,
	"apply":             (*story).apply,
	"template":          (*story).setContainers,
	"plugin sets image": (*story).setImage,
	"write back":        (*story).writeBack,
	"migrate":           (*story).migrate,
	"scale":             func(s *story, n string) { s.scaleTo(s.set(), int32(scenariotest.Number(n))) },
	"scale Deployment":  func(s *story, n string) { s.scaleTo(s.deployment(), int32(scenariotest.Number(n))) },
	"moved":             (*story).moved,
	"undo":              (*story).undo,

	// What becomes of the set.
	"settled":         func(s *story, n string) { s.settled(int32(scenariotest.Number(n))) },
	"status":          (*story).reports,
	"nothing is left": func(s *story, _ string) { s.nothingLeft() },
	"at most":         (*story).fewEvents,
	"rollout":         func(s *story, want string) { s.Same("rollout", s.rolloutStatus(), want) },

	// Its revisions.
	"revision": func(s *story, name string) {
		s.observed()
		s.Call(name, s.set().Status.UpdateRevision)
	},
	"revisions":              (*story).keepsRevisions,
	"history":                func(s *story, want string) { s.Same("history", s.chronicle(), want) },
	"causes":                 func(s *story, want string) { s.Same("causes", s.causes(), want) },
	"asked for":              func(s *story, want string) { s.Same("asked for", fmt.Sprint(s.created.Load(), " revisions"), want) },
	"at its newest revision": func(s *story, _ string) { s.showsNewest() },

	// Its Pods and claims. A note is what they are compared with later.
	"nothing is written": func(s *story, _ string) { s.Same("versions", s.versions(), s.noted.versions) },
	"the Pod":            (*story).ends,
	"run":                (*story).run,
	"as in the template": func(s *story, _ string) { s.carryTemplate() },
	"note":               func(s *story, _ string) { s.note() },
	"same Pods":          func(s *story, _ string) { s.Same("Pods", s.identities(), s.noted.pods) },
	"same labels":        func(s *story, _ string) { s.Same("labels", s.podLabels(), s.noted.labels) },
	"new Pods":           func(s *story, _ string) { s.newPods() },
	"same claims":        func(s *story, _ string) { s.Same("claims", s.claims(), s.noted.claims) },
	"same revisions":     func(s *story, _ string) { s.Same("revisions", s.revisionNames(), s.noted.revisions) },
	"restarts":           func(s *story, want string) { s.Same("restarts", s.restarts(), want) },
	"managed Pods:":      func(s *story, want string) { s.Same("managed", cmp.Or(strings.Join(s.managed(), " "), "none"), want) },
	"Pods unwritten":     func(s *story, want string) { s.Same("unwritten", s.unwritten(), want) },
	"Pods ready":         (*story).podsReady,
	"Pods are":           (*story).namePods,
	"Pod":                (*story).aboutPod,
	"a Pod beside":       (*story).pulls,
	"claims":             (*story).paired,
	"claim of":           (*story).aboutClaim,
})

// named is what has a name; the name itself if nothing has it.
func (s *story) named(name string) string {
	if what, ok := s.Named(name); ok {
		return what
	}
	return name
}

// createFrom creates a set of testdata/props.yaml, whose name a patch follows.
func (s *story) createFrom(rest string) {
	at := strings.IndexAny(rest+" ", " \n")
	set := s.Prop(rest[:at], cmp.Or(rest[at:], "{}"))
	s.name = set.GetName()
	s.Make(set)
}

// reports waits until the status of the present generation has these fields.
func (s *story) reports(fields string) {
	s.observed()
	s.Has(s.key(), "status: "+fields)
	s.observed()
}

func (s *story) nothingLeft() {
	s.Await("its Pods and revisions to be gone", func() bool {
		return len(s.pods()) == 0 && len(s.revisions()) == 0
	})
}

// keepsRevisions waits until these revisions alone are there.
func (s *story) keepsRevisions(names string) {
	want := list.Map(strings.Fields(names), s.named)
	s.Await("the revisions "+names+" alone", func() bool { return slices.Equal(s.revisionNames(), want) })
}

// noted is what there was before.
type noted struct {
	pods      map[string]types.UID
	versions  map[string]string
	claims    map[string]types.UID
	revisions []string
	labels    []string
}

func (s *story) note() {
	s.noted = noted{
		pods: s.identities(), versions: s.versions(), claims: s.claims(), revisions: s.revisionNames(), labels: s.podLabels(),
	}
}

// podLabels are the labels of each Pod.
func (s *story) podLabels() []string {
	return list.Map(s.pods(), func(pod corev1.Pod) string {
		return pod.Name + " " + metav1.FormatLabelSelector(metav1.SetAsLabelSelector(pod.Labels))
	})
}

// unwritten counts Pods that still have the versions that were noted.
func (s *story) unwritten() string {
	n := 0
	for name, version := range s.podVersions() {
		if s.noted.versions[name] == version {
			n++
		}
	}
	return fmt.Sprint(n)
}

// podsReady is "3 with IMAGE": so many Pods with the image are ready.
func (s *story) podsReady(want string) {
	_, image, _ := strings.Cut(want, " with ")
	ready := slices.DeleteFunc(s.pods(), func(p corev1.Pod) bool {
		return !stage.Ready(&p) || p.Spec.Containers[0].Image != "example.test/"+image
	})
	s.Same("Pods ready", fmt.Sprint(len(ready), " with ", image), want)
}

// run is "v2 200m 64Mi": the image's tag, cpu and memory of every Pod.
func (s *story) run(want string) {
	for _, pod := range s.pods() {
		c := pod.Status.ContainerStatuses[0]
		requests := c.Resources.Requests
		s.Same(pod.Name, fmt.Sprint(strings.TrimPrefix(c.Image, "example.test/web:"), " ", requests.Cpu(), " ", requests.Memory()), want)
	}
}

// namePods names the Pods in their order.
func (s *story) namePods(names string) {
	for i, pod := range s.pods() {
		s.Call(strings.Fields(names)[i], pod.Name)
	}
}

func (s *story) aboutClaim(rest string) {
	pod, document, _ := strings.Cut(rest, " has")
	name := plan.ClaimName("data", "web", s.Pod(s.named(pod)).Labels[apps.LabelInstanceID])
	s.Has(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}, document)
}

// aboutPod is what a Pod is or gets, and which image it has.
func (s *story) aboutPod(rest string) {
	name, rest, _ := strings.Cut(rest, " ")
	verb, what, _ := strings.Cut(rest, " ")
	switch {
	case verb == "is" && what == "gone":
		s.gone(s.named(name))
	case verb == "is":
		s.podIs(name, what)
	case verb == "has":
		s.Same("image", s.Pod(s.named(name)).Spec.Containers[0].Image, "example.test/"+strings.TrimPrefix(what, "image "))
	default:
		key, value, _ := strings.Cut(what, "=")
		s.label(s.named(name), key, value)
	}
}

// podIs waits until one Pod is in a state, and ready or not if that is said. If it has no name
// yet, it gets that name.
func (s *story) podIs(name, what string) {
	state, ready, _ := strings.Cut(what, ", ")
	s.Await("one Pod that is "+what, func() bool {
		found := s.in(apps.LifecycleState(state))
		if known, ok := s.Named(name); len(found) != 1 || ok && known != found[0].Name {
			return false
		}
		if isReady := stage.Ready(&found[0]); ready == "ready" && !isReady || ready == "not ready" && isReady {
			return false
		}
		s.Call(name, found[0].Name)
		return true
	})
}
