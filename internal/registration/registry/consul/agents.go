// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/rest"
)

// What an application registers belongs to an agent, which undoes what others write to the catalog about it. So an
// override is the maintenance mode of the service on that agent. The catalog says where the agent is, and anybody who
// may write there can make it say anything: Usher talks only to addresses in the networks that the Registry names, and
// changes only what the agent itself has at the entry's address.

const (
	// maintenance is the prefix of the check by which an agent keeps callers from one of its services.
	maintenance = "_service_maintenance:"
	// outReason begins the reason of a maintenance that Usher has turned on, and before stands in front of the reason
	// that somebody else had given: an agent keeps the first one.
	outReason, before = "Usher: ", "; in maintenance before: "
	// parallel is how many agents are asked at a time.
	parallel = 16
	// agentTimeout bounds what one agent may take, so that it holds up no other one for longer.
	agentTimeout = 2 * time.Second
	// readBack is the shortest time between two lists of the catalog.
	readBack = 50 * time.Millisecond
)

// agents are where agents may be, and how to talk to them.
type agents struct {
	allowed []netip.Prefix
	scheme  string
	port    string
	client  *rest.Client
}

// newAgents returns nil if the Registry names no agents. Errors are permanent and name the field or the Secret's key.
func newAgents(s *usherv1alpha1.ConsulAgents, secret map[string][]byte) (*agents, error) {
	token, header, err := tokenIn(secret, KeyAgentToken)
	if err == nil && token == "" {
		_, header, err = tokenIn(secret, KeyToken)
	} else if err == nil && len(secret[KeyToken]) == 0 {
		err = registry.Permanent(fmt.Errorf(
			"the credentials Secret has the key %s and not %s: put the token for the catalog there", KeyAgentToken, KeyToken))
	}
	if err != nil || s == nil {
		return nil, err
	}
	a := &agents{scheme: cmp.Or(s.Scheme, "https"), port: strconv.Itoa(int(cmp.Or(s.Port, 8501)))}
	for _, text := range s.AllowedAddresses {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, registry.Permanent(fmt.Errorf(
				"consul.agents.allowedAddresses: %w: write a network like 10.0.0.0/16", err))
		}
		a.allowed = append(a.allowed, network)
	}
	a.client, err = rest.New(rest.Options{
		Field: "consul.agents", Example: "https", Address: a.scheme + "://agent", Secret: secret, Header: header,
		ServerName: s.ServerName, Hint: "the keys " + KeyAgentToken + " and " + KeyToken + " of the credentials Secret",
	})
	return a, err
}

// of returns a client of the agent of an instance's node. Errors are permanent.
func (a *agents) of(i instance) (*rest.Client, error) {
	if a == nil {
		return nil, registry.Permanent(errors.New(
			"only its agent can take it out of service: set consul.agents of the Registry"))
	}
	address, err := netip.ParseAddr(i.Node.Address)
	if err != nil || !a.allow(address.Unmap()) {
		return nil, registry.Permanent(fmt.Errorf(
			"its node %s has the address %s in Consul's catalog, which is in no network of consul.agents.allowedAddresses of "+
				"the Registry: add the network of your agents, if that is one of them",
			registry.Excerpt(i.Node.Node), registry.Excerpt(i.Node.Address)))
	}
	return a.client.At(a.scheme + "://" + net.JoinHostPort(address.Unmap().String(), a.port)), nil
}

// allow reports whether the Registry names a network of the address. Who allows all addresses does not think of those
// of Usher's own node.
func (a *agents) allow(address netip.Addr) bool {
	return slices.ContainsFunc(a.allowed, func(network netip.Prefix) bool {
		return network.Contains(address) && (ordinary(address) || !ordinary(network.Addr()) && network.Bits() > 0)
	})
}

func ordinary(address netip.Addr) bool { return address.IsGlobalUnicast() && address.Zone() == "" }

// maintained is a change of an instance that its agent makes.
type maintained struct {
	change registry.Change
	there  instance
	agent  *rest.Client
}

// override has agents make changes, and returns when the catalog shows them. An agent that fails is an error of its
// instances alone.
func (r *Registry) override(ctx context.Context, service string, changes []registry.Change) error {
	instances, index, err := r.readAfter(ctx, service, "")
	if err != nil {
		return err
	}
	entry := func(i instance) registry.Entry { return i.entry(service) }
	decide := func(c registry.Change, there *instance) (maintained, error) {
		agent, err := r.agents.of(*there)
		return maintained{change: c, there: *there, agent: agent}, err
	}
	steps, refused := registry.Decide(instances, entry, changes, decide)
	errs := registry.Each(ctx, len(steps), parallel, func(n int) error { return steps[n].make(ctx) })
	all := []error{refused}
	var made []maintained
	for n, err := range errs {
		if err == nil {
			made = append(made, steps[n])
			continue
		}
		node := registry.Excerpt(steps[n].there.Node.Node)
		all = append(all, steps[n].change.Refused(fmt.Errorf("the agent of its node %s: %w", node, err)))
	}
	return errors.Join(append(all, r.shown(ctx, service, index, made))...)
}

// make turns the maintenance mode on or off.
func (m maintained) make(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	if err := m.verify(ctx); err != nil {
		return err
	}
	now := ""
	if on := m.there.maintenance(); on != nil {
		now = on.Notes
	}
	reason := ""
	if m.change.Op == registry.TakeOut {
		reason = outReason + m.change.Entry.Owner.String() + " leaves"
		if now != "" {
			reason += before + now
		}
	} else {
		_, reason, _ = strings.Cut(now, before)
	}
	if now != "" {
		if err := m.set(ctx, url.Values{"enable": {"false"}}); err != nil {
			return err
		}
	}
	if reason == "" {
		return nil
	}
	return m.set(ctx, url.Values{"enable": {"true"}, "reason": {reason}})
}

// verify returns an error unless the agent has the service at the entry's address: the catalog may name another agent
// than the one that registered it.
func (m maintained) verify(ctx context.Context) error {
	id := m.there.Service.ID
	if path.Clean("/"+id) != "/"+id {
		return registry.Permanent(fmt.Errorf(
			"the service ID %s is no part of a path: register another one", registry.Excerpt(id)))
	}
	answer, err := m.agent.Send(ctx, rest.Question{
		Method: http.MethodGet, Path: "/v1/agent/service/" + url.PathEscape(id),
	})
	switch {
	case err != nil:
		return err
	case answer.Code == http.StatusNotFound:
		return registry.Transient(fmt.Errorf("%s does not know the service ID %s: is it the agent that registered it?",
			answer.Where, registry.Excerpt(id)))
	case answer.Code != http.StatusOK:
		return answer.Refusal()
	}
	var has service
	if err := answer.Decode("an agent of Consul", &has); err != nil {
		return err
	}
	if has.ID != id || has.Port != m.there.Service.Port || has.Address != m.there.Service.Address {
		return fmt.Errorf("%s has another service with the ID %s: %w",
			answer.Where, registry.Excerpt(id), registry.ErrConflict)
	}
	return nil
}

// set is no error for a service that has gone meanwhile.
func (m maintained) set(ctx context.Context, query url.Values) error {
	answer, err := m.agent.Send(ctx, rest.Question{
		Method: http.MethodPut, Path: "/v1/agent/service/maintenance/" + url.PathEscape(m.there.Service.ID), Query: query,
	})
	switch {
	case err != nil:
		return err
	case answer.Code == http.StatusOK, answer.Code == http.StatusNotFound:
		return nil
	}
	return answer.Refusal()
}

// shown waits until the catalog shows what agents have changed: agents report to it by themselves.
func (r *Registry) shown(ctx context.Context, service, index string, made []maintained) error {
	if len(made) == 0 {
		return nil
	}
	tick := time.NewTicker(readBack) // for a server that does not wait
	defer tick.Stop()
	for {
		instances, next, err := r.readAfter(ctx, service, index)
		switch {
		case err == nil:
			index, made = next, unseen(service, instances, made)
		case ctx.Err() == nil:
			return err
		}
		if len(made) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			late := registry.Transient(fmt.Errorf(
				"its agent has changed it, and the catalog does not show that yet: %w", context.Cause(ctx)))
			return errors.Join(list.Map(made, func(m maintained) error { return m.change.Refused(late) })...)
		case <-tick.C:
		}
	}
}

// unseen are the changes that the catalog does not show.
func unseen(service string, instances []instance, made []maintained) []maintained {
	have := list.By(registry.Entries(instances, func(i instance) registry.Entry { return i.entry(service) }),
		func(e registry.Entry) string { return e.ID })
	return list.Only(made, func(m maintained) bool {
		e, there := have[m.change.Entry.ID]
		return there && e.Override != (m.change.Op == registry.TakeOut)
	})
}

// maintenance is the check that keeps callers from the instance in its agent's maintenance mode; nil if there is none.
func (i instance) maintenance() *check {
	return list.Find(i.Checks, func(c *check) bool { return c.CheckID == maintenance+i.Service.ID })
}

// overridden reports whether Usher has turned the maintenance mode on.
func (i instance) overridden() bool {
	on := i.maintenance()
	return on != nil && strings.HasPrefix(on.Notes, outReason)
}

// hidden is why callers do not get an application's instance; empty if they do.
func (i instance) hidden() string {
	failed := list.Find(i.Checks, func(c *check) bool { return c.Status != passing })
	switch on := i.maintenance(); {
	case on != nil && on.Status != passing:
		return "it is in maintenance on its agent: " + registry.Excerpt(on.Notes)
	case failed != nil:
		return fmt.Sprintf("its check %s is %s in Consul",
			registry.Excerpt(cmp.Or(failed.Name, failed.CheckID)), registry.Excerpt(failed.Status))
	case i.Service.Weights.Passing <= 0:
		return "its weight is 0"
	}
	return ""
}
