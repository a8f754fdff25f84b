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
func TestStories(t *testing.T) {
	scenariotest.Stories[*story]{Files: "testdata/stories/*.txt", Words: words, Begin: begin}.Play(t)
}

// words are what a step can begin with. What is to happen is awaited.
var words = scene.Words(func(s *story) *scene.Scene { return s.Scene }, []scenariotest.Word[*story]{
	// What the controller does.
	{Name: "controller crashes", Does: "stops the controller as a crash does, and starts another one",
		Run: crash(func(*story) {})},
	{Name: "controller keeps field managers",
		Does: "starts a controller that keeps the record of who wrote a field, after a crash",
		Run:  crash(func(s *story) { s.options.KeepFieldManagers = true })},
	{Name: "images first",
		Does: "starts a controller that has nodes pull images before Pods leave service, after a crash",
		Run:  crash(func(s *story) { s.options.PullImage = "example.test/usher:v1" })},
	{Name: "resizes are unknown",
		Does: "starts a controller for API servers that cannot resize Pods, after a crash",
		Run:  crash(func(s *story) { s.options.NoResize = true })},
	{Name: "resizes are not found",
		Does: "starts a controller whose resizes the API server does not find, after a crash",
		Run:  crash(func(s *story) { s.intercept = withoutResize })},

	{Name: "resizes are forbidden", Does: "has a policy refuse all resizes",
		Run: func(s *story, _ string) { s.forbidResizes() }},
	{Name: "updates are forbidden to", Args: "IMAGE", Does: "has a policy refuse Pods an update to the image",
		Run: (*story).forbidImage},
	{Name: "another pass writes nothing",
		Does: "has the controller run a pass, which may write to no Pod and no revision",
		Run:  func(s *story, _ string) { s.unchanged() }},
	{Name: "OpenKruise leaves", Args: "STATE",
		Does: "leaves a set of OpenKruise's with one Pod in this state, and starts the controller; a " +
			"deeper line is a merge patch of the set",
		Run: (*story).takeOver},
	{Name: "handed back",
		Does: "stops the controller, checks that it has written only what OpenKruise documents, and " +
			"starts another one",
		Run: func(s *story, _ string) { s.handedBack() }},

	// What users do, with kubectl, and with OpenKruise's plugin.
	{Name: "create set", Args: "SET [PATCH]",
		Does: "creates a CloneSet of testdata/props.yaml; the steps that follow are about it",
		Run:  (*story).createFrom},
	{Name: "running", Args: "SET [PATCH]",
		Does: "creates a CloneSet, waits until all of its Pods are available, and notes them",
		Run: func(s *story, rest string) {
			s.createFrom(rest)
			s.settled(s.replicas())
			s.note()
		}},
	{Name: "image", Args: "IMAGE",
		Does: "changes the image of the template's container to example.test/IMAGE, and nothing else of " +
			"the template has containers",
		Run: (*story).image},
	{Name: "other image", Args: "IMAGE",
		Does: "changes the image, and leaves the rest of the container as it is",
		Run:  (*story).otherImage},
	{Name: "annotation of", Args: "N and image IMAGE",
		Does: "gives the template an annotation of N bytes, and another image",
		Run:  (*story).annotate},
	{Name: "volumes", Args: "N", Does: "offers N volumes for claims",
		Run: func(s *story, n string) { s.offerVolumes(scenariotest.Number(n), s.Namespace) }},
	{Name: "restricted", Does: "restricts the namespace by the Pod Security Standard of this name",
		Run: (*story).restrict},
	{Name: "apply", Args: "OBJECT", Does: "applies an object as another field manager", Run: (*story).apply},
	{Name: "template", Args: "PATCH",
		Does: "changes containers as kubectl set image, set env and set resources do, which send the " +
			"whole list",
		Run: (*story).setContainers},
	{Name: "plugin sets image", Args: "IMAGE",
		Does: "changes the image as the set image command of OpenKruise's plugin does",
		Run:  (*story).setImage},
	{Name: "write back", Args: "PATCH",
		Does: "changes the template as a client with its own types does, which sends the whole object",
		Run:  (*story).writeBack},
	{Name: "migrate", Args: "N",
		Does: "creates a CloneSet with N replicas from the Deployment, as OpenKruise's plugin does",
		Run:  (*story).migrate},
	{Name: "scale", Args: "N", Does: "scales the set through its subresource",
		Run: func(s *story, n string) { s.scaleTo(s.set(), int32(scenariotest.Number(n))) }},
	{Name: "scale Deployment", Args: "N", Does: "scales the Deployment through its subresource",
		Run: func(s *story, n string) { s.scaleTo(s.deployment(), int32(scenariotest.Number(n))) }},
	{Name: "moved", Args: "N and M",
		Does: "waits until the set has N available Pods and the Deployment M, and never fewer than 4 " +
			"together",
		Run: (*story).moved},
	{Name: "load", Args: "N[ and M]",
		Does: "has the Pods in service take N milliCPU together, each other Pod M, and a queue hold N " +
			"thousandths; the autoscaler learns that",
		Run: (*story).carry},
	{Name: "undo", Args: "[REVISION]",
		Does: "rolls back as OpenKruise's plugin does: to the revision of this number, or to the one before",
		Run:  (*story).undo},

	// What becomes of the set.
	{Name: "settled", Args: "N", Does: "waits until the set has N Pods, all updated and available",
		Run: func(s *story, n string) { s.settled(int32(scenariotest.Number(n))) }},
	{Name: "status", Args: "FIELDS",
		Does: "waits until the status of the present generation has these fields",
		Run:  (*story).reports},
	{Name: "autoscaler keeps", Args: "N",
		Does: "waits until the autoscaler has seen what is now, and fails unless the set has N replicas",
		Run:  (*story).autoscalerKeeps},
	{Name: "nothing is left", Does: "waits until the set's Pods and revisions are gone",
		Run: func(s *story, _ string) { s.nothingLeft() }},
	{Name: "at most", Args: "N events", Does: "fails if there are more events about the set",
		Run: (*story).fewEvents},
	{Name: "rollout", Args: "TEXT",
		Does: "waits for the end of the rollout, of which rollout status has to print this",
		Run:  func(s *story, want string) { s.Same("rollout", s.rolloutStatus(), want) }},

	// Its revisions.
	{Name: "revision", Args: "NAME", Does: "gives a name to the update revision",
		Run: func(s *story, name string) {
			s.observed()
			s.Call(name, s.set().Status.UpdateRevision)
		}},
	{Name: "revisions", Args: "NAME NAME", Does: "waits until these revisions are there, and no others",
		Run: (*story).keepsRevisions},
	{Name: "history", Args: "N IMAGE, N IMAGE", Does: "fails unless rollout history shows these revisions",
		Run: func(s *story, want string) { s.Same("history", s.chronicle(), want) }},
	{Name: "causes", Args: "N CAUSE, N CAUSE",
		Does: "fails unless rollout history shows these causes of changes",
		Run:  func(s *story, want string) { s.Same("causes", s.causes(), want) }},
	{Name: "asked for", Args: "N revisions", Does: "fails unless the controller has tried to create so many",
		Run: func(s *story, want string) { s.Same("asked for", fmt.Sprint(s.created.Load(), " revisions"), want) }},
	{Name: "at its newest revision",
		Does: "fails unless OpenKruise's plugin would find the template to be the newest revision",
		Run:  func(s *story, _ string) { s.showsNewest() }},

	// Its Pods and claims. A note is what they are compared with later.
	{Name: "nothing is written",
		Does: "fails if a Pod or revision has another version than when it was noted",
		Run:  func(s *story, _ string) { s.Same("versions", s.versions(), s.noted.versions) }},
	{Name: "the Pod", Args: "is kept with N restarts | goes",
		Does: "answers hooks and acts as a kubelet until the only Pod is as the set wants it",
		Run:  (*story).ends},
	{Name: "run", Args: "TAG CPU MEMORY",
		Does: "fails unless all Pods run with this tag of the image and these requests",
		Run:  (*story).run},
	{Name: "as in the template", Does: "fails unless all Pods are what the template says",
		Run: func(s *story, _ string) { s.carryTemplate() }},
	{Name: "note", Does: "notes Pods, claims and revisions, with which later steps compare",
		Run: func(s *story, _ string) { s.note() }},
	{Name: "same Pods", Does: "fails unless the Pods are those that were noted",
		Run: func(s *story, _ string) { s.Same("Pods", s.identities(), s.noted.pods) }},
	{Name: "same labels", Does: "fails unless the Pods have the labels that were noted",
		Run: func(s *story, _ string) { s.Same("labels", s.podLabels(), s.noted.labels) }},
	{Name: "new Pods", Does: "fails if a Pod was noted", Run: func(s *story, _ string) { s.newPods() }},
	{Name: "same claims", Does: "fails unless the claims are those that were noted",
		Run: func(s *story, _ string) { s.Same("claims", s.claims(), s.noted.claims) }},
	{Name: "same revisions", Does: "fails unless the revisions are those that were noted",
		Run: func(s *story, _ string) { s.Same("revisions", s.revisionNames(), s.noted.revisions) }},
	{Name: "restarts", Args: "N N",
		Does: "fails unless the Pods' containers have restarted so often, the fewest first; N+M of a " +
			"Pod with two",
		Run: func(s *story, want string) { s.Same("restarts", s.restarts(), want) }},
	{Name: "managed Pods:", Args: "NAME NAME",
		Does: "fails unless these Pods have a record of who wrote their fields, or none",
		Run:  func(s *story, want string) { s.Same("managed", cmp.Or(strings.Join(s.managed(), " "), "none"), want) }},
	{Name: "Pods unwritten", Args: "N", Does: "fails unless N Pods have the versions that were noted",
		Run: func(s *story, want string) { s.Same("unwritten", s.unwritten(), want) }},
	{Name: "Pods ready", Args: "N with IMAGE", Does: "fails unless N Pods with the image are ready",
		Run: (*story).podsReady},
	{Name: "Pods are", Args: "NAME NAME", Does: "gives names to the Pods, in their order",
		Run: (*story).namePods},
	{Name: "Pod", Args: "NAME is STATE[, ready] | NAME is gone | NAME has image IMAGE | NAME gets LABEL=VALUE",
		Does: "waits for one Pod in a lifecycle state, which gets the name if nothing has it; or waits " +
			"until it is deleted, checks its image, or labels it as an operator does",
		Run: (*story).aboutPod},
	{Name: "a Pod beside", Args: "POD pulls IMAGE",
		Does: "waits for another Pod on the node of this one that pulls the image, and names it pull",
		Run:  (*story).pulls},
	{Name: "claims", Args: "N",
		Does: "waits until there are N claims, and fails unless each Pod mounts its own",
		Run:  (*story).paired},
	{Name: "claim of", Args: "POD has FIELDS", Does: "waits until the Pod's claim has these fields",
		Run: (*story).aboutClaim},
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
