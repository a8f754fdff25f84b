// SPDX-License-Identifier: Apache-2.0

// Package gcpneg shows which addresses the zonal network endpoint groups of Google Cloud's load balancers have, and
// whether they are healthy. Somebody else attaches and detaches them: GKE, which follows a Service. Usher never writes
// there, as GKE would undo that.
package gcpneg

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
	"github.com/usher-dev/usher/internal/registration/registry/targets"
)

// Key is a key of the credentials Secret, besides credentials.KeyCA: the key of a service account.
const Key = "key.json"

// Keys returns all keys of the credentials Secret.
func Keys() []string { return []string{Key, credentials.KeyCA} }

// annotation is the one in which GKE notes the groups of a Service.
const annotation = "cloud.google.com/neg-status"

const (
	// maxGroups bounds the groups of a Service in all their zones: each costs a call.
	maxGroups = 16
	// maxStatus bounds the annotation.
	maxStatus = 16 << 10
)

// FromSpec says how the kind's field of a Registry is to be carried out for Registrations of a namespace. reader reads
// from the API server, not from a cache.
func FromSpec(
	reader client.Reader, clients *Clients, namespace string,
) func(*usherv1alpha1.GCPNEGRegistry) *registry.Settings {
	return func(s *usherv1alpha1.GCPNEGRegistry) *registry.Settings {
		return &registry.Settings{
			Secret: s.CredentialsSecret, Root: namespace, Own: true,
			Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
				lister, err := New(s, reader, clients, root, secret)
				if err != nil {
					return nil, err
				}
				return registry.Follower(lister), nil
			},
		}
	}
}

// Registry implements registry.Lister for the Services of a namespace.
type Registry struct {
	spec      *usherv1alpha1.GCPNEGRegistry
	reader    client.Reader
	namespace string
	api       *api
	release   func() error
}

// New checks what it gets but does not connect. Errors are permanent and name the field or the Secret's key. Without a
// namespace only Ping works.
func New(
	s *usherv1alpha1.GCPNEGRegistry, reader client.Reader, clients *Clients, namespace string, secret map[string][]byte,
) (*Registry, error) {
	if clients == nil {
		clients = NewClients()
	}
	api, release, err := clients.Acquire(settingsOf(s, secret), func() (*api, error) { return newAPI(s, secret) })
	if err != nil {
		return nil, registry.Permanent(err)
	}
	return &Registry{spec: s, reader: reader, namespace: namespace, api: api, release: release}, nil
}

// Ping implements registry.Lister.
func (r *Registry) Ping(ctx context.Context) error { return r.api.ping(ctx) }

// Close implements registry.Lister.
func (r *Registry) Close() error { return r.release() }

// A group is a network endpoint group in a zone.
type group struct{ zone, name string }

// List implements registry.Lister: every endpoint of all groups of the Service. A Pod is in service when each group has
// its address as healthy, in one of the group's zones.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	groups, err := r.groups(ctx, service)
	if err != nil {
		return nil, err
	}
	all := []targets.Target{}
	var found []string
	var missing error
	for _, g := range groups {
		of, err := r.api.endpoints(ctx, g)
		if errors.Is(err, errGone) { // nobody is called through it
			missing = cmp.Or(missing, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, g.name)
		for _, e := range of {
			all = append(all, e.target(g, r.spec.Draining))
		}
	}
	if len(found) == 0 {
		return nil, registry.NoService(registry.Permanent(missing))
	}
	return targets.Entries(slices.Compact(found), all), nil
}

// groups are the groups of a Service, in the order of their names: those that the Registry names, or that GKE has noted.
func (r *Registry) groups(ctx context.Context, service string) (groups []group, err error) {
	for _, one := range r.spec.Groups {
		if one.Namespace == r.namespace && one.Service == service {
			groups = append(groups, inZones(one.Names, one.Zones)...)
		}
	}
	if len(groups) == 0 {
		if groups, err = r.noted(ctx, service); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(groups, func(a, b group) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.zone, b.zone)) })
	if groups = slices.Compact(groups); len(groups) > maxGroups {
		return nil, oneService("Service %s has %d network endpoint groups in all zones, of %d at most: spread it over several Services",
			service, len(groups), maxGroups)
	}
	return groups, nil
}

func inZones(names, zones []string) (groups []group) {
	for _, name := range names {
		for _, zone := range zones {
			groups = append(groups, group{zone, name})
		}
	}
	return groups
}

var (
	names = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	zones = regexp.MustCompile(`^[a-z]+-[a-z0-9]+-[a-z0-9]+$`)
)

// noted are the groups that GKE has noted in the Service's annotation, or in objects if there are none. Whoever may
// write the Service may write that, so names and zones are checked: they become part of a path.
func (r *Registry) noted(ctx context.Context, service string) ([]group, error) {
	object := &corev1.Service{}
	err := r.reader.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: service}, object)
	switch {
	case apierrors.IsNotFound(err):
		return nil, noGroups("there is no Service %s in namespace %s: create it, correct spec.instance.service, or name the network "+
			"endpoint groups in spec.gcpNEG.groups of the Registry", service, r.namespace)
	case err != nil:
		return nil, registry.OneService(endpointslice.Typed(ctx, err))
	}
	groups, err := read(service, object.Annotations[annotation])
	if len(groups) > 0 || err != nil {
		return groups, err
	}
	if groups, err = r.inObjects(ctx, service); len(groups) > 0 || err != nil {
		return groups, err
	}
	return nil, noGroups("GKE has noted no network endpoint groups of Service %s yet, neither in its annotation %s nor in a "+
		"ServiceNetworkEndpointGroup that Usher may list (rbac.networkEndpointGroups of its chart): expose it by an Ingress, a Gateway or the "+
		"annotation cloud.google.com/neg, see its events, or name the groups in spec.gcpNEG.groups of the Registry", service, annotation)
}

// read reads the annotation. It may name none.
func read(service, text string) ([]group, error) {
	var status struct {
		Groups map[string]string `json:"network_endpoint_groups"`
		Zones  []string          `json:"zones"`
	}
	if text == "" {
		return nil, nil
	}
	err := json.Unmarshal([]byte(text), &status)
	named := slices.Collect(maps.Values(status.Groups))
	wrong := func(of *regexp.Regexp, all []string) bool {
		return slices.ContainsFunc(all, func(one string) bool { return len(one) > 63 || !of.MatchString(one) })
	}
	if len(text) > maxStatus || err != nil || wrong(names, named) || wrong(zones, status.Zones) {
		return nil, oneService("the annotation %s of Service %s is none of GKE's: remove it, and GKE writes it again", annotation, service)
	}
	return inZones(named, status.Zones), nil
}

// oneService is a permanent error that concerns one Service: the API works.
func oneService(format string, args ...any) error {
	return registry.OneService(registry.Permanent(fmt.Errorf(format, args...)))
}

// noGroups means that a Service has no groups: nobody is called through them.
func noGroups(format string, args ...any) error {
	return registry.NoService(registry.Permanent(fmt.Errorf(format, args...)))
}

// An endpoint is an address in a group, with what each load balancer's health checks say of it.
type endpoint struct {
	address string
	port    int32
	healths []string
}

// target is what an endpoint is to callers.
func (e endpoint) target(g group, draining usherv1alpha1.TargetDraining) targets.Target {
	health := e.health()
	use, explanation := targets.Unknown, "Usher does not know this state"
	if known, ok := states[health]; ok {
		use, explanation = known.use, known.explanation
	}
	if use == targets.Leaves && draining == usherv1alpha1.TargetDrainingPropagation {
		use = targets.Unused
	}
	return targets.Target{
		Kind: "network endpoint group", Group: g.name, Zone: g.zone, Address: e.address, Port: e.port, Use: use, Version: cmp.Or(health, "NONE"),
		Text: fmt.Sprintf("network endpoint group %s in %s has it as %s: %s", g.name, g.zone, cmp.Or(registry.Excerpt(health), "attached"), explanation),
	}
}

// health is the one that all load balancers agree on. If one does not, it is the state that is furthest from healthy, but
// an endpoint drains only when it drains everywhere.
func (e endpoint) health() string {
	for _, health := range e.healths {
		if _, known := states[health]; !known {
			return health
		}
	}
	for _, health := range []string{"UNKNOWN", "UNHEALTHY"} {
		if slices.Contains(e.healths, health) {
			return health
		}
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(e.healths)))
	switch len(distinct) {
	case 0:
		return ""
	case 1:
		return distinct[0]
	}
	return "UNKNOWN"
}

// states are those of endpoints.
var states = map[string]struct {
	use         targets.Use
	explanation string
}{
	"":          {targets.Comes, "no load balancer has checked its health yet; or no backend service uses the group"},
	"HEALTHY":   {targets.Serves, "it gets requests"},
	"UNHEALTHY": {targets.Comes, "its health checks fail"},
	"UNKNOWN":   {targets.Comes, "its load balancers do not agree on its health, or do not know it"},
	"DRAINING":  {targets.Leaves, "what is in flight there may go on until the connection draining timeout is over"},
}
