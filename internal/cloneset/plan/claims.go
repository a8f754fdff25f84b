// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

// endTimeout is how long a replacement waits for the claims of a terminating Pod beyond that Pod's
// grace period. Then it gets new claims: a dead node must not keep a set short forever.
const endTimeout = 30 * time.Second

// ClaimName returns the name of the claim that a template creates for an instance.
func ClaimName(template, set, id string) string { return template + "-" + set + "-" + id }

// PodName returns the name of an instance's Pod.
func PodName(set, id string) string { return set + "-" + id }

// InstanceOf returns the instance id of a Pod; "" if the Pod can have no claims. The id comes from the
// name, not the label: a changed label must never lead to the claims of another Pod.
func InstanceOf(set string, pod *corev1.Pod) string {
	if id, ok := strings.CutPrefix(pod.Name, set+"-"); ok {
		return id
	}
	return ""
}

// InstanceOfClaim returns the instance id of a claim; "" if it has none, or one that its
// name does not confirm.
func InstanceOfClaim(set string, claim *corev1.PersistentVolumeClaim) string {
	id := claim.Labels[apps.LabelInstanceID]
	if id == "" || !strings.HasSuffix(claim.Name, "-"+PodName(set, id)) {
		return ""
	}
	return id
}

// instance is the claims with one instance id, and the Pod that has them.
type instance struct {
	id     string
	claims []*corev1.PersistentVolumeClaim
	// holder is nil if there is no such Pod.
	holder *podState
}

// readInstances groups the set's claims by instance, in the order of ids.
func (p *pass) readInstances() {
	if len(p.Claims) == 0 {
		return
	}
	p.byID = make(map[string]*instance, len(p.Claims))
	for _, claim := range p.Claims {
		id := InstanceOfClaim(p.Set, claim)
		if id == "" {
			continue
		}
		i := p.byID[id]
		if i == nil {
			i = &instance{id: id}
			p.byID[id] = i
			p.instances = append(p.instances, i)
		}
		i.claims = append(i.claims, claim)
	}
	slices.SortFunc(p.instances, func(a, b *instance) int { return cmp.Compare(a.id, b.id) })
	for i := range p.states {
		if found := p.byID[InstanceOf(p.Set, p.states[i].pod)]; found != nil {
			found.holder = &p.states[i]
		}
	}
}

// staying returns the claims that are not terminating.
func (i *instance) staying() []*corev1.PersistentVolumeClaim {
	return slices.DeleteFunc(slices.Clone(i.claims), func(c *corev1.PersistentVolumeClaim) bool { return c.DeletionTimestamp != nil })
}

// claimsOf returns the claims to delete with a Pod that the controller deletes.
func (p *pass) claimsOf(v *podState) []*corev1.PersistentVolumeClaim {
	if i := p.byID[InstanceOf(p.Set, v.pod)]; i != nil {
		return i.staying()
	}
	return nil
}

// takesClaims reports whether a Pod's own marks show that the controller wanted it deleted, so that its
// claims are deleted too. These marks survive a crash between the deletion of a Pod and that of its
// claims. A Pod whose containers have ended may be at the gate only for that reason: its claims stay.
func (p *podState) takesClaims() bool { return p.specified || (p.preparesDelete() && !p.ended()) }

// reusable reports whether the next Pod can take over an instance: someone other than the
// controller deleted its Pod, and all its claims exist.
func (p *pass) reusable(i *instance) bool {
	return i.holder == nil && !p.ReleasedInstances[i.id] && !p.Spec.DisableClaimReuse && !p.DeletedInstances[i.id] && p.worthKeeping(i)
}

// worthKeeping reports whether no claim is terminating, and a Pod of the present
// templates would mount at least one of them.
func (p *pass) worthKeeping(i *instance) bool {
	wanted, names := false, p.claimNames(i.id)
	for _, claim := range i.claims {
		if claim.DeletionTimestamp != nil {
			return false
		}
		wanted = wanted || slices.Contains(names, claim.Name)
	}
	return wanted
}

// claimNames returns the names of the claims that the present templates give to an instance.
func (p *pass) claimNames(id string) []string {
	return list.Map(p.Spec.ClaimTemplates, func(template string) string { return ClaimName(template, p.Set, id) })
}

// returning counts the instances that the next Pods can soon take over, because their Pods are
// terminating. A Pod created before that would get empty claims, and the data would stay unused.
func (p *pass) returning() int {
	count := 0
	for _, i := range p.instances {
		v := i.holder
		if v == nil || v.takesClaims() || p.Spec.DisableClaimReuse || p.DeletedInstances[i.id] || !p.worthKeeping(i) {
			continue
		}
		until, ending := v.endsBy()
		if !ending || (!until.IsZero() && !until.After(p.Now)) {
			continue
		}
		p.wakeAt(until)
		count++
	}
	return count
}

// endsBy reports whether a Pod is terminating or about to be, and until when to wait for its end. Zero
// means no bound: the controller itself deletes the Pod in this pass.
func (p *podState) endsBy() (time.Time, bool) {
	switch {
	case p.terminate:
		return p.pod.DeletionTimestamp.Add(endTimeout), true
	case !p.ended():
		return time.Time{}, false
	case p.preparesDelete():
		return podread.StateSince(p.pod).Add(endTimeout), true
	}
	return time.Time{}, true
}

// instancesFor returns the instances that the missing Pods take over, and how many Pods
// can be created now.
func (p *pass) instancesFor(missing int) ([]string, int) {
	if len(p.Spec.ClaimTemplates) == 0 {
		return nil, missing
	}
	free := list.Only(p.instances, func(i *instance) bool { return p.reusable(i) && (p.ClaimsRefused == "" || p.complete(i)) })
	fresh := max(missing-len(free)-p.returning(), 0)
	if p.ClaimsRefused != "" {
		fresh = 0
	}
	free = free[:min(len(free), missing)]
	return list.Map(free, func(i *instance) string { return i.id }), len(free) + fresh
}

// complete reports whether an instance has all its claims.
func (p *pass) complete(i *instance) bool {
	return !slices.ContainsFunc(p.claimNames(i.id), func(name string) bool { return !i.has(name) })
}

// has reports whether an instance, which may be nil, has a claim of that name.
func (i *instance) has(name string) bool {
	return i != nil && slices.ContainsFunc(i.claims, func(c *corev1.PersistentVolumeClaim) bool { return c.Name == name })
}

// hasClaims reports whether the Pod's claims are those that the present templates ask for, and no others.
func (p *pass) hasClaims(v *podState) bool {
	id := InstanceOf(p.Set, v.pod)
	i := p.byID[id]
	if i == nil {
		return len(p.Spec.Claims) == 0
	}
	names := p.claimNames(id)
	for _, claim := range i.claims {
		at := slices.Index(names, claim.Name)
		if at < 0 || !fits(&claim.Spec, p.Spec.Claims[at]) {
			return false
		}
	}
	return len(i.claims) == len(names)
}

// fits reports whether a claim has all that a template asks for. It may have more storage: claims grow
// without their template.
func fits(is, want *corev1.PersistentVolumeClaimSpec) bool {
	size := want.Resources.Requests[corev1.ResourceStorage]
	stated := is.DeepCopy() // without what the template leaves to others
	stated.Resources, stated.VolumeAttributesClassName = want.Resources, want.VolumeAttributesClassName
	for _, field := range []struct{ is, want any }{
		{&stated.StorageClassName, &want.StorageClassName},
		{&stated.VolumeMode, &want.VolumeMode}, {&stated.VolumeName, &want.VolumeName},
		{&stated.DataSource, &want.DataSource}, {&stated.DataSourceRef, &want.DataSourceRef},
	} {
		if value := reflect.ValueOf(field.want).Elem(); value.IsZero() {
			reflect.ValueOf(field.is).Elem().Set(value)
		}
	}
	return is.Resources.Requests.Storage().Cmp(size) >= 0 && equality.Semantic.DeepEqual(stated, want)
}

// syncClaims deletes the claims that no Pod will use again, and creates those that a
// Pod lacks.
func (p *pass) syncClaims() {
	for _, i := range p.instances {
		if !p.unwanted(i) {
			continue
		}
		if claims := i.staying(); len(claims) > 0 {
			p.plan.Actions = append(p.plan.Actions, Action{Verb: Discard, Reason: ReasonInstanceGone, Instance: i.id, Claims: claims})
		}
	}
	if p.ClaimsRefused != "" {
		return
	}
	for _, v := range p.pods {
		if !v.removed && !v.scheduled && p.lacksClaim(v) {
			p.plan.Actions = append(p.plan.Actions, Action{Verb: Provide, Reason: ReasonClaimMissing, Instance: InstanceOf(p.Set, v.pod)})
		}
	}
}

// unwanted reports whether the Pod of the claims is being removed for good. A released
// Pod keeps its claims until it is gone.
func (p *pass) unwanted(i *instance) bool {
	dead := p.Spec.DisableClaimReuse || p.DeletedInstances[i.id]
	switch {
	case p.ReleasedInstances[i.id]:
		return p.DeletedInstances[i.id] // deleted or released: the API server is asked first
	case i.holder == nil:
		return dead
	case i.holder.terminate:
		return dead || i.holder.takesClaims()
	}
	return false
}

// lacksClaim reports whether a Pod waits for a missing claim: someone deleted it before
// the Pod was scheduled. Later the claim's own protection keeps it.
func (p *pass) lacksClaim(v *podState) bool {
	id := InstanceOf(p.Set, v.pod)
	return id != "" && slices.ContainsFunc(p.claimNames(id), func(name string) bool { return mounts(v.pod, name) && !p.byID[id].has(name) })
}

func mounts(pod *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}
