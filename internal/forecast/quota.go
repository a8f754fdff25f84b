// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"

	"github.com/usher-dev/usher/internal/cloneset/plan"
)

const objects, requests, limits corev1.ResourceName = "count/pods", "requests.", "limits."

// usage counts what the set's Pods use of the quotas of its namespace.
type usage struct {
	// each is what a Pod of a revision uses.
	each map[string]corev1.ResourceList
	// now, most and last are what all Pods use: before the play, at its maximum, and after it.
	now, most, last corev1.ResourceList
}

// usageOf returns a usage to count with; nil if no quota needs it.
func (c *Change) usageOf() *usage {
	if len(c.Quotas) == 0 && c.Exceeded == "" {
		return nil
	}
	u := &usage{each: map[string]corev1.ResourceList{}, most: corev1.ResourceList{}}
	u.now = u.held(c.Pods, true)
	if c.Trial != nil {
		u.held([]*corev1.Pod{c.Trial}, true)
	}
	return u
}

// note counts what Pods use at a time of the play.
func (u *usage) note(pods []*corev1.Pod) {
	u.last = u.held(pods, false)
	for name, quantity := range u.last {
		if most := u.most[name]; quantity.Cmp(most) > 0 {
			u.most[name] = quantity
		}
	}
}

// held returns what Pods use. A Pod that is terminating or has ended releases that by itself, and the
// controller tries again. So it counts only in the present usage.
func (u *usage) held(pods []*corev1.Pod, now bool) corev1.ResourceList {
	count, ended := map[string]int64{}, int64(0)
	for _, pod := range pods {
		switch {
		case !now && pod.DeletionTimestamp != nil:
		case pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded:
			ended++
		default:
			of := plan.RevisionOf(pod)
			if u.each[of] == nil {
				u.each[of] = holds(pod)
			}
			count[of]++
		}
	}
	all := corev1.ResourceList{}
	if now {
		all[objects] = *resource.NewQuantity(ended, resource.DecimalSI)
	}
	for _, of := range slices.Sorted(maps.Keys(count)) {
		for name, one := range u.each[of] {
			one = one.DeepCopy()
			one.Mul(count[of])
			sum := all[name]
			sum.Add(one)
			all[name] = sum
		}
	}
	return all
}

// holds returns what a Pod uses, by the names in quotas.
func holds(pod *corev1.Pod) corev1.ResourceList {
	one := resource.MustParse("1")
	all := corev1.ResourceList{corev1.ResourcePods: one, objects: one}
	for name, quantity := range helper.PodRequests(pod, helper.PodResourcesOptions{}) {
		all[name], all[requests+name] = quantity, quantity
	}
	for name, quantity := range helper.PodLimits(pod, helper.PodResourcesOptions{}) {
		all[limits+name] = quantity
	}
	return all
}

// exceeds returns the quotas that a play exceeds. For quotas that it cannot count, the API server was
// asked for one more Pod: its refusal matters if there are more Pods at some time than now.
func (c *Change) exceeds(u *usage) []string {
	if u == nil {
		return nil
	}
	over := u.refusals(c.Quotas)
	if more := beyond(u.most[corev1.ResourcePods], u.now[corev1.ResourcePods]); len(over) == 0 && c.Exceeded != "" && !more.IsZero() {
		return []string{c.Exceeded}
	}
	return over
}

// refusals returns the quotas that the Pods exceed together.
func (u *usage) refusals(quotas []*corev1.ResourceQuota) []string {
	var all []string
	for _, quota := range slices.SortedFunc(slices.Values(quotas), func(a, b *corev1.ResourceQuota) int { return cmp.Compare(a.Name, b.Name) }) {
		if len(quota.Spec.Scopes) > 0 || quota.Spec.ScopeSelector != nil {
			continue
		}
		var over []string
		remedy := "lower updateStrategy.maxSurge"
		for _, name := range slices.Sorted(maps.Keys(quota.Status.Hard)) {
			left := beyond(quota.Status.Hard[name], quota.Status.Used[name])
			wanted := beyond(u.most[name], u.now[name])
			if wanted.Cmp(left) <= 0 {
				continue
			}
			over = append(over, fmt.Sprintf("%s %s more wanted, %s left", name, &wanted, &left))
			if last := beyond(u.last[name], u.now[name]); last.Cmp(left) > 0 {
				remedy = "ask for fewer or smaller Pods"
			}
		}
		if len(over) > 0 {
			all = append(all, fmt.Sprintf("quota %s: %s; raise it or %s", quota.Name, strings.Join(over, ", "), remedy))
		}
	}
	return all
}

// beyond returns by how much a is more than b.
func beyond(a, b resource.Quantity) resource.Quantity {
	if a.Cmp(b) <= 0 {
		return resource.Quantity{}
	}
	a = a.DeepCopy()
	a.Sub(b)
	return a
}
