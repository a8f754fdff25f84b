// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Target is a service in a registry: what one List covers.
type Target = usherv1alpha1.Target

func compareTargets(a, b Target) int {
	return cmp.Or(strings.Compare(a.Registry, b.Registry), strings.Compare(a.Prefix, b.Prefix),
		strings.Compare(a.Service, b.Service))
}

// RegistryState is what a pass knows of a Registry object.
type RegistryState struct {
	// Prefix is where new entries go.
	Prefix string
	// Denied means that spec.namespaces leaves this namespace out.
	Denied bool
	// Leaving means that the object is being deleted: existing entries may be kept up and
	// removed, and no Registration may begin to use it.
	Leaving bool
	// HoldsBack means that entries of weight 0 stay there and get no callers.
	HoldsBack bool
	// Gated means that Kubernetes lists Pods there while they are Ready: nothing is
	// written, and the Pods' readiness gate decides.
	Gated bool
	// Rules are those of spec.services, in their order; Strict refuses services that none
	// names.
	Rules  []ServiceRule
	Strict bool
	// Users are the Registrations of all namespaces that may have entries there, by the
	// Registry's status.
	Users []usherv1alpha1.RegistryUser
	// Fold is what the registry makes of a service's name; nil if it tells all names apart.
	Fold func(string) string
	// Own means that services are kept in the snapshot's namespace.
	Own bool
	// Outage is when it last did not answer.
	Outage Outage
	// Err is why the registry could not be used when it was last tried.
	Err error
}

// Listing is what a target listed in this pass.
type Listing struct {
	// Entries are those of all owners.
	Entries []registry.Entry
	// Err is why Entries is not known.
	Err error
}

// Snapshot is everything that a plan is made from. Nothing in it may change while a plan
// is made, and the plan shares its objects.
type Snapshot struct {
	// Now is the time of the pass, by the clock of Process.
	Now     time.Time
	Process string
	// Cluster is the UID of the kube-system namespace.
	Cluster string
	// Namespace is the one that the pass reconciles.
	Namespace string
	// Registrations of the namespace, sorted by name.
	Registrations []*usherv1alpha1.Registration
	// Pods are all of the namespace, sorted by name.
	Pods []*corev1.Pod
	// CloneSets are all of the namespace, sorted by name.
	CloneSets []*appsv1alpha1.CloneSet
	// Budgets are the PodDisruptionBudgets of the namespace, sorted by name.
	Budgets []*policyv1.PodDisruptionBudget
	// Registries by name; one that is missing here does not exist.
	Registries map[string]RegistryState
	// Known has "namespace/name" of every Registration of this namespace, and of others that own
	// listed entries.
	Known map[string]bool
	// Listings of this pass. A target that is missing was not listed.
	Listings map[Target]Listing
	// Failed has, for each target, why changes that this pass tried were not made: by
	// entry ID, or under "" for all of them.
	Failed map[Target]map[string]error
	// Due are targets to be compared although no Pod asks for it.
	Due map[Target]bool
	// Sweep are targets whose orphans are looked for in this pass.
	Sweep map[Target]bool
	// Suspects are the orphans that the previous sweep of a target found and left.
	Suspects map[Target]map[string]bool
	// Memory makes plans for the same namespace cheaper; nil plans from scratch.
	Memory *Memory
}
