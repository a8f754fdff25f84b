// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"os"
	"strings"
	"testing"
	"time"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// TestTheExampleOfThePackage carries out the plans of the package comment's example. Lines
// of plans are indented there by twelve spaces.
func TestTheExampleOfThePackage(t *testing.T) {
	text := checktest.Must(os.ReadFile("doc.go"))(t)
	var want, have []string
	_, example, _ := strings.Cut(string(text), "An example:")
	for line := range strings.Lines(example) {
		if step, ok := strings.CutPrefix(line, "//\t            "); ok {
			want = append(want, strings.TrimSpace(step))
		}
	}
	f := newFixture()
	added := f.add("new", appsv1alpha1.StateNormal).label(keyCreated, "true")
	old := f.add("old", appsv1alpha1.StatePreparingUpdate).registered("discovery")
	next := func() Plan {
		p := Make(f.Snapshot)
		have = append(have, render(p)...)
		return p
	}
	next()
	added.finalizers(usherv1alpha1.Finalizer).named("nginx")
	next()
	f.Listings[target("discovery")] = Listing{Entries: []registry.Entry{}}
	added.in("discovery")
	p := next()
	old.condition(usherv1alpha1.ConditionRegistered, "False")
	old.pod.Annotations = map[string]string{usherv1alpha1.AnnotationDrain: string(encode.JSON(p.Patches[1].Drain))}
	added.label(keyCreated, "false").condition(usherv1alpha1.ConditionRegistered, "True")
	f.Now = f.Now.Add(5 * time.Second)
	next()
	checktest.Same(t, "the package comment, as the plans are,", want, have)
}
