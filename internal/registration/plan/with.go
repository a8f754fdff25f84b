// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// This file makes snapshots from others: what a pass knows after one of its steps. Nobody changes a snapshot. The new one
// shares with the old one what is the same in both.

// At is the snapshot at another time.
func (s Snapshot) At(now time.Time) Snapshot {
	s.Now = now
	return s
}

// WithRegistrations has these Registrations, sorted by name, and knows them.
func (s Snapshot) WithRegistrations(registrations []*usherv1alpha1.Registration, known ...string) Snapshot {
	s.Registrations = slices.SortedStableFunc(slices.Values(registrations), func(a, b *usherv1alpha1.Registration) int {
		return strings.Compare(a.Name, b.Name)
	})
	return s.WithKnown(known...)
}

// WithKnown knows more Registrations, by "namespace/name".
func (s Snapshot) WithKnown(names ...string) Snapshot {
	if len(names) == 0 {
		return s
	}
	s.Known = cloned(s.Known)
	for _, name := range names {
		s.Known[name] = true
	}
	return s
}

// WithOwners has these owners of Pods, and these nodes.
func (s Snapshot) WithOwners(owners map[OwnerRef]Owner, nodes map[string]Node) Snapshot {
	s.Owners, s.Nodes = owners, nodes
	return s
}

// WithEvictions has these evictions, sorted by name.
func (s Snapshot) WithEvictions(evictions []Eviction) Snapshot {
	s.Evictions = evictions
	return s
}

// WithDue has more targets compared.
func (s Snapshot) WithDue(targets ...Target) Snapshot {
	s.Due = cloned(s.Due)
	for _, target := range targets {
		s.Due[target] = true
	}
	return s
}

// WithSweeps looks for orphans in these targets.
func (s Snapshot) WithSweeps(targets map[Target]bool) Snapshot {
	s.Sweep = targets
	return s
}

// WithSuspects has these orphans that sweeps found and left.
func (s Snapshot) WithSuspects(suspects map[Target]map[string]bool) Snapshot {
	s.Suspects = suspects
	return s
}

// WithListings has newer listings, and what is known of followed targets.
func (s Snapshot) WithListings(listings map[Target]Listing, followed map[Target]Followed) Snapshot {
	s.Listings, s.Followed = cloned(s.Listings), cloned(s.Followed)
	maps.Copy(s.Listings, listings)
	maps.Copy(s.Followed, followed)
	return s
}

// WithFailed has why changes of targets were not made, by entry ID. An earlier reason counts more than a later one.
func (s Snapshot) WithFailed(failed map[Target]map[string]error) Snapshot {
	before := s.Failed
	s.Failed = cloned(before)
	for target, byID := range failed {
		all := cloned(byID)
		maps.Copy(all, before[target])
		if len(all) > 0 {
			s.Failed[target] = all
		}
	}
	return s
}

// WithLeft has the UIDs of further Pods whose entries were taken out.
func (s Snapshot) WithLeft(left map[Target][]string) Snapshot {
	before := s.Left
	s.Left = cloned(before)
	for target, uids := range left {
		all := cloned(before[target])
		for _, uid := range uids {
			all[uid] = true
		}
		s.Left[target] = all
	}
	return s
}

// WithRegistries has other states of the Registries.
func (s Snapshot) WithRegistries(next func(name string, state RegistryState) RegistryState) Snapshot {
	before := s.Registries
	s.Registries = make(map[string]RegistryState, len(before))
	for name, state := range before {
		s.Registries[name] = next(name, state)
	}
	return s
}

// ReadPod is what the API server has of a Pod: Pod has another UID if there is none with that one.
type ReadPod struct {
	Name string
	UID  types.UID
	Pod  *corev1.Pod
}

// WithPods has the API server's versions of Pods, and reports whether that changes anything.
func (s Snapshot) WithPods(read []ReadPod) (next Snapshot, changed bool) {
	before := s.Pods
	s.Pods = slices.Clone(before)
	for _, r := range read {
		at, found := s.Find(r.Name)
		found = found && s.Pods[at].UID == r.UID
		switch {
		case r.Pod.UID != r.UID && !found:
			continue
		case r.Pod.UID != r.UID:
			s.Pods = slices.Delete(s.Pods, at, at+1)
		case !found:
			s.Pods = slices.Insert(s.Pods, at, r.Pod)
		case s.Pods[at].ResourceVersion == r.Pod.ResourceVersion:
			continue
		default:
			s.Pods[at] = r.Pod
		}
		changed = true
	}
	return s, changed
}

// Find returns the index of a Pod, or where it belongs.
func (s Snapshot) Find(pod string) (at int, found bool) {
	return slices.BinarySearchFunc(s.Pods, pod, func(pod *corev1.Pod, name string) int { return strings.Compare(pod.Name, name) })
}

// Pod returns the Pod of a name; nil if there is none.
func (s Snapshot) Pod(name string) *corev1.Pod {
	if at, found := s.Find(name); found {
		return s.Pods[at]
	}
	return nil
}

// cloned is a copy to write to.
func cloned[K comparable, V any](all map[K]V) map[K]V {
	next := make(map[K]V, len(all))
	maps.Copy(next, all)
	return next
}
