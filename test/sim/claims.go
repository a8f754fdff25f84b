// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// protector lets a deleted claim go once no scheduled Pod uses it, as
// kube-controller-manager does.
type protector struct{ *Simulation }

func (p protector) observe(c *model.Commit) {
	switch object := c.Object().(type) {
	case *corev1.PersistentVolumeClaim:
		if c.New != nil && object.DeletionTimestamp != nil {
			p.look(client.ObjectKeyFromObject(object))
		}
	case *corev1.Pod:
		if c.New == nil {
			for _, name := range claimsOf(object) {
				p.look(key(object.Namespace, name))
			}
		}
	}
}

func (p protector) look(at types.NamespacedName) {
	p.World.after(p.World.between(time.Millisecond, 100*time.Millisecond), func() {
		if usedBy(p.Server, at.Name, scheduled) != nil {
			return
		}
		model.Change(p.Server, "protection", at, "", func(claim *corev1.PersistentVolumeClaim) {
			if claim.DeletionTimestamp != nil {
				claim.Finalizers = nil
			}
		})
	})
}

func scheduled(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" }

// usedBy finds a Pod that mounts a claim and satisfies has; nil if there is none.
func usedBy(s *model.Server, claim string, has func(*corev1.Pod) bool) *corev1.Pod {
	for _, pod := range model.List[*corev1.Pod](s.Objects) {
		if has(pod) && slices.Contains(claimsOf(pod), claim) {
			return pod
		}
	}
	return nil
}

// claimsOf names the claims that a Pod mounts.
func claimsOf(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.Volumes {
		if source := pod.Spec.Volumes[i].PersistentVolumeClaim; source != nil {
			names = append(names, source.ClaimName)
		}
	}
	return names
}

// mountable reports whether all claims of a Pod exist and are not being deleted: the
// scheduler assigns no node before that.
func mountable(s *model.Server, pod *corev1.Pod) bool {
	for _, name := range claimsOf(pod) {
		claim, err := s.Get(model.Claims, key(pod.Namespace, name))
		if err != nil || claim.GetDeletionTimestamp() != nil {
			return false
		}
	}
	return true
}

// Claims lists the set's claims on the server, by name.
func (s *Simulation) Claims() []*corev1.PersistentVolumeClaim {
	return owned[*corev1.PersistentVolumeClaim](s)
}

func claimTemplates(names ...string) []apps.ClaimTemplate {
	var out []apps.ClaimTemplate
	for _, name := range names {
		data := fmt.Appendf(nil, `{"metadata":{"name":%q},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`, name)
		var template apps.ClaimTemplate
		if json.Unmarshal(data, &template) == nil {
			out = append(out, template)
		}
	}
	return out
}

func templateNames(set *apps.CloneSet) []string {
	var names []string
	for i := range set.Spec.VolumeClaimTemplates {
		names = append(names, set.Spec.VolumeClaimTemplates[i].Metadata.Name)
	}
	return names
}

// claimsText describes the claim templates; "" if there are none.
func claimsText(set *apps.CloneSet) string {
	text := ""
	if names := templateNames(set); len(names) > 0 {
		text = "claims " + strings.Join(names, " ")
	}
	if set.Spec.ScaleStrategy.DisablePVCReuse {
		text += " not reused"
	}
	return text
}

// strangers are claims that have names of the set's claims but do not belong to the
// set: one has another owner, and somebody keeps the other.
func (s *Simulation) strangers() {
	yes := true
	other := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Other", Name: "other", UID: "other", Controller: &yes}}
	for i, owners := range [][]metav1.OwnerReference{other, nil} {
		id := []string{"a04", "a06"}[i]
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: s.key.Namespace, Name: "data-" + s.key.Name + "-" + id, OwnerReferences: owners,
			Labels: map[string]string{"app": "demo", apps.LabelInstanceID: id},
		}}
		if _, err := s.Server.Create("user", claim, false); err != nil {
			s.World.fail("setup", "create a claim: %v", err)
		}
	}
}

// claimActions are the user's actions in a set with claims.
var claimActions = []func(*Simulation){
	(*Simulation).deleteByHand,
	(*Simulation).deleteByHand,
	func(s *Simulation) { s.eachOf(1, s.nodes.evict) },
	func(s *Simulation) {
		s.Edit("changes whether claims are reused", func(set *apps.CloneSet) {
			set.Spec.ScaleStrategy.DisablePVCReuse = !set.Spec.ScaleStrategy.DisablePVCReuse
		})
	},
	draws("claims", "data", "data log", "log"),
	(*Simulation).loseClaim,
	(*Simulation).freeClaim,
}

// loseClaim deletes a claim that no scheduled Pod uses.
func (s *Simulation) loseClaim() {
	for _, claim := range s.Claims() {
		if usedBy(s.Server, claim.Name, scheduled) == nil {
			_ = s.Server.Delete("user", model.Claims, client.ObjectKeyFromObject(claim), model.Deletion{})
			return
		}
	}
}

// freeClaim removes a claim from the set; the set takes it back if a Pod uses it.
func (s *Simulation) freeClaim() {
	if claims := s.Claims(); len(claims) > 0 {
		at := client.ObjectKeyFromObject(pick(s.World, claims...))
		model.Change(s.Server, "user", at, "", func(claim *corev1.PersistentVolumeClaim) { claim.OwnerReferences = nil })
	}
}

// randomClaims gives some of the sets claims. It has its own random source, so that the
// other seeds stay unchanged.
func randomClaims(seed uint64, set *apps.CloneSet) {
	w := newWorld(seed ^ 0xc1a135)
	if !w.roll(0.35) {
		return
	}
	to("claims " + pick(w, "data", "data log"))(set)
	set.Spec.ScaleStrategy.DisablePVCReuse = w.roll(0.3)
}

// giveUpPods deletes the Pods that wait for a claim that nobody creates: the user has
// removed its template, or the Pod has been released.
func (s *Simulation) giveUpPods() {
	set := s.Set()
	for _, pod := range model.List[*corev1.Pod](s.Server.Objects) {
		if scheduled(pod) {
			continue
		}
		waits := slices.ContainsFunc(claimsOf(pod), func(name string) bool {
			_, err := s.Server.Get(model.Claims, key(pod.Namespace, name))
			template := strings.TrimSuffix(name, "-"+pod.Name)
			return err != nil && (set == nil || stray(pod, set) || !slices.Contains(templateNames(set), template))
		})
		if waits {
			s.World.say("user", "gives Pod %s up", pod.Name)
			_ = s.Server.Delete("user", model.Pods, client.ObjectKeyFromObject(pod), model.Deletion{})
		}
	}
}
