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

// TestNewIDs: a new instance id is none that has claims.
func TestNewIDs(t *testing.T) {
	if p := Make(snap(2, claims("x"))); !p.Actions[1].Taken["x"] {
		t.Error("a new id may be one that has claims")
	}
}
