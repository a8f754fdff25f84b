// SPDX-License-Identifier: Apache-2.0

package scene

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/fragment"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// words are about any object, which a step calls KIND/NAME.
var words = []scenariotest.Word[*Scene]{
	{Name: "create", Args: "PROP",
		Does: "creates an object of testdata/props.yaml; each deeper line is a merge patch of it",
		Run: func(s *Scene, rest string) {
			lines := strings.Split(rest, "\n")
			s.Make(s.Prop(lines[0], lines[1:]...))
		}},
	{Name: "patch", Args: "KIND/NAME PATCH", Does: "changes an object by a merge patch",
		Run: func(s *Scene, rest string) { ref, patch := cut(rest); s.Change(s.Ref(ref), "%s", patch) }},
	{Name: "delete", Args: "KIND/NAME [--cascade=background|foreground|orphan]",
		Does: "deletes an object, and what it owns as its kind does it if no policy is named",
		Run: func(s *Scene, rest string) {
			ref, how := cut(rest)
			s.Must(s.Delete(s.Context(), s.Ref(ref), cascade(how)...))
		}},
	{Name: "wait for deletion of", Args: "KIND/NAME", Does: "waits until the object does not exist",
		Run: func(s *Scene, ref string) { s.Gone(s.Ref(ref)) }},
	{Name: "wait for", Args: "KIND/NAME FIELDS",
		Does: "waits until the object has these fields; lists of objects may have more elements",
		Run:  func(s *Scene, rest string) { ref, document := cut(rest); s.Has(s.Ref(ref), document) }},
	{Name: "has", Args: "KIND/NAME FIELDS", Does: "fails unless the object has these fields now",
		Run: func(s *Scene, rest string) {
			ref, document := cut(rest)
			object := s.Ref(ref)
			s.Read(object)
			s.Same("what is wrong with "+ref, s.lacks(object, document), "")
		}},
	{Name: "wait for every Pod", Args: "FIELDS", Does: "waits until all Pods have these fields",
		Run: (*Scene).everyPodHas},
	{Name: "columns", Args: "API RESOURCE",
		Does: "waits until kubectl get shows the only object of the kind with these columns, one in a " +
			"deeper line, and their values if there are any",
		Run: (*Scene).columns},
	{Name: "may patch", Args: "KIND/NAME PATCH",
		Does: "tries a change that the API server has to accept, without making it",
		Run:  func(s *Scene, rest string) { s.Must(s.tryChange(rest)) }},
	{Name: "may not patch", Args: "KIND/NAME PATCH because TEXT",
		Does: "tries a change that the API server has to refuse with this text",
		Run:  (*Scene).refuses},
	{Name: "wait for refusal of", Args: "KIND/NAME PATCH",
		Does: "waits until the API server refuses the change: it learns of a new policy a moment late",
		Run: func(s *Scene, change string) {
			s.Await("a refusal of "+change, func() bool { return apierrors.IsInvalid(s.tryChange(change)) })
		}},
	{Name: "wait for acceptance of", Args: "KIND/NAME PATCH",
		Does: "waits until the API server no longer refuses the change",
		Run: func(s *Scene, change string) {
			s.Await("an end of refusals of "+change, func() bool { return s.tryChange(change) == nil })
		}},
	{Name: "no Pod gets", Args: "KEY KEY",
		Does: "begins to watch Pods for labels and finalizers, which may not even be there for a moment",
		Run:  (*Scene).watchKeys},
	{Name: "no Pod got any",
		Does: "waits until the watch has seen all Pods as they are, and fails if any had such a key",
		Run:  func(s *Scene, _ string) { s.marks.none(s) }},
	{Name: "wait for condition", Args: "KIND/NAME TYPE STATUS [TEXT | TEXT]",
		Does: "waits for a condition with this status, or with any, whose reason and message contain " +
			"the texts",
		Run: func(s *Scene, rest string) {
			ref, rest := cut(rest)
			kind, rest := cut(rest)
			status, texts := cut(rest)
			s.Condition(s.Ref(ref), kind, metav1.ConditionStatus(strings.TrimPrefix(status, "any")), Texts(texts)...)
		}},
	{Name: "wait for event", Args: "REASON [TEXT | TEXT]",
		Does: "waits for an event of the reason whose note contains the texts",
		Run:  func(s *Scene, rest string) { reason, texts := cut(rest); s.Event(nil, reason, Texts(texts)...) }},
	{Name: "wait for event of", Args: "KIND/NAME REASON [TEXT | TEXT]",
		Does: "waits for such an event about the object",
		Run:  func(s *Scene, rest string) { s.eventOf(rest) }},
	{Name: "wait for warning of", Args: "KIND/NAME REASON [TEXT | TEXT]",
		Does: "waits for such an event about the object, which has to be a warning",
		Run:  func(s *Scene, rest string) { s.Same("the type", s.eventOf(rest).Type, corev1.EventTypeWarning) }},
}

// Words adds to the words of a story those of its scene.
func Words[S any](scene func(S) *Scene, own []scenariotest.Word[S]) []scenariotest.Word[S] {
	return slices.Concat(own, list.Map(words, func(word scenariotest.Word[*Scene]) scenariotest.Word[S] {
		run := func(story S, args string) { word.Run(scene(story), args) }
		return scenariotest.Word[S]{Name: word.Name, Args: word.Args, Does: word.Does, Run: run}
	}))
}

// cascade are the options of a deletion with a flag as kubectl has it, or without one.
func cascade(flag string) (options []client.DeleteOption) {
	how, ok := strings.CutPrefix(flag, "--cascade=")
	if ok && how != "" {
		options = append(options, client.PropagationPolicy(strings.ToUpper(how[:1])+how[1:]))
	}
	return options
}

// cut cuts off the first word, which a space or the end of a line follows.
func cut(text string) (first, rest string) {
	text = strings.TrimSpace(text)
	if end := strings.IndexAny(text, " \n"); end >= 0 {
		return text[:end], text[end+1:]
	}
	return text, ""
}

// Texts are those of "one | the other".
func Texts(text string) []string { return list.Map(strings.Split(text, " | "), strings.TrimSpace) }

func (s *Scene) props() (all map[string]json.RawMessage) {
	s.Helper()
	text := checktest.Must(os.ReadFile("testdata/props.yaml"))(s)
	s.Must(yaml.Unmarshal([]byte(s.Expand(string(text))), &all))
	return all
}

// Prop is an object of testdata/props.yaml, changed by merge patches.
func (s *Scene) Prop(name string, patches ...string) *unstructured.Unstructured {
	s.Helper()
	return s.Object(string(s.props()[name]), patches...)
}

// Ref is the object called KIND/NAME, of the version that the props have of its kind, or of v1.
func (s *Scene) Ref(ref string) *unstructured.Unstructured {
	s.Helper()
	kind, name, _ := strings.Cut(ref, "/")
	version := "v1"
	for _, prop := range s.props() {
		var of metav1.TypeMeta
		s.Must(json.Unmarshal(prop, &of))
		if of.Kind == kind {
			version = of.APIVersion
		}
	}
	return s.Object(fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: %q}}", version, kind, name))
}

// Has waits until an object has the fields of a YAML document.
func (s *Scene) Has(object client.Object, document string) {
	s.Helper()
	s.Until(fmt.Sprintf("%T %s to have %s", object, object.GetName(), document), func() string {
		s.Read(object)
		return s.lacks(object, document)
	})
}

// everyPodHas is Has for all Pods that there are.
func (s *Scene) everyPodHas(document string) {
	s.Until("every Pod to have "+document, func() string {
		for _, pod := range s.Pods() {
			if lacks := s.lacks(&pod, document); lacks != "" {
				return lacks
			}
		}
		return ""
	})
}

// lacks describes an object that does not have the fields of a YAML document.
func (s *Scene) lacks(object client.Object, document string) string {
	s.Helper()
	lacks := checktest.Must(fragment.Lacks(object, document))(s)
	return registrytest.Unless(lacks == "", object.GetName()+": "+lacks)
}

// columns is "API RESOURCE", and below it the columns of kubectl get in their order, for the only object of
// the kind. It waits for their values, except where none is said.
func (s *Scene) columns(rest string) {
	lines := strings.Split(rest, "\n")
	api, resource := cut(lines[0])
	want := list.Map(lines[1:], strings.TrimSpace)
	s.Until("the columns", func() string {
		table, have := s.Table(api, resource), []string{}
		if len(table.Rows) != 1 {
			return fmt.Sprintf("are those of %d objects", len(table.Rows))
		}
		for i, column := range table.ColumnDefinitions {
			have = append(have, strings.Repeat("wide ", int(column.Priority))+column.Name)
			if !slices.Contains(want, have[i]) {
				have[i] += fmt.Sprintf(": %v", table.Rows[0].Cells[i])
			}
		}
		return registrytest.Unless(slices.Equal(have, want), fmt.Sprintf("are %q, want %q", have, want))
	})
}

// tryChange is "KIND/NAME PATCH", as a dry run.
func (s *Scene) tryChange(rest string) error {
	ref, patch := cut(rest)
	return s.Patch(s.Context(), s.Ref(ref), s.MergePatch("%s", patch), client.DryRunAll)
}

func (s *Scene) refuses(rest string) {
	change, why, _ := strings.Cut(rest, " because ")
	if err := s.tryChange(change); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), why) {
		s.Errorf("%s: %v, want a refusal because %s", change, err, why)
	}
}

// eventOf waits for "KIND/NAME REASON TEXT | TEXT".
func (s *Scene) eventOf(rest string) eventsv1.Event {
	ref, rest := cut(rest)
	reason, texts := cut(rest)
	about := s.Ref(ref)
	s.Read(about)
	return s.Event(about, reason, Texts(texts)...)
}

// marks are what a watch has seen of the Pods of a story.
type marks struct {
	mu sync.Mutex
	// seen are the versions of Pods that it has seen, and found the Pods that have had a key.
	seen  map[string]bool
	found []string
}

// watchKeys begins to watch for Pods that have one of these labels or finalizers. A Pod that has it for
// a moment is found, too.
func (s *Scene) watchKeys(keys string) {
	var before corev1.PodList
	s.All(&before)
	watching := checktest.Must(s.Watch(s.Context(), &corev1.PodList{}, client.InNamespace(s.Namespace),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: before.ResourceVersion}}))(s)
	s.Cleanup(watching.Stop)
	m := &marks{seen: map[string]bool{}}
	s.marks = m
	for i := range before.Items {
		m.see(&before.Items[i], strings.Fields(keys))
	}
	go func() {
		for event := range watching.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				m.see(pod, strings.Fields(keys))
			}
		}
	}()
}

func (m *marks) see(pod *corev1.Pod, keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen[pod.ResourceVersion] = true
	for _, key := range keys {
		if _, labelled := pod.Labels[key]; labelled || slices.Contains(pod.Finalizers, key) {
			m.found = append(m.found, fmt.Sprintf("Pod %s has %s in version %s", pod.Name, key, pod.ResourceVersion))
		}
	}
}

// none waits until the watch has seen the Pods as they are now, and fails if one of them ever had a key.
func (m *marks) none(s *Scene) {
	s.Await("the watch to see all Pods as they are", func() bool {
		pods := s.Pods()
		m.mu.Lock()
		defer m.mu.Unlock()
		return !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return !m.seen[pod.ResourceVersion] })
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Same("Pods that got a key", m.found, []string(nil))
}
