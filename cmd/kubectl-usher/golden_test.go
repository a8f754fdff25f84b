// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/view"
)

var update = flag.Bool("update", false, "write the golden files")

// TestGolden prints what is in testdata/*.yaml as status and why do, at noon.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			o := objects(t, file)
			w := view.Of(o)
			var out bytes.Buffer
			p := &page{out: &out}
			p.status(&w, o.Now, false)
			p.line(plain, "\n# why")
			p.why(&w, target{kindCloneSet, w.Name}, o.Now)
			golden := strings.TrimSuffix(file, "yaml") + "txt"
			if *update {
				if err := os.WriteFile(golden, out.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("%s (-want +got); go test . -update writes it:\n%s", golden, diff)
			}
		})
	}
}

// objects reads the documents of a file.
func objects(t *testing.T, file string) view.Objects {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o := view.Objects{Now: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return o
		}
		if err != nil {
			t.Fatal(err)
		}
		add(t, &o, document)
	}
}

func add(t *testing.T, o *view.Objects, document []byte) {
	t.Helper()
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		t.Fatal(err)
	}
	switch kind.Kind {
	case "CloneSet":
		o.Set = decode[apps.CloneSet](t, document)
	case "ControllerRevision":
		o.Revisions = append(o.Revisions, decode[appsv1.ControllerRevision](t, document))
	case "Registration":
		o.Registrations = append(o.Registrations, decode[usherv1alpha1.Registration](t, document))
	case "Pod":
		o.Pods = append(o.Pods, decode[corev1.Pod](t, document))
	case "Summary":
		o.Other = *decode[view.Summary](t, document)
		o.Other.Kind = "Deployment"
	default:
		t.Fatalf("%q in %s", kind.Kind, document)
	}
}

func decode[T any](t *testing.T, document []byte) *T {
	t.Helper()
	var out T
	if err := yaml.UnmarshalStrict(document, &out); err != nil {
		t.Fatalf("%v in %s", err, document)
	}
	return &out
}
