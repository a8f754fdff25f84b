// SPDX-License-Identifier: Apache-2.0

// Package awscloudmap keeps entries as instances of AWS Cloud Map's services.
//
// Registrations and deregistrations are operations, which Apply awaits. Callers find instances by DiscoverInstances, so
// List reads that; a deregistration that goes on in DNS keeps its entry listed. Cloud Map
// has no compare-and-set: if another writer changes an entry between the list and the write, that change is lost.
package awscloudmap

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// FromSpec says how the kind's field of a Registry is to be carried out.
func FromSpec(clients *Clients) func(*usherv1alpha1.AWSCloudMapRegistry) *registry.Settings {
	return func(s *usherv1alpha1.AWSCloudMapRegistry) *registry.Settings {
		return &registry.Settings{
			Secret: s.CredentialsSecret, Root: s.NamespaceID, Fold: strings.ToLower,
			Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
				return New(s, clients, root, secret)
			},
		}
	}
}

// Registry implements registry.Connector for the services of a Cloud Map namespace.
type Registry struct {
	namespace string
	api       *api
	release   func() error

	mu sync.Mutex
	// leaving are the operations that deregister instances from services with DNS records, by service and ID, until
	// they have ended.
	leaving map[[2]string]leaving
}

// leaving is an instance with the operation that deregisters it, empty if that failed.
type leaving struct {
	instance  instance
	operation string
}

// New checks what it gets but does not connect. Errors are permanent and name the field or the Secret's key.
func New(s *usherv1alpha1.AWSCloudMapRegistry, clients *Clients, namespace string, secret map[string][]byte) (*Registry, error) {
	if clients == nil {
		clients = NewClients()
	}
	options := optionsOf(s, secret)
	api, release, err := clients.Acquire(options.Settings(), func() (*api, error) { return newAPI(options) })
	if err != nil {
		return nil, registry.Permanent(err)
	}
	return &Registry{namespace: namespace, api: api, release: release, leaving: map[[2]string]leaving{}}, nil
}

// Ping implements registry.Connector: it reads the namespace.
func (r *Registry) Ping(ctx context.Context) error {
	_, err := r.api.readNamespace(ctx, r.namespace)
	return err
}

// Close implements registry.Connector.
func (r *Registry) Close() error { return r.release() }

// List implements registry.Connector. An instance that Cloud Map has as unhealthy has the weight 0. One whose
// deregistration goes on is Unsettled.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	found, err := r.read(ctx, service)
	return registry.Listed(found, err, instance.entry)
}

// read returns the instances that callers find, and those whose deregistration goes on.
func (r *Registry) read(ctx context.Context, service string) ([]instance, error) {
	found, err := r.api.discover(ctx, r.namespace, service)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, i := range found {
		there[i.id] = true
	}
	for _, l := range r.leavingFrom(service) {
		if there[l.instance.id] {
			continue // callers find it as before
		}
		gone, err := r.left(ctx, service, l)
		if err != nil {
			return nil, err
		}
		if !gone {
			l.instance.leaves = true
			found = append(found, l.instance)
		}
	}
	return found, nil
}

// left reports whether an instance that callers do not find by DiscoverInstances has left DNS as well. If its operation
// failed, it has not, and the next Remove begins another.
func (r *Registry) left(ctx context.Context, service string, l leaving) (bool, error) {
	if l.operation == "" {
		return false, nil
	}
	ended, err := r.api.ended(ctx, l.operation)
	switch {
	case err != nil && ended:
		r.remember(service, leaving{l.instance, ""})
		return false, nil
	case ended:
		r.forget(service, l.instance.id)
	}
	return ended, err
}

// leavingFrom are the instances of a service that are being deregistered, sorted.
func (r *Registry) leavingFrom(service string) (all []leaving) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, l := range r.leaving {
		if key[0] == service {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b leaving) int { return cmp.Compare(a.instance.id, b.instance.id) })
	return all
}

func (r *Registry) forget(service, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.leaving, [2]string{service, id})
}

func (r *Registry) remember(service string, l leaving) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving[[2]string{service, l.instance.id}] = l
}

// Attributes of instances, as AWS and Usher call them.
const (
	attributeIPv4   = "AWS_INSTANCE_IPV4"
	attributeIPv6   = "AWS_INSTANCE_IPV6"
	attributePort   = "AWS_INSTANCE_PORT"
	attributeHealth = "AWS_INIT_HEALTH_STATUS"
	// reserved begins the keys that AWS acts upon: an alias or a CNAME would lead callers elsewhere.
	reserved        = "AWS_"
	attributeWeight = registry.MetaPrefix + "weight"
	attributeID     = registry.MetaPrefix + "id"
	// maxID is how long Cloud Map's IDs may be.
	maxID = 64
)

// instance is an instance as Cloud Map has it.
type instance struct {
	id         string
	attributes map[string]string
	// unhealthy instances get no callers.
	unhealthy bool
	// leaves means that its deregistration goes on.
	leaves bool
}

// instanceOf reads a part of an answer.
func instanceOf(i *types.HttpInstanceSummary) instance {
	attributes := maps.Clone(i.Attributes)
	delete(attributes, attributeHealth) // what it was at first
	return instance{
		id: aws.ToString(i.InstanceId), attributes: attributes, unhealthy: i.HealthStatus == types.HealthStatusUnhealthy,
	}
}

// has reports whether the instance has these attributes, and no others but AWS's own.
func (i instance) has(attributes map[string]string) bool {
	for key, value := range attributes {
		if have, there := i.attributes[key]; !there || have != value {
			return false
		}
	}
	for key := range i.attributes {
		if _, there := attributes[key]; !there && !strings.HasPrefix(key, reserved) {
			return false
		}
	}
	return true
}

// version changes with what callers see.
func (i instance) version() string {
	return registry.Digest(encode.JSON([]any{i.attributes, i.unhealthy, i.leaves}))
}

// entry is the instance as an entry.
func (i instance) entry() registry.Entry {
	e := registry.Entry{ID: i.id, Weight: 1, Owner: registry.MarkedOwner(i.attributes), Version: i.version()}
	e.Address = canonical(cmp.Or(i.attributes[attributeIPv4], i.attributes[attributeIPv6]))
	if port, err := strconv.ParseInt(i.attributes[attributePort], 10, 32); err == nil {
		e.Port = int32(port)
	}
	if e.Owner != (registry.Owner{}) {
		e.ID = cmp.Or(i.attributes[attributeID], i.id)
		if weight, err := strconv.ParseInt(i.attributes[attributeWeight], 10, 32); err == nil && weight > 0 {
			e.Weight = int32(weight)
		}
	}
	switch {
	case i.leaves:
		e.Weight, e.Unsettled = 0, "Cloud Map deregisters it, and its operation has not ended: DNS may have it yet"
	case i.unhealthy:
		e.Weight = 0
		if e.Owner == (registry.Owner{}) {
			e.Hidden = "Cloud Map has it as unhealthy"
		}
	}
	e.SetMarkedMetadata(i.attributes, func(key string) bool { return strings.HasPrefix(key, reserved) })
	return e
}

// wanted is the instance for an entry. One that is held back keeps the weight that it had.
func wanted(e registry.Entry, there *instance) (instance, error) {
	attributes, err := e.MarkedMetadata(func(key, _ string) error {
		if strings.HasPrefix(strings.ToUpper(key), reserved) {
			return fmt.Errorf("the key %q begins like AWS's own, by which callers may be led elsewhere: use another", registry.Excerpt(key))
		}
		return nil
	})
	if err != nil {
		return instance{}, err
	}
	address, err := netip.ParseAddr(e.Address)
	if err != nil {
		return instance{}, registry.Permanent(err)
	}
	attributes[attributePort] = strconv.Itoa(int(e.Port))
	if address.Is4() {
		attributes[attributeIPv4] = e.Address
	} else {
		attributes[attributeIPv6] = e.Address
	}
	attributes[attributeWeight] = strconv.Itoa(int(e.Weight))
	if e.Weight == 0 {
		attributes[attributeWeight] = "1"
		if there != nil {
			attributes[attributeWeight] = cmp.Or(there.attributes[attributeWeight], "1")
		}
	}
	id := idOf(e.ID)
	if id != e.ID {
		attributes[attributeID] = e.ID
	}
	return instance{id: id, attributes: attributes, unhealthy: e.Weight == 0}, nil
}

// idOf is the ID in Cloud Map of an entry: IDs are short there.
func idOf(id string) string {
	if len(id) <= maxID {
		return id
	}
	digest := registry.Digest([]byte(id))
	return id[:maxID-1-len(digest)] + "." + digest
}

// canonical is an address as Kubernetes writes it.
func canonical(address string) string {
	if parsed, err := netip.ParseAddr(address); err == nil {
		return parsed.String()
	}
	return address
}
