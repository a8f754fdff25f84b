// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

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
	s.patch("%s", history[i].Data.Raw)
}

// `rollout undo` ends with the old template under its old revision, which becomes the
// newest, and touches only what it must.
func TestPluginUndo(t *testing.T) {
	for _, test := range []struct {
		name, patch string
		// images are set one after the other, each after the previous one has reached that
		// many updated Pods, and available ones.
		images             []string
		updated, available int32
		to                 int64
		// then lets the undo continue: an undo changes neither paused nor partition.
		then string
		// history and restarts are the final ones; that many of the original Pods were
		// not written by the undo.
		history, restarts string
		untouched         int
	}{
		{name: "to the one before", images: []string{"web:v2"}, updated: 3, available: 3,
			history: "2 web:v2, 3 web:v1", restarts: "2+0 2+0 2+0"},
		{name: "to a number", images: []string{"web:v2", "web:v3"}, updated: 3, available: 3, to: 1,
			history: "2 web:v2, 3 web:v3, 4 web:v1", restarts: "3+0 3+0 3+0"},
		{name: "in place only", patch: `spec: {updateStrategy: {type: InPlaceOnly}}`, images: []string{"web:v2"}, updated: 3, available: 3, to: 1,
			history: "2 web:v2, 3 web:v1", restarts: "2+0 2+0 2+0"},
		{name: "recreated", patch: `spec: {updateStrategy: {type: ReCreate}}`, images: []string{"web:v2"}, updated: 3, available: 3,
			history: "2 web:v2, 3 web:v1", restarts: "0+0 0+0 0+0"},
		{name: "while paused", patch: `spec: {updateStrategy: {paused: true}}`, images: []string{"web:v2"}, updated: 0, available: 3,
			then: `spec: {updateStrategy: {paused: false}}`, history: "2 web:v2, 3 web:v1", restarts: "0+0 0+0 0+0", untouched: 3},
		{name: "in mid-rollout", patch: `spec: {updateStrategy: {partition: 2}}`, images: []string{"web:v2"}, updated: 1, available: 3,
			then: `spec: {updateStrategy: {partition: 0}}`, history: "2 web:v2, 3 web:v1", restarts: "0+0 0+0 2+0", untouched: 2},
		{name: "of an image that does not exist", images: []string{"missing:v1"}, updated: 1, available: 2,
			history: "2 missing:v1, 3 web:v1", restarts: "0+0 0+0 1+0", untouched: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := running(t, "tooled", cmp.Or(test.patch, "{}"))
			first, pods := s.set().Status.UpdateRevision, s.identities()
			for _, image := range test.images {
				s.setImage(image)
				s.untilStatus("the update to be as far as it gets", func(status *apps.CloneSetStatus) bool {
					return status.UpdatedReplicas == test.updated && status.AvailableReplicas == test.available
				})
			}
			before := s.podVersions()
			s.undo(test.to)
			if says := s.rolloutStatus(); !strings.Contains(says, "roll") {
				t.Error(says)
			}
			s.patch("%s", cmp.Or(test.then, "{}"))
			s.settled(3)
			if got := s.chronicle(); got != test.history || int(s.created.Load()) != len(test.images)+1 || s.set().Status.UpdateRevision != first {
				t.Errorf("history %q, %d revisions asked for, updated to %s; the first was %s", got, s.created.Load(), s.set().Status.UpdateRevision, first)
			}
			if got := s.restarts(); got != test.restarts {
				t.Errorf("restarts %s, want %s", got, test.restarts)
			}
			s.ranOn(pods, before, test.untouched, test.name == "recreated")
			s.unchanged()
			s.fewEvents(1 + 6*(len(test.images)+1))
		})
	}
}

// fewEvents checks that the set got no more than that many events.
func (s *story) fewEvents(most int) {
	s.Helper()
	count, notes := 0, ""
	for _, e := range s.Events(s.set(), "") {
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
	s := running(t, "tooled")
	pods := s.identities()
	expect := func(history, restarts string, count int32) {
		t.Helper()
		s.settled(3)
		if got := s.chronicle(); got != history || s.restarts() != restarts || s.created.Load() != count {
			t.Errorf("history %q, restarts %s, %d revisions asked for; want %q, %s, %d", got, s.restarts(), s.created.Load(), history, restarts, count)
		}
		s.unchanged()
	}
	s.setImage("web:v2")
	expect("1 web:v1, 2 web:v2", "1+0 1+0 1+0", 2)
	s.undo(0)
	expect("2 web:v2, 3 web:v1", "2+0 2+0 2+0", 2)
	s.undo(0)
	expect("3 web:v1, 4 web:v2", "3+0 3+0 3+0", 2)
	newest := s.history()[1]
	if !equality.Semantic.DeepEqual(s.templateAt(&newest), s.template()) {
		t.Errorf("the plugin would not see that the set is at revision 4 already: %s", newest.Data.Raw)
	}
	s.patch("%s", newest.Data.Raw)
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
	s := running(t, "tooled")
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
		if got := s.chronicle(); got != test.history || s.restarts() != test.restarts || s.created.Load() != 3 {
			t.Errorf("after the undo to %d: history %q, restarts %s, %d revisions asked for", test.to, got, s.restarts(), s.created.Load())
		}
		both := slices.DeleteFunc(s.pods(), func(p corev1.Pod) bool { return p.Labels["tier"] != "front" || p.Annotations["note"] != "newer" })
		if len(both) != 3 {
			t.Errorf("after the undo to %d: %d Pods have the label and the annotation\n%s", test.to, len(both), s.Picture())
		}
		s.unchanged()
	}
	s.ranOn(pods, nil, 0, false)
}

// An undo passes the gates like any update; a Pod that still waits at a gate for the
// newer template goes back without a restart.
func TestPluginUndoWithHooks(t *testing.T) {
	s := running(t, "hooked")
	s.image("web:v2")
	first := s.one(apps.StatePreparingUpdate)
	s.confirm(first.Name)
	second := s.one(apps.StatePreparingUpdate)
	s.undo(1)
	s.until("the updated Pod at its gate again, and the other one back", func() bool {
		waiting := s.in(apps.StatePreparingUpdate)
		return len(waiting) == 1 && waiting[0].Name == first.Name && len(s.in(apps.StateNormal)) == 1
	})
	s.confirm(first.Name)
	s.settled(2)
	if got := s.restarts(); got != "0 2" || s.identities()[second.Name] != second.UID || s.chronicle() != "2 web:v2, 3 web:v1" {
		t.Errorf("restarts %s, history %q\n%s", got, s.chronicle(), s.Picture())
	}
	s.unchanged()
}

const changeCause, lastApplied = "kubernetes.io/change-cause", corev1.LastAppliedConfigAnnotation

// `rollout history` shows why each revision was created, and `--revision` shows its
// template. A revision that an undo makes the newest again keeps its reason. All this
// works with a selector without matchLabels too.
func TestPluginRolloutHistory(t *testing.T) {
	for name, selector := range map[string]string{
		"labels": `{}`, "expressions": `spec: {selector: {matchLabels: null, matchExpressions: [{key: app, operator: In, values: [web, site]}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			s.create("plain", selector, `metadata: {annotations: {`+changeCause+`: first, `+lastApplied+`: "{}"}}`)
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
			if got := s.chronicle(); got != "1 web:v1, 2 web:v2" {
				t.Errorf("history %q of the revisions %v", got, s.revisionNames())
			}
			s.undo(0)
			s.settled(3)
			expect("2 second, 3 first")
		})
	}
}

// `rollout status` finishes when the Pods are there, and not before.
func TestPluginRolloutStatus(t *testing.T) {
	const image = `spec: {template: {spec: {containers: [{name: main, image: "example.test/web:v2"}]}}}`
	for _, test := range []struct {
		name, patch, request string
		lastWord             string
		// updated Pods are ready, with the new image in the case of an update.
		image   string
		updated int
	}{
		{"in place", "{}", image, "successfully rolled out", "web:v2", 3},
		{"recreated", `spec: {updateStrategy: {type: ReCreate}}`, image, "successfully rolled out", "web:v2", 3},
		{"partition", `spec: {updateStrategy: {partition: 1}}`, image, "partitioned roll out complete: 2 new Pods", "web:v2", 2},
		{"partition in percent", `spec: {updateStrategy: {partition: "50%"}}`, image, "partitioned roll out complete: 1 new Pods", "web:v2", 1},
		{"scaled", "{}", `spec: {replicas: 5}`, "successfully rolled out", "web:v1", 5},
		{"stuck", "{}", strings.Replace(strings.Replace(image, "web:v2", "missing:v1", 1), "{", "{progressDeadlineSeconds: 1, ", 1),
			"exceeded its progress deadline", "missing:v1", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := begin(t)
			s.create("plain", test.patch)
			if says := s.rolloutStatus(); !strings.Contains(says, "roll") {
				t.Fatalf("of the new set: %s", says)
			}
			s.patch("%s", test.request)
			if says := s.rolloutStatus(); says != test.lastWord {
				t.Errorf("its last word is %q", says)
			}
			updated := slices.DeleteFunc(s.pods(), func(p corev1.Pod) bool {
				return p.Spec.Containers[0].Image != "example.test/"+test.image || conditionOf(&p, corev1.PodReady).Status != corev1.ConditionTrue
			})
			if len(updated) != test.updated {
				t.Errorf("%d Pods are ready with %s\n%s", len(updated), test.image, s.Picture())
			}
		})
	}
}
