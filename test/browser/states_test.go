// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/page"
	"github.com/usher-dev/usher/internal/view"
)

// objects are the objects of the plugin's golden outputs.
const objects = "../../cmd/kubectl-usher/testdata/"

// TestStates compares the page in states that must not look healthy with reviewed pictures, and the
// list of troubles with a text, since a missing line is few pixels; go test . -run TestStates -update
// writes both.
func TestStates(t *testing.T) {
	files := checktest.Must(filepath.Glob(objects + "states/*.yaml"))(t)
	if len(files) == 0 {
		t.Fatal("no states")
	}
	files = append(files, objects+"unseen.yaml", objects+"stalled-outage.yaml", objects+"invalid.yaml")
	b := open(t, 1280, 420)
	b.stopClock()
	var texts strings.Builder
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			recorder := page.NewRecorder(noon.Add(-time.Minute), "Usher: namespace shop", time.Hour)
			shown := list.Map(view.Shown(noon, decode(t, file)), func(w view.Workload) page.Seen {
				return page.Seen{Workload: w, Actions: page.Actions(&w)}
			})
			recorder.Observe(noon, shown)
			b.show(t, recorder.Recording())
			compare(t, filepath.Join("testdata", "states", name+".png"), get(b, chromedp.CaptureScreenshot()))
			fmt.Fprintf(&texts, "%s: %s\n", name, get(b, chromedp.Evaluate[string](needs)))
		})
	}
	const golden = "testdata/states/needs.txt"
	if *update {
		checktest.NoError(t, os.WriteFile(golden, []byte(texts.String()), 0o600))
	}
	checktest.Same(t, "what needs somebody", string(checktest.Must(os.ReadFile(golden))(t)), texts.String())
}

// needs reads the phase of the first workload, and the list of troubles.
const needs = `[".phase", "#trouble"].map(one => document.querySelector(one)?.innerText ?? "").join("\n").trim() + "\n"`

// decode reads the objects of a file that the page watches: no Leases, Services and Registries.
func decode(t *testing.T, file string) (all []metav1.Object) {
	t.Helper()
	scheme := runtime.NewScheme()
	types := runtime.SchemeBuilder{
		corev1.AddToScheme, appsv1.AddToScheme, coordinationv1.AddToScheme, apps.AddToScheme, usherv1alpha1.AddToScheme,
	}
	checktest.NoError(t, types.AddToScheme(scheme))
	decoder := serializer.NewCodecFactory(scheme).UniversalDeserializer()
	for _, document := range strings.Split(string(checktest.Must(os.ReadFile(file))(t)), "\n---\n") {
		object, kind, err := decoder.Decode([]byte(document), nil, nil)
		checktest.NoError(t, err)
		if !slices.Contains([]string{"Lease", "Registry"}, kind.Kind) {
			all = append(all, object.(metav1.Object))
		}
	}
	return all
}
