// SPDX-License-Identifier: Apache-2.0

package scene

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/scenariotest"
)

const (
	// Patience bounds every wait of a story.
	Patience = 2 * time.Minute
	// Poll is how often a condition is checked.
	Poll = 20 * time.Millisecond
)

// Scene is a story with a namespace of its own.
type Scene struct {
	*testing.T
	*Plane
	scenariotest.Names
	scenariotest.Printer
	Namespace string
	marks     *marks
}

// Begin creates the namespace of a story.
func (p *Plane) Begin(t *testing.T) *Scene {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "story-"}}
	checktest.NoError(t, p.Create(registrytest.Bounded(t), namespace))
	s := &Scene{T: t, Plane: p, Namespace: namespace.Name}
	s.Call("namespace", s.Namespace)
	return s
}

// Must ends the story if there is an error.
func (s *Scene) Must(err error) {
	s.Helper()
	checktest.NoError(s.T, err)
}

// Manage runs a manager until stop, or the end of the story: like a crash, it loses everything
// in memory.
func (s *Scene) Manage(config *rest.Config, o ctrl.Options, setUp func(context.Context, ctrl.Manager) error) (stop func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended, err := s.Plane.Manage(ctx, config, o, setUp)
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.Errorf("the manager ended with: %v", err)
		}
	})
	s.Must(err)
	s.Cleanup(stop)
	return stop
}

// Same compares what there is with what is to be there, as text.
func (s *Scene) Same(what string, have, want any) {
	s.Helper()
	if fmt.Sprint(have) != fmt.Sprint(want) {
		s.Errorf("%s: %v, want %v\n%s", what, have, want, s.Picture())
	}
}

// Table is what kubectl shows of the objects of a kind in the story's namespace, such as
// "apps.kruise.io/v1alpha1" and "clonesets".
func (s *Scene) Table(api, resource string) (table metav1.Table) {
	s.Helper()
	kube := checktest.Must(kubernetes.NewForConfig(s.RESTConfig()))(s)
	answer := kube.RESTClient().Get().AbsPath("/apis", api, "namespaces", s.Namespace, resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	s.Must(json.Unmarshal(checktest.Must(answer.DoRaw(s.Context()))(s), &table))
	return table
}

// Until waits until nothing is missing. A story that waits in vain shows its objects.
func (s *Scene) Until(what string, missing func() string) {
	s.Helper()
	lacks := ""
	err := wait.PollUntilContextTimeout(s.Context(), Poll, Patience, true, func(context.Context) (bool, error) {
		lacks = missing()
		return lacks == "", nil
	})
	if err != nil {
		s.Fatalf("waited %s for %s: %s\n%s", Patience, what, lacks, s.Picture())
	}
}

// Await waits until something holds that has nothing to say.
func (s *Scene) Await(what string, holds func() bool) {
	s.Helper()
	s.Until(what, func() string { return registrytest.Unless(holds(), "it is not so") })
}

// Stays checks for some time that nothing is wrong.
func (s *Scene) Stays(what string, during time.Duration, wrong func() string) {
	s.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); <-time.After(Poll) {
		if wrong := wrong(); wrong != "" {
			s.Fatalf("%s: %s", what, wrong)
		}
	}
}

// Parse parses one object and applies JSON merge patches, which are YAML too.
func Parse(text string, patches ...string) (*unstructured.Unstructured, error) {
	object, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%w in\n%s", err, text)
	}
	for _, patch := range patches {
		change, err := yaml.YAMLToJSON([]byte(patch))
		if err == nil {
			object, err = jsonpatch.MergePatch(object, change)
		}
		if err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, patch)
		}
	}
	out := &unstructured.Unstructured{}
	return out, out.UnmarshalJSON(object)
}

// Object is an object of the story's namespace.
func (s *Scene) Object(text string, patches ...string) *unstructured.Unstructured {
	s.Helper()
	object := checktest.Must(Parse(text, patches...))(s)
	object.SetNamespace(s.Namespace)
	return object
}

// Make creates objects, in the story's namespace unless they have another. Their UIDs are then called
// "uid of NAME".
func (s *Scene) Make(objects ...client.Object) {
	s.Helper()
	for _, object := range objects {
		object.SetNamespace(cmp.Or(object.GetNamespace(), s.Namespace))
		s.Must(s.Create(s.Context(), object))
		s.Call("uid of "+object.GetName(), string(object.GetUID()))
	}
}

// Read reads an object again.
func (s *Scene) Read(object client.Object) {
	s.Helper()
	s.Must(s.Get(s.Context(), client.ObjectKeyFromObject(object), object))
}

// All reads the story's objects of a kind.
func (s *Scene) All(into client.ObjectList) {
	s.Helper()
	s.Must(s.List(s.Context(), into, client.InNamespace(s.Namespace)))
}

// MergePatch is a merge patch from YAML.
func (s *Scene) MergePatch(format string, args ...any) client.Patch {
	s.Helper()
	data := checktest.Must(yaml.YAMLToJSON(fmt.Appendf(nil, format, args...)))(s)
	return client.RawPatch(types.MergePatchType, data)
}

// Change changes an object by a merge patch, whatever its version.
func (s *Scene) Change(object client.Object, format string, args ...any) {
	s.Helper()
	s.Must(s.Patch(s.Context(), object, s.MergePatch(format, args...)))
}

// Pod reads a Pod.
func (s *Scene) Pod(name string) *corev1.Pod {
	s.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
	s.Read(pod)
	return pod
}

// Pods lists the story's Pods by name.
func (s *Scene) Pods() []corev1.Pod {
	s.Helper()
	var list corev1.PodList
	s.All(&list)
	return list.Items
}

// Gone waits until an object does not exist.
func (s *Scene) Gone(object client.Object) {
	s.Helper()
	s.Until("the end of "+object.GetName(), func() string {
		err := s.Get(s.Context(), client.ObjectKeyFromObject(object), object)
		s.Must(client.IgnoreNotFound(err))
		return registrytest.Unless(err != nil, fmt.Sprintf("it is held by %v", object.GetFinalizers()))
	})
}

// Conditions reads the conditions of an object.
func (s *Scene) Conditions(object client.Object) []metav1.Condition {
	s.Helper()
	s.Read(object)
	var has struct {
		Status struct{ Conditions []metav1.Condition }
	}
	s.Must(json.Unmarshal(encode.JSON(object), &has))
	return has.Status.Conditions
}

// Condition waits until an object has a condition with the status ("" is any), and with all
// texts in "reason: message".
func (s *Scene) Condition(object client.Object, kind string, status metav1.ConditionStatus, texts ...string) {
	s.Helper()
	s.Until(fmt.Sprintf("%s of %s to be %s with %q", kind, object.GetName(), cmp.Or(status, "there"), texts), func() string {
		c := apimeta.FindStatusCondition(s.Conditions(object), kind)
		fits := c != nil && (status == "" || c.Status == status) && Contains(c.Reason+": "+c.Message, texts)
		return registrytest.Unless(fits, fmt.Sprintf("it is %+v", c))
	})
}

// Events lists the events of a reason ("" is any) about an object (nil is any).
func (s *Scene) Events(object client.Object, reason string) []eventsv1.Event {
	s.Helper()
	var list eventsv1.EventList
	s.All(&list)
	return slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool {
		return object != nil && e.Regarding.UID != object.GetUID() || reason != "" && e.Reason != reason
	})
}

// Event waits for an event of a reason about an object (nil is any) with all texts in its note, which is
// short.
func (s *Scene) Event(object client.Object, reason string, texts ...string) (found eventsv1.Event) {
	s.Helper()
	s.Until(fmt.Sprintf("event %s with %q", reason, texts), func() string {
		all := s.Events(object, reason)
		i := slices.IndexFunc(all, func(e eventsv1.Event) bool { return Contains(e.Note, texts) })
		if i >= 0 {
			found = all[i]
		}
		return registrytest.Unless(i >= 0, fmt.Sprintf("it is none of %d of that reason", len(all)))
	})
	if len(found.Note) > 500 {
		s.Errorf("the event has %d bytes: %s", len(found.Note), found.Note)
	}
	return found
}

// Contains reports whether a text contains all the parts.
func Contains(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// Picture describes the story's objects, for one that fails.
func (s *Scene) Picture() string {
	var sets appsv1alpha1.CloneSetList
	var registrations usherv1alpha1.RegistrationList
	for _, list := range []client.ObjectList{&sets, &registrations} {
		_ = s.List(s.Context(), list, client.InNamespace(s.Namespace)) // What cannot be listed is left out.
	}
	var b strings.Builder
	for _, set := range sets.Items {
		fmt.Fprintf(&b, "CloneSet %s: %s\n", set.Name, encode.JSON(set.Status))
	}
	for _, r := range registrations.Items {
		fmt.Fprintf(&b, "Registration %s: %s\n", r.Name, encode.JSON(r.Status))
	}
	for _, pod := range s.Pods() {
		fmt.Fprintf(&b, "Pod %s labels %v finalizers %v phase %s conditions", pod.Name, pod.Labels, pod.Finalizers, pod.Status.Phase)
		for _, c := range pod.Status.Conditions {
			fmt.Fprintf(&b, " %s=%s", c.Type, c.Status)
		}
		b.WriteString("\n")
	}
	return b.String()
}
