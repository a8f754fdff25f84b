// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/view"
)

// hostile has characters that a terminal obeys: they clear the screen, set the title, and reverse the
// text. Its last line imitates one of the plugin.
const hostile = "\x1b[2J\x1b]0;owned\x07\u009b31m\u202e\r\b\x9b\tx\nNothing is wrong."

// spoil appends hostile text to the fields of an object that hold words of others.
func spoil(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			spoil(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			spoil(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if key.String() == "kubernetes.io/change-cause" {
				v.SetMapIndex(key, reflect.ValueOf(v.MapIndex(key).String()+hostile))
			}
		}
	case reflect.Struct:
		spoilFields(v)
	}
}

func spoilFields(v reflect.Value) {
	for i := range v.NumField() {
		field, name := v.Field(i), v.Type().Field(i).Name
		switch {
		case !field.CanSet():
		case field.Kind() == reflect.String && slices.Contains([]string{"Message", "Name", "Image", "NodeName", "ID", "Error"}, name):
			field.SetString(field.String() + hostile)
		default:
			spoil(field)
		}
	}
}

func spoiled[T any](objects []T) []T {
	for _, o := range objects {
		spoil(reflect.ValueOf(o))
	}
	return objects
}

// checkPrintable checks that a terminal obeys nothing in the output, and that no line begins with text
// of others.
func checkPrintable(t *testing.T, what, text string) {
	t.Helper()
	obeyed := func(r rune) bool { return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) }
	if i := strings.IndexFunc(text, obeyed); i >= 0 || strings.Contains(text, "\nNothing") || strings.Contains(text, "\x9b") {
		t.Errorf("%s prints %q", what, text[max(i-40, 0):])
	}
	if !strings.Contains(text, "owned") {
		t.Errorf("%s prints nothing of the attacker: %q", what, text)
	}
}

// TestNothingIsObeyed is an attack: a user who may write objects, or an API server or a registry whose
// answers are repeated, puts escape sequences into texts that an admin prints.
func TestNothingIsObeyed(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		all := spoiled(read(t, file))
		o := view.Gather(noon, all[slices.IndexFunc(all, view.IsWorkload)], all)
		w := view.Of(o)
		for what, print := range map[string]func(*page){
			"status": func(p *page) { p.status(&w, noon) },
			"names":  func(p *page) { p.format = "name"; _ = p.print(&w, noon) },
			"wide":   func(p *page) { p.format = "wide"; p.status(&w, noon) },
			"why":    func(p *page) { p.why(&w, target{kindCloneSet, w.Name}, noon) },
		} {
			var out bytes.Buffer
			print(&page{out: &out})
			if strings.Contains(out.String(), "owned") || what != "why" && out.Len() > 0 {
				checkPrintable(t, what+" of "+file, out.String())
			}
		}
	}
	broken, diff := spoiled(read(t, "testdata/doctor/broken.yaml")), spoiled(read(t, "testdata/registry/diff.yaml"))
	v := view.OfRegistry(noon, view.Each[*usherv1alpha1.Registry](diff)[0], []view.Namespace{{Name: "shop", Objects: diff}})
	revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "web-1" + hostile}, Data: runtime.RawExtension{
		Raw: []byte(`{"spec":{"template":{"$patch":"replace","spec":{"containers":[{"name":"\u202eowned","image":"a\u2066"}]}}}}`)}}
	empty := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(`{"spec":{"template":{"spec":{"containers":[]}}}}`)}}
	for what, print := range map[string]func(*page){
		"doctor": func(p *page) {
			p.findings(view.Examine(view.Clock{Now: noon}, view.Read{All: broken, Namespace: hostile, Partly: []string{"Pod"}}))
		},
		"registry": func(p *page) { p.registry(&v, noon, true) },
		"history": func(p *page) {
			p.history([]view.Revision{{Name: hostile, Cause: hostile, Images: []string{hostile}}}, noon)
		},
		"diff": func(p *page) { checktest.NoError(t, p.diff(empty, revision)) },
		"a change": func(p *page) {
			(&session{IOStreams: genericiooptions.IOStreams{Out: p.out}}).did("clone/%s %s", hostile, hostile)
		},
		"an error": func(p *page) { complain(p.out, errors.New(hostile)) },
	} {
		var out bytes.Buffer
		print(&page{out: &out})
		checkPrintable(t, what, strings.ReplaceAll(out.String(), "\t", " ")) // tabs are harmless
	}
}

// TestNothingIsObeyedInTheShell: a shell completes names that others chose.
func TestNothingIsObeyedInTheShell(t *testing.T) {
	offered := names(func(context.Context, []string, string) []string { return []string{"1\t" + hostile, "2" + hostile} })
	command := &cobra.Command{}
	command.SetContext(t.Context())
	words, _ := offered.offer(command, nil, "")
	for _, word := range words {
		checkPrintable(t, "completion", strings.Replace(word, "\t", " ", 1)) // the shell's separator
	}
}
