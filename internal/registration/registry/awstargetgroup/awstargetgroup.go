// SPDX-License-Identifier: Apache-2.0

// Package awstargetgroup shows which addresses AWS's load balancers have as targets, and whether they are healthy.
// Somebody else registers and deregisters them: AWS Load Balancer Controller, which follows a Service, or a program
// of the user's. Usher never writes there, as the controller would undo that.
package awstargetgroup

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/targets"
)

// maxGroups bounds the target groups of a Service: each costs a call.
const maxGroups = 8

// FromSpec says how the kind's field of a Registry is to be carried out for Registrations of a namespace. reader reads
// from the API server, not from a cache.
func FromSpec(
	reader client.Reader, clients *Clients, namespace string,
) func(*usherv1alpha1.AWSTargetGroupRegistry) *registry.Settings {
	return func(s *usherv1alpha1.AWSTargetGroupRegistry) *registry.Settings {
		return &registry.Settings{
			Secret: s.CredentialsSecret, Root: namespace, Own: true,
			Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
				if s.Manage {
					return NewManaged(s, reader, clients, root, secret)
				}
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
	spec      *usherv1alpha1.AWSTargetGroupRegistry
	reader    client.Reader
	namespace string
	api       *api
	release   func() error
}

// New checks what it gets but does not connect. Errors are permanent and name the field or the Secret's key. Without a
// namespace only Ping works.
func New(
	s *usherv1alpha1.AWSTargetGroupRegistry, reader client.Reader, clients *Clients, namespace string, secret map[string][]byte,
) (*Registry, error) {
	if clients == nil {
		clients = NewClients()
	}
	options := optionsOf(s, secret)
	api, release, err := clients.Acquire(options.Settings(), func() (*api, error) { return newAPI(options) })
	if err != nil {
		return nil, registry.Permanent(err)
	}
	return &Registry{spec: s, reader: reader, namespace: namespace, api: api, release: release}, nil
}

// Ping implements registry.Lister.
func (r *Registry) Ping(ctx context.Context) error { return r.api.ping(ctx) }

// Close implements registry.Lister.
func (r *Registry) Close() error { return r.release() }

// List implements registry.Lister: every target of all target groups of the Service. A Pod is in service when each of
// the groups has its address as healthy.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	groups, err := r.groups(ctx, service)
	if err != nil {
		return nil, err
	}
	var all []targets.Target
	var found []string
	var missing error
	for _, group := range groups {
		of, err := r.api.targets(ctx, group)
		if isGone(err) { // nobody is called through it
			missing = cmp.Or(missing, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, t := range of {
			all = append(all, t.target(r.spec.Draining))
		}
		found = append(found, group.name)
	}
	if len(found) == 0 {
		return nil, registry.NoService(registry.Permanent(missing))
	}
	return targets.Entries(found, all), nil
}

// A group is a target group.
type group struct{ arn, name string }

// arns are what ARNs of target groups look like.
var arns = regexp.MustCompile(`^arn:aws[a-z-]*:elasticloadbalancing:([a-z0-9-]+):[0-9]{12}:targetgroup/([A-Za-z0-9-]{1,32})/[0-9a-z]{1,32}$`)

// groupOf reads an ARN. from is where it is written.
func (r *Registry) groupOf(arn, from string) (group, error) {
	parts := arns.FindStringSubmatch(arn)
	switch {
	case parts == nil:
		return group{}, oneService("%s has %q, which is no ARN of a target group: correct it", from, registry.Excerpt(arn))
	case parts[1] != r.spec.Region:
		return group{}, oneService("%s has a target group of region %s, and spec.awsTargetGroup.region of the Registry is %s: "+
			"use a Registry for that region", from, parts[1], r.spec.Region)
	}
	return group{arn, parts[2]}, nil
}

// groups are the target groups of a Service: those that the Registry names, or that TargetGroupBindings name.
func (r *Registry) groups(ctx context.Context, service string) ([]group, error) {
	var named []string
	for _, one := range r.spec.TargetGroups {
		if one.Namespace == r.namespace && one.Service == service {
			named = append(named, one.ARNs...)
		}
	}
	from := "spec.awsTargetGroup.targetGroups of the Registry"
	if len(named) == 0 {
		bound, err := r.bound(ctx, service)
		if err != nil {
			return nil, err
		}
		named, from = bound, "a TargetGroupBinding of Service "+service
	}
	slices.Sort(named)
	if named = slices.Compact(named); len(named) > maxGroups {
		return nil, oneService("Service %s has %d target groups, of %d at most: spread it over several Services", service, len(named), maxGroups)
	}
	groups := make([]group, len(named))
	for i, arn := range named {
		var err error
		if groups[i], err = r.groupOf(arn, from); err != nil {
			return nil, err
		}
	}
	return groups, nil
}

// oneService is a permanent error that concerns one Service: the API works.
func oneService(format string, args ...any) error {
	return registry.OneService(registry.Permanent(fmt.Errorf(format, args...)))
}

// A target is an address in a target group, in a state, with AWS's reason for it and its words.
type target struct {
	group                      string
	address                    string
	port                       int32
	state, reason, description string
}

// target is what a target is to callers, by its state.
func (t target) target(draining usherv1alpha1.TargetDraining) targets.Target {
	return targets.Target{
		Kind: "target group", Group: t.group, Address: t.address, Port: t.port, Use: t.use(draining), Text: t.describe(),
		Version: strings.TrimSpace(t.state + " " + t.reason),
	}
}

// use is what the load balancer does with the target.
func (t target) use(draining usherv1alpha1.TargetDraining) targets.Use {
	switch {
	case t.state == "unavailable" && t.reason == "Target.HealthCheckDisabled":
		return targets.Serves
	case t.state == "draining" && draining == usherv1alpha1.TargetDrainingPropagation:
		return targets.Unused
	}
	return states[t.state].use
}

// describe says what the target group has, for people.
func (t target) describe() string {
	explanation := cmp.Or(reasons[t.reason], states[t.state].explanation, "Usher does not know this state")
	text := fmt.Sprintf("target group %s has it as %s: %s", t.group, registry.Excerpt(t.state), explanation)
	if t.reason != "" {
		text += " (" + registry.Excerpt(cmp.Or(t.description, t.reason)) + ")"
	}
	return text
}

// states are those of targets.
var states = map[string]struct {
	use         targets.Use
	explanation string
}{
	"initial":            {targets.Comes, "the load balancer registers it, or makes its first health checks"},
	"healthy":            {targets.Serves, "it gets requests"},
	"unhealthy":          {targets.Comes, "its health checks fail, and it gets requests only if those of all targets fail"},
	"unhealthy.draining": {targets.Comes, "its health checks fail, and its connections end"},
	"draining":           {targets.Leaves, "what is in flight there may go on until the deregistration delay is over"},
	"unused":             {targets.Unused, "it gets no requests"},
	"unavailable":        {targets.Comes, "AWS does not know its health"},
}

// reasons are those of AWS's that say what to do.
var reasons = map[string]string{
	"Target.NotInUse": "no listener of a load balancer uses the target group, or the load balancer is not in the target's zone: " +
		"correct the Ingress, the Service or the load balancer's subnets",
	"Target.IpUnusable":          "the address is one of the load balancer's own",
	"Target.HealthCheckDisabled": "its health is not checked, so it counts as healthy",
}
