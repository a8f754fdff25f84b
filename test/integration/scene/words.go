// SPDX-License-Identifier: Apache-2.0

package scene

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// Words adds to the words of a story those about any object, which a step calls KIND/NAME.
func Words[S any](scene func(S) *Scene, words map[string]func(S, string)) map[string]func(S, string) {
	for word, do := range map[string]func(s *Scene, rest string){
		// "make PROP", of testdata/props.yaml; each deeper line is a merge patch.
		"make": func(s *Scene, rest string) {
			lines := strings.Split(rest, "\n")
			s.Make(s.Prop(lines[0], lines[1:]...))
		},
		"change": func(s *Scene, rest string) { ref, patch := cut(rest); s.Change(s.Ref(ref), "%s", patch) },
		// "delete KIND/NAME PROPAGATION", as its kind does if none is said.
		"delete": func(s *Scene, rest string) {
			ref, how := cut(rest)
			s.Must(s.Delete(s.Context(), s.Ref(ref), &client.DeleteOptions{PropagationPolicy: propagation(how)}))
		},
		"gone": func(s *Scene, ref string) { s.Gone(s.Ref(ref)) },
		"has":  func(s *Scene, rest string) { ref, document := cut(rest); s.Has(s.Ref(ref), document) },
		// "condition KIND/NAME TYPE STATUS TEXT | TEXT", with the status "any" too.
		"condition": func(s *Scene, rest string) {
			ref, rest := cut(rest)
			kind, rest := cut(rest)
			status, texts := cut(rest)
			s.Condition(s.Ref(ref), kind, metav1.ConditionStatus(strings.TrimPrefix(status, "any")), Texts(texts)...)
		},
		"event": func(s *Scene, rest string) { reason, texts := cut(rest); s.Event(nil, reason, Texts(texts)...) },
		"event of": func(s *Scene, rest string) {
			ref, rest := cut(rest)
			reason, texts := cut(rest)
			about := s.Ref(ref)
			s.Read(about)
			s.Event(about, reason, Texts(texts)...)
		},
	} {
		words[word] = func(story S, rest string) { do(scene(story), rest) }
	}
	return words
}

func cut(text string) (first, rest string) {
	first, rest, _ = strings.Cut(strings.TrimSpace(text), " ")
	return first, rest
}

func propagation(how string) *metav1.DeletionPropagation {
	if how == "" {
		return nil
	}
	return new(metav1.DeletionPropagation(how))
}

// Texts are those of "one | the other".
func Texts(text string) (all []string) {
	for part := range strings.SplitSeq(text, " | ") {
		all = append(all, strings.TrimSpace(part))
	}
	return all
}

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
	var want map[string]any
	s.Must(yaml.Unmarshal([]byte(document), &want))
	s.Until(fmt.Sprintf("%T %s to have %s", object, object.GetName(), document), func() string {
		s.Read(object)
		fields := checktest.Must(runtime.DefaultUnstructuredConverter.ToUnstructured(object))(s)
		return registrytest.Unless(includes(fields, want), fmt.Sprintf("it is %v", fields))
	})
}

// includes reports whether fields have these values: of lists of objects some may be missing.
func includes(whole, part any) bool {
	switch part := part.(type) {
	case map[string]any:
		fields, _ := whole.(map[string]any)
		for name, want := range part {
			if !includes(fields[name], want) {
				return false
			}
		}
		return true
	case []any:
		items, _ := whole.([]any)
		return len(items) >= len(part) && !slices.ContainsFunc(part, func(want any) bool {
			return !slices.ContainsFunc(items, func(item any) bool { return includes(item, want) })
		}) && (len(items) == len(part) || slices.ContainsFunc(items, isObject))
	}
	return fmt.Sprint(whole) == fmt.Sprint(part)
}

func isObject(item any) bool {
	_, ok := item.(map[string]any)
	return ok
}
