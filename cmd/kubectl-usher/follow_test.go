// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/view"
)

// TestOverview lists the workloads of two namespaces, trouble first.
func TestOverview(t *testing.T) {
	const file = "testdata/overview/all.yaml"
	all := read(t, file)
	for _, other := range []string{"rollout", "stalled-outage"} {
		some := read(t, "testdata/"+other+".yaml")
		for _, object := range some {
			object.SetNamespace(other)
		}
		all = append(all, some...)
	}
	found := view.Shown(noon, all)
	worstFirst(found)
	var out bytes.Buffer
	p := &page{out: &out}
	p.overview(found, true, noon)
	p.line(plain, "\n# of one namespace")
	p.overview(list.Only(found, func(w view.Workload) bool { return w.Namespace == "shop" }), false, noon)
	compare(t, file, out.String())
}

// TestChanges prints the changes of a rollout to a pipe, none twice.
func TestChanges(t *testing.T) {
	const file = "testdata/changes/rollout.yaml"
	o := objects(t, "testdata/rollout.yaml")
	var out bytes.Buffer
	printed := &changes{}
	print := func(seconds int) {
		w := view.Of(o)
		printed.print(&page{out: &out}, &w, noon.Add(time.Duration(seconds)*time.Second))
	}
	print(0)
	o.Now = o.Now.Add(time.Second)
	print(1) // times alone have changed
	pod := list.Find(o.Pods, func(p **corev1.Pod) bool { return (*p).Name == "web-c" })
	(*pod).Labels[apps.LabelLifecycleState] = string(apps.StateUpdating)
	print(2)
	o.Pods = slices.DeleteFunc(o.Pods, func(p *corev1.Pod) bool { return p.Name == "web-b" })
	print(3)
	o.Set.Spec.UpdateStrategy.Paused = true
	print(4)
	compare(t, file, out.String())
}

// TestVerdict: whether each phase ends a wait, and with which error.
func TestVerdict(t *testing.T) {
	for phase, want := range map[view.Phase]string{
		view.PhaseDone: "over", view.PhaseUpdating: "goes on", view.PhasePaused: "over: clone/web is paused",
		view.PhaseStalled:  "over: clone/web is Stalled: 1 of 3 updated, 2 of 3 available; kubectl usher why clone/web -n shop",
		view.PhaseDegraded: "over: clone/web is Degraded: 1 of 3 updated",
		view.PhaseInvalid:  "over: clone/web is Invalid", view.PhaseDeleting: "over: clone/web is being deleted",
	} {
		over, err := verdictOn(&view.Workload{Summary: view.Summary{
			Kind: "CloneSet", Namespace: "shop", Name: "web", Phase: phase, Desired: 3, Available: 2, ToUpdate: 3, Updated: 1,
		}})
		got := map[bool]string{true: "over", false: "goes on"}[over]
		if err != nil {
			got += ": " + err.Error()
		}
		if !strings.HasPrefix(got, want) || err == nil && got != want {
			t.Errorf("%s: %s, want %s", phase, got, want)
		}
	}
	w := view.SummaryOf(read(t, "testdata/overview/all.yaml")[0])
	checktest.Same(t, "a Deployment past its deadline", view.PhaseStalled, w.Phase)
}

// TestNoAnswer: while the API server does not answer, the plugin reports that, and does not show the
// last answer as the present state: not on a screen, in a pipe, or at the end of a wait.
func TestNoAnswer(t *testing.T) {
	o := objects(t, "testdata/rollout.yaml")
	w := view.Of(o)
	var screen bytes.Buffer
	checktest.NoError(t, (&page{out: &screen}).screen(&w, &failure{noon.Add(-time.Minute), io.EOF}, noon))
	first, rest, _ := strings.Cut(screen.String(), "\n")
	checktest.Same(t, "first line", "No answer from the API server since 60s: this is how it was then", first)
	var before bytes.Buffer
	(&page{out: &before}).status(&w, noon.Add(-time.Minute))
	checktest.Same(t, "what follows is of then", before.String(), rest)

	synctest.Test(t, func(t *testing.T) {
		known := fake.NewClientBuilder().WithScheme(scheme).WithObjects(o.Set).Build()
		var out bytes.Buffer
		s := &session{IOStreams: genericiooptions.IOStreams{Out: &out}, namespace: "shop", client: known, reader: known}
		c := &cluster{session: s, changed: make(chan struct{}, 1)}
		c.live.Store(s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c.silence.Store(&failure{time.Now().Add(-10 * time.Second), io.EOF})
		time.AfterFunc(20*time.Second, func() { c.silence.Store(nil) })
		time.AfterFunc(40*time.Second, func() { c.silence.Store(&failure{time.Now(), io.EOF}) })
		err := c.showEach(ctx, target{kindCloneSet, "web"}, w, 0, &changes{}, nil)
		lines := strings.Split(out.String(), "\n")
		texts := list.Map(lines, func(line string) string { _, what, _ := strings.Cut(strings.TrimSpace(line), "  "); return what })
		checktest.Same(t, "lines", []string{
			"no answer from the API server since 15s: EOF", "the API server answers again", "clone/web Updating: 0 of 5 updated, 0 of 5 available",
			"no answer from the API server since 4s: EOF", "",
		}, texts)
		end := notDone(&w, time.Minute, err).Error()
		if want := "clone/web was not done when last seen: no answer from the API server since 20s; it was Updating: "; !strings.HasPrefix(end, want) {
			t.Errorf("it ends with %q, want %q", end, want)
		}
	})
}
