// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// claim is a claim of instance id, made from a template.
func claim(template, id string, options ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: ClaimName(template, "web", id), Labels: map[string]string{"app": "web", apps.LabelInstanceID: id},
	}}
	for _, o := range options {
		o(c)
	}
	return c
}

func going(c *corev1.PersistentVolumeClaim) { at := metav1.NewTime(now); c.DeletionTimestamp = &at }

// claims gives the set the template data and one claim of it for each id.
func claims(ids ...string) option {
	return func(s *Snapshot) {
		s.Spec.ClaimTemplates = []string{"data"}
		for _, id := range ids {
			s.Claims = append(s.Claims, claim("data", id))
		}
	}
}

func withClaims(list ...*corev1.PersistentVolumeClaim) option {
	return func(s *Snapshot) { s.Claims = append(s.Claims, list...) }
}

func templates(names ...string) option {
	return func(s *Snapshot) { s.Spec.ClaimTemplates = names }
}

func noReuse(s *Snapshot) { s.Spec.DisableClaimReuse = true }

func deletedInstance(id string) option {
	return func(s *Snapshot) { s.DeletedInstances = map[string]bool{id: true} }
}

func releasedInstance(id string) option {
	return func(s *Snapshot) { s.ReleasedInstances = map[string]bool{id: true} }
}

func claimsRefused(s *Snapshot) {
	s.ClaimsRefused, s.ClaimsRefusedUntil = "the API server refuses the claim of spec.volumeClaimTemplates data: no", now.Add(time.Minute)
}

// owner is a serving Pod of instance id that mounts claims.
func owner(id string, options ...podOption) *corev1.Pod {
	return pod("web-"+id, 1, append([]podOption{label(apps.LabelInstanceID, id), mounting("data", id)}, options...)...)
}

func mounting(template, id string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: template, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: ClaimName(template, "web", id)},
		}})
	}
}

// gone is a Pod that was deleted with that much grace left.
func gone(grace time.Duration) podOption {
	return func(p *corev1.Pod) { at := metav1.NewTime(now.Add(grace)); p.DeletionTimestamp = &at }
}

var failed = phase(corev1.PodFailed)

func createFor(id string) string {
	return fmt.Sprintf("create a new Pod for the claims of %s (ScaleOut) revision web-r1", id)
}

func discard(id string) string {
	return fmt.Sprintf("discard claims of %s (InstanceGone) claim data-web-%s", id, id)
}

// sparing returns an error if an action takes claims from a Pod that stays.
func sparing(s *Snapshot, a Action) error {
	if len(a.Claims) > 0 != (a.Verb == Discard) && a.Verb != Delete {
		return fmt.Errorf("%v: the verb does not fit its claims", a)
	}
	for _, c := range a.Claims {
		id := c.Labels[apps.LabelInstanceID]
		i := slices.IndexFunc(s.Pods, func(p *corev1.Pod) bool { return p.Name == "web-"+id })
		stays := i >= 0 && s.Pods[i].DeletionTimestamp == nil && (a.Verb != Delete || s.Pods[i] != a.Pod)
		if stays || c.DeletionTimestamp != nil {
			return fmt.Errorf("%v: claim %s is in use, or going already", a, c.Name)
		}
	}
	return nil
}

// TestClaimsAreReused: the next Pod takes over claims whose Pod is gone.
func TestClaimsAreReused(t *testing.T) {
	expectEach(t, []planCase{
		{"none there", snap(1, templates("data")), []string{create1}},
		{"in the order of their names, before new ones", snap(3, claims("y", "x")), []string{createFor("x"), createFor("y"), create1}},
		{"no more than are missing", snap(1, claims("y", "x")), []string{createFor("x")}},
		{"not one that a Pod has", snap(2, claims("x"), with(owner("x"))), []string{create1}},
		{"not one that is going", snap(1, templates("data"), withClaims(claim("data", "x", going))), []string{create1}},
		{"not one of which a part is going", snap(1, templates("data", "log"), withClaims(claim("data", "x"), claim("log", "x", going))), []string{create1}},
		{"one that lacks a new template's claim", snap(1, templates("data", "log"), withClaims(claim("data", "x"))), []string{createFor("x")}},
		{"not one of templates that are gone", snap(1, templates("log"), withClaims(claim("data", "x"))), []string{create1}},
		{"not where there are no templates", snap(1, withClaims(claim("data", "x"))), []string{create1}},
		{"not one whose Pod this controller deleted", snap(1, claims("x"), deletedInstance("x")), []string{create1, discard("x")}},
		{"not one whose Pod was released and runs on", snap(1, claims("x"), releasedInstance("x")), []string{create1}},
		{"not one whose name does not bear its label out", snap(1, templates("data"), withClaims(claim("data", "x",
			func(c *corev1.PersistentVolumeClaim) { c.Labels[apps.LabelInstanceID] = "y" }))), []string{create1}},
	})
	p := Make(snap(2, claims("x")))
	if !p.Actions[1].Taken["x"] {
		t.Error("a new id may be one that has claims")
	}
}

// TestReplacementWaitsForClaims: while the previous Pod ends, a new Pod would leave the
// data behind; but the replacement does not wait forever.
func TestReplacementWaitsForClaims(t *testing.T) {
	expectEach(t, []planCase{
		{"deleted by somebody", snap(1, claims("x"), with(owner("x", gone(time.Minute)))), nil},
		{"shortly before the timeout", snap(1, claims("x"), with(owner("x", gone(time.Second-endTimeout)))), nil},
		{"for too long", snap(1, claims("x"), with(owner("x", gone(-endTimeout)))), []string{create1}},
		{"only one waits", snap(3, claims("x"), with(owner("x", terminating))), []string{create1, create1}},
		{"it has no claims", snap(1, templates("data"), with(owner("x", terminating))), []string{create1}},
		{"its claims go", snap(1, templates("data"), withClaims(claim("data", "x", going)), with(owner("x", terminating))), []string{create1}},
		{"deleted by the controller", snap(1, claims("x"), deletedInstance("x"), with(owner("x", terminating))), []string{create1, discard("x")}},
		{"failed, deleted now", snap(1, claims("x"), with(owner("x", failed))), []string{"delete web-x (PodEnded)"}},
		{"failed, and its hook lets it wait", snap(1, claims("x"), hooks(preDelete()), with(owner("x", failed, finalizers(keyDelete),
			state(apps.StatePreparingDelete), annotation(apps.AnnotationLifecycleTimestamp, now.Format(time.RFC3339))))), nil},
		{"failed, and its hook holds it for long", snap(1, claims("x"), hooks(preDelete()), with(owner("x", failed, finalizers(keyDelete),
			state(apps.StatePreparingDelete)))), []string{create1}},
	})
	expectRequeue(t, Make(snap(1, claims("x"), with(owner("x", gone(time.Minute))))), time.Minute+endTimeout)
}

// TestClaimsGoWithTheirPod: whenever the controller itself wants the Pod deleted.
func TestClaimsGoWithTheirPod(t *testing.T) {
	del := func(reason string) string { return "delete web-x (" + reason + ") claim data-web-x" }
	released := owner("x", state(apps.StatePreparingDelete))
	expectEach(t, []planCase{
		{"scale in", snap(0, claims("x"), with(owner("x"))), []string{del("ScaleIn")}},
		{"all of them", snap(0, templates("data", "log"), withClaims(claim("data", "x"), claim("log", "x")), with(owner("x"))),
			[]string{del("ScaleIn") + " claim log-web-x"}},
		{"of templates that are gone too", snap(0, templates(), withClaims(claim("data", "x")), with(owner("x"))), []string{del("ScaleIn")}},
		{"not those of another Pod", snap(1, claims("x", "y"), named("web-x"), with(owner("x"), owner("y"))), []string{del("SpecifiedDelete")}},
		{"named by label", snap(1, claims("x"), maxUnavailable(1), with(owner("x", label(apps.LabelSpecifiedDelete, "true")))), []string{del("SpecifiedDelete")}},
		{"recreate", snap(1, claims("x"), toRevision(rev(2)), with(owner("x"))), []string{del("Recreate")}},
		{"the hook lets go", snap(0, claims("x"), hooks(preDelete()), with(released)), []string{del("PreDeleteReleased")}},
		{"the hook holds", snap(0, claims("x"), hooks(preDelete()), with(owner("x", finalizers(keyDelete)))), []string{"move web-x (ScaleIn) to PreparingDelete"}},
		{"in place keeps them", snap(1, claims("x"), method(InPlaceIfPossible), toRevision(rev(2)), with(owner("x"))),
			[]string{"update web-x (InPlaceUpdate) to Updating InPlaceUpdateReady=False revision web-r2"}},
		{"a label that was changed leads nowhere", snap(0, claims("x", "y"), noReuse, with(owner("x", label(apps.LabelInstanceID, "y")))),
			[]string{"delete web-x (ScaleIn) claim data-web-x", discard("y")}},
		{"failed and wanted gone", snap(0, claims("x"), with(owner("x", failed, label(apps.LabelSpecifiedDelete, "true")))), []string{del("PodEnded")}},
		{"the set is going", snap(0, claims("x"), noReuse, with(owner("x")), func(s *Snapshot) { s.Deleting = true }), nil},
	})
}

// TestDeletionIsFinished: a terminating Pod shows the next leader whether the controller
// wanted it deleted; without a sign the claims stay.
func TestDeletionIsFinished(t *testing.T) {
	expectEach(t, []planCase{
		{"no sign", snap(0, claims("x"), with(owner("x", terminating))), nil},
		{"specified", snap(0, claims("x"), with(owner("x", terminating, label(apps.LabelSpecifiedDelete, "true")))), []string{discard("x")}},
		{"named in podsToDelete", snap(0, claims("x"), named("web-x"), with(owner("x", terminating))), []string{discard("x")}},
		{"was at the gate", snap(0, claims("x"), with(owner("x", terminating, state(apps.StatePreparingDelete)))), []string{discard("x")}},
		{"was at the gate because it failed", snap(0, claims("x"), with(owner("x", terminating, failed, state(apps.StatePreparingDelete)))), nil},
		{"deleted by this process", snap(0, claims("x"), deletedInstance("x"), with(owner("x", terminating))), []string{discard("x")}},
		{"deleted by this process, and gone", snap(0, claims("x"), deletedInstance("x")), []string{discard("x")}},
		{"going already", snap(0, templates("data"), withClaims(claim("data", "x", going)), deletedInstance("x")), nil},
		{"the Pod lives", snap(1, claims("x"), deletedInstance("x"), with(owner("x"))), nil},
		{"deleted by this process, or released", snap(0, claims("x"), deletedInstance("x"), releasedInstance("x")), []string{discard("x")}},
		{"nobody has it: it waits", snap(0, claims("x")), nil},
	})
}

// TestDisableClaimReuse: the claims of a dead Pod are deleted, whoever deleted it.
func TestDisableClaimReuse(t *testing.T) {
	expect(t, snap(1, claims("x"), noReuse), create1, discard("x"))
	expect(t, snap(1, claims("x"), noReuse, with(owner("x", terminating))), create1, discard("x"))
	expect(t, snap(1, claims("x"), noReuse, with(owner("x", failed))), create1, "delete web-x (PodEnded) claim data-web-x")
	expect(t, snap(1, claims("x"), noReuse, with(owner("x"))))
	expect(t, snap(1, claims("x"), noReuse, releasedInstance("x")), create1) // it was released, and they are in use
}

// TestMissingClaims: a Pod without a node gets back the claim that someone deleted.
func TestMissingClaims(t *testing.T) {
	provide := "provide claims of x (ClaimMissing)"
	waiting := owner("x", pending)
	expect(t, snap(1, templates("data"), with(waiting)), provide)
	expect(t, snap(1, claims("x"), with(waiting)))
	expect(t, snap(1, templates("data"), withClaims(claim("data", "x", going)), with(waiting)))
	expect(t, snap(1, templates("data", "log"), withClaims(claim("data", "x")), with(waiting))) // older than that template
	expect(t, snap(1, templates("data"), with(owner("x"))))
	expect(t, snap(0, templates("data"), with(waiting)), "delete web-x (ScaleIn)")
	expect(t, snap(1, templates("data"), claimsRefused, with(waiting)))
}

// TestRefusedClaimsCostNoPod: a Pod that could not be replaced is not deleted for an
// update, and everything else continues.
func TestRefusedClaimsCostNoPod(t *testing.T) {
	p := expect(t, snap(2, templates("data"), claimsRefused, toRevision(rev(2)), maxUnavailable(1), with(owner("x"))))
	expectProblem(t, p, ProblemClaims)
	expectRequeue(t, p, time.Minute)
	expect(t, snap(1, claims("x"), claimsRefused), createFor("x"))
	expect(t, snap(1, templates("data", "log"), withClaims(claim("data", "x")), claimsRefused))
	expect(t, snap(0, claims("x"), claimsRefused, with(owner("x"))), "delete web-x (ScaleIn) claim data-web-x")
}
