// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Place is a service in a registry: what one List covers.
type Place struct {
	// Registry is the name of the Registry object.
	Registry string
	// Prefix is where the Registry keeps its services; empty for kinds without one.
	Prefix string
	// Service is the name that callers ask for.
	Service string
}

// String is the place as drain records name it.
func (p Place) String() string { return p.Registry + "/" + p.Prefix + "/" + p.Service }

func comparePlaces(a, b Place) int {
	return cmp.Or(strings.Compare(a.Registry, b.Registry), strings.Compare(a.Prefix, b.Prefix),
		strings.Compare(a.Service, b.Service))
}

// RegistryState is what a pass knows of a Registry object.
type RegistryState struct {
	// Prefix is where new entries go.
	Prefix string
	// Denied says that spec.namespaces leaves this namespace out.
	Denied bool
	// Leaving says that the object is being deleted: what is there may be kept
	// up and removed, and no Registration may begin to use it.
	Leaving bool
	// HoldsBack says that entries of weight 0 stay there and get no callers.
	HoldsBack bool
	// Outage is when it last did not answer.
	Outage Outage
	// Err is why the registry could not be used when it was last tried.
	Err error
}

// Listing is what a place had when it was listed in this pass.
type Listing struct {
	// Entries are those of all owners.
	Entries []registry.Entry
	// Err says why Entries is not known.
	Err error
}

// Snapshot is all that a plan depends on.
type Snapshot struct {
	// Now is the time of the pass.
	Now time.Time
	// Cluster is the UID of the kube-system namespace.
	Cluster string
	// Namespace that the pass looks after.
	Namespace string
	// Registrations of the namespace, sorted by name.
	Registrations []*usherv1alpha1.Registration
	// Pods are all of the namespace, sorted by name.
	Pods []*corev1.Pod
	// CloneSets are all of the namespace, sorted by name.
	CloneSets []*appsv1alpha1.CloneSet
	// Registries by name; one that is missing here does not exist.
	Registries map[string]RegistryState
	// Known has "namespace/name" of every Registration of the cluster.
	Known map[string]bool
	// Listings of this pass. A place that is missing was not listed.
	Listings map[Place]Listing
	// Failed has, for each place, why changes that this pass tried were not made:
	// by entry ID, or under "" for all of them.
	Failed map[Place]map[string]error
	// Due are places to be compared although no Pod asks for it.
	Due map[Place]bool
	// Sweep are places whose orphans are looked for in this pass.
	Sweep map[Place]bool
	// Suspects are the orphans that the previous sweep of a place found and left.
	Suspects map[Place]map[string]bool
}
