// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// undo is `rollout undo --to-revision=number`; 0 is the revision before the newest.
func (s *story) undo(number int64) {
	s.Helper()
	history := s.history()
	if len(history) < 2 {
		s.Fatalf("no rollout history found: %v", s.chronicle())
	}
	i := len(history) - 2
	if number != 0 {
		i = slices.IndexFunc(history, func(r appsv1.ControllerRevision) bool { return r.Revision == number })
	}
	if i < 0 {
		s.Fatalf("unable to find the revision %d: %v", number, s.chronicle())
	}
	s.mergeSet(json.RawMessage(history[i].Data.Raw))
}

// updated is reached when count Pods are updated and available, and the others are
// available too.
func updated(count, available int32) func(*story) {
	return func(s *story) {
		s.Helper()
		s.until("the update to be as far as it gets", func() bool {
			set := s.set()
			status := &set.Status
			return status.ObservedGeneration == set.Generation && status.UpdatedReplicas == count && status.AvailableReplicas == available
		})
	}
}

// `rollout undo` ends with the old template under its old revision, which becomes the
// newest, and touches only what it must.
func TestPluginUndo(t *testing.T) {
	kind := func(name string) []any { return []any{"spec.updateStrategy.type", name} }
	for _, test := range []struct {
		name  string
		edits []any
		// images are set one after the other, each after the previous rollout.
		images  []string
		reached func(*story)
		to      int64
		// then lets the undo continue: an undo changes neither paused nor partition.
		then string
		// history and restarts are the final ones; that many of the original Pods were
		// not written by the undo.
		history, restarts string
		untouched         int
	}{
		{name: "to the one before", images: []string{"web:v2"}, reached: updated(3, 3),
			history: "2 web:v2, 3 web:v1", restarts: "2+0 2+0 2+0"},
		{name: "to a number", images: []string{"web:v2", "web:v3"}, reached: updated(3, 3), to: 1,
			history: "2 web:v2, 3 web:v3, 4 web:v1", restarts: "3+0 3+0 3+0"},
		{name: "in place only", edits: kind("InPlaceOnly"), images: []string{"web:v2"}, reached: updated(3, 3), to: 1,
			history: "2 web:v2, 3 web:v1", restarts: "2+0 2+0 2+0"},
		{name: "recreated", edits: kind("ReCreate"), images: []string{"web:v2"}, reached: updated(3, 3),
			history: "2 web:v2, 3 web:v1", restarts: "0+0 0+0 0+0"},
		{name: "while paused", edits: []any{"spec.updateStrategy.paused", true}, images: []string{"web:v2"}, reached: updated(0, 3),
			then: `spec: {updateStrategy: {paused: false}}`, history: "2 web:v2, 3 web:v1", restarts: "0+0 0+0 0+0", untouched: 3},
		{name: "in mid-rollout", edits: []any{"spec.updateStrategy.partition", 2}, images: []string{"web:v2"}, reached: updated(1, 3),
			then: `spec: {updateStrategy: {partition: 0}}`, history: "2 web:v2, 3 web:v1", restarts: "0+0 0+0 2+0", untouched: 2},
		{name: "of an image that does not exist", images: []string{"missing:v1"}, reached: updated(1, 2),
			history: "2 missing:v1, 3 web:v1", restarts: "0+0 0+0 1+0", untouched: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, revisions := tool(t)
			s.create(tooled, test.edits...)
			s.settled(3)
			first, pods := s.set().Status.UpdateRevision, s.identities()
			for _, image := range test.images {
				s.setImage(image)
				test.reached(s)
			}
			before := s.versions()
			s.undo(test.to)
			if says := s.rolloutStatus(); !strings.Contains(says, "roll") {
				t.Error(says)
			}
			if test.then != "" {
				s.patch("%s", test.then)
			}
			s.settled(3)
			if got := s.chronicle(); got != test.history || int(revisions.Load()) != len(test.images)+1 || s.set().Status.UpdateRevision != first {
				t.Errorf("history %q, %d revisions asked for, updated to %s; the first was %s", got, revisions.Load(), s.set().Status.UpdateRevision, first)
			}
			if got := s.restarts(); got != test.restarts {
				t.Errorf("restarts %s, want %s", got, test.restarts)
			}
			s.ranOn(pods, before, test.untouched, test.name == "recreated")
			s.still()
			s.fewEvents(1 + 6*(len(test.images)+1))
		})
	}
}

// fewEvents checks that the set got no more than that many events.
func (s *story) fewEvents(most int) {
	s.Helper()
	var list eventsv1.EventList
	if err := s.client.List(s.Context(), &list, client.InNamespace(s.namespace)); err != nil {
		s.Fatal(err)
	}
	count, notes := 0, ""
	for _, e := range list.Items {
		if e.Regarding.Kind != apps.KindCloneSet.Kind {
			continue
		}
		times := max(1, int(e.DeprecatedCount))
		if e.Series != nil {
			times = max(times, int(e.Series.Count))
		}
		count += times
		notes += fmt.Sprintf("%d × %s: %s\n", times, e.Reason, e.Note)
	}
	if count > most {
		s.Errorf("%d events, want %d at most:\n%s", count, most, notes)
	}
}

// An undo of an undo restores the newer template. What an undo leaves in the template
// (`$patch: replace`) does not change it, nor does removing it, and later changes build
// on it as usual.
func TestPluginUndoAgainAndOnward(t *testing.T) {
	t.Parallel()
	s, revisions := tool(t)
	s.create(tooled)
	s.settled(3)
	pods := s.identities()
	expect := func(history, restarts string, count int32) {
		t.Helper()
		s.settled(3)
		if got := s.chronicle(); got != history || s.restarts() != restarts || revisions.Load() != count {
			t.Errorf("history %q, restarts %s, %d revisions asked for; want %q, %s, %d", got, s.restarts(), revisions.Load(), history, restarts, count)
		}
		s.still()
	}
	s.setImage("web:v2")
	expect("1 web:v1, 2 web:v2", "1+0 1+0 1+0", 2)
	s.undo(0)
	expect("2 web:v2, 3 web:v1", "2+0 2+0 2+0", 2)
	s.undo(0)
	expect("3 web:v1, 4 web:v2", "3+0 3+0 3+0", 2)
	newest := s.history()[1]
	if !equality.Semantic.DeepEqual(s.templateAt(&newest), s.typed(s.raw())) {
		t.Errorf("the plugin would not see that the set is at revision 4 already: %s", newest.Data.Raw)
	}
	s.mergeSet(json.RawMessage(newest.Data.Raw))
	expect("3 web:v1, 4 web:v2", "3+0 3+0 3+0", 2)
	s.writeBack(func(*corev1.PodTemplateSpec) {})
	expect("3 web:v1, 4 web:v2", "3+0 3+0 3+0", 2)
	s.undo(3)
	expect("4 web:v2, 5 web:v1", "4+0 4+0 4+0", 2)
	s.setImage("web:v3")
	expect("4 web:v2, 5 web:v1, 6 web:v3", "5+0 5+0 5+0", 3)
	s.ranOn(pods, nil, 0, false)
}

// A merge patch removes nothing that only the newer template has: the old template with
// the newer one's labels and annotations is a separate template. Undoing that restores
// the newer one unchanged.
func TestPluginUndoKeepsWhatTheNewerTemplateAdds(t *testing.T) {
	t.Parallel()
	s, revisions := tool(t)
	s.create(tooled)
	s.settled(3)
	pods := s.identities()
	s.writeBack(func(t *corev1.PodTemplateSpec) {
		t.Labels["tier"], t.Annotations = "front", map[string]string{"note": "newer"}
		t.Spec.Containers[0].Image = "example.test/web:v2"
	})
	s.settled(3)
	for _, test := range []struct {
		to                int64
		history, restarts string
	}{
		{1, "1 web:v1, 2 web:v2, 3 web:v1", "2+0 2+0 2+0"},
		{2, "1 web:v1, 3 web:v1, 4 web:v2", "3+0 3+0 3+0"},
		{1, "1 web:v1, 4 web:v2, 5 web:v1", "4+0 4+0 4+0"},
	} {
		s.undo(test.to)
		s.settled(3)
		if got := s.chronicle(); got != test.history || s.restarts() != test.restarts || revisions.Load() != 3 {
			t.Errorf("after the undo to %d: history %q, restarts %s, %d revisions asked for", test.to, got, s.restarts(), revisions.Load())
		}
		both := slices.DeleteFunc(s.pods(), func(p corev1.Pod) bool { return p.Labels["tier"] != "front" || p.Annotations["note"] != "newer" })
		if len(both) != 3 {
			t.Errorf("after the undo to %d: %d Pods have the label and the annotation\n%s", test.to, len(both), s.picture())
		}
		s.still()
	}
	s.ranOn(pods, nil, 0, false)
}

// An undo passes the gates like any update; a Pod that still waits at a gate for the
// newer template goes back without a restart.
func TestPluginUndoWithHooks(t *testing.T) {
	t.Parallel()
	s, _ := tool(t)
	s.create(hooked)
	s.settled(2)
	s.image("example.test/web:v2")
	first := s.one(apps.StatePreparingUpdate)
	s.label(first.Name, inPlaceKey, "false")
	s.one(apps.StateUpdated)
	s.label(first.Name, inPlaceKey, "true")
	second := s.one(apps.StatePreparingUpdate)
	s.undo(1)
	s.until("the updated Pod at its gate again, and the other one back", func() bool {
		held := s.in(apps.StatePreparingUpdate)
		return len(held) == 1 && held[0].Name == first.Name && len(s.in(apps.StateNormal)) == 1
	})
	s.label(first.Name, inPlaceKey, "false")
	s.one(apps.StateUpdated)
	s.label(first.Name, inPlaceKey, "true")
	s.settled(2)
	if got := s.restarts(); got != "0 2" || s.identities()[second.Name] != second.UID || s.chronicle() != "2 web:v2, 3 web:v1" {
		t.Errorf("restarts %s, history %q\n%s", got, s.chronicle(), s.picture())
	}
	s.still()
}

const changeCause, lastApplied = "kubernetes.io/change-cause", corev1.LastAppliedConfigAnnotation

// `rollout history` shows why each revision was created, and `--revision` shows its
// template. A revision that an undo makes the newest again keeps its reason.
func TestPluginRolloutHistory(t *testing.T) {
	t.Parallel()
	s, _ := tool(t)
	s.create(plain, "metadata.annotations", map[string]any{changeCause: "first", lastApplied: "{}"})
	s.rolloutStatus()
	s.patch(`{metadata: {annotations: {%s: second}}, spec: {template: {spec: {containers: [{name: main, image: "example.test/web:v2"}]}}}}`, changeCause)
	s.rolloutStatus()
	expect := func(want string) {
		t.Helper()
		var got []string
		for _, r := range s.history() {
			got = append(got, fmt.Sprintf("%d %s", r.Revision, r.Annotations[changeCause]))
			if text, there := r.Annotations[lastApplied]; there {
				t.Errorf("revision %d carries what was last applied to the set: %s", r.Revision, text)
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("history %q, want %q", strings.Join(got, ", "), want)
		}
	}
	expect("1 first, 2 second")
	for i, r := range s.history() {
		template := s.templateAt(&r)
		if image := fmt.Sprintf("example.test/web:v%d", i+1); len(template.Spec.Containers) != 1 || template.Spec.Containers[0].Image != image {
			t.Errorf("revision %d shows %+v", r.Revision, template)
		}
	}
	s.undo(0)
	s.settled(3)
	expect("2 second, 3 first")
}

// A set whose selector has no matchLabels has a history too.
func TestPluginHistoryBySelectorExpressions(t *testing.T) {
	t.Parallel()
	s, _ := tool(t)
	s.create(plain, "spec.selector", map[string]any{"matchExpressions": []any{
		map[string]any{"key": "app", "operator": "In", "values": []any{"web", "site"}},
	}})
	s.settled(3)
	s.image("example.test/web:v2")
	s.settled(3)
	if got := s.chronicle(); got != "1 web:v1, 2 web:v2" {
		t.Errorf("history %q of the revisions %v", got, s.revisionNames())
	}
}
