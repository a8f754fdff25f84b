// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// With drain.application, the application itself is asked to take its entries out, and to come back: a registry such as
// ZooKeeper or etcd has no override that lasts. An entry is out when it is gone or callers do not get it. An entry does
// not show who took it out. So the annotation usher.dev/asked names the Registrations that have asked, from before they
// ask until the Pod is in service again. See docs/design/0013-self-registered.md.

// Call is a request to a Pod's application.
type Call struct {
	// At is the Pod's address, and Path the path with its query.
	At           netip.AddrPort
	Method, Path string
	// Body is JSON; empty for none.
	Body string
	// Hint says what to look at if nobody answers.
	Hint string
}

// QosPort is the port of Dubbo's QoS server.
const QosPort = 22222

// asks reports whether the Registration's applications are asked to leave, and not the registry to override them.
func (r *registration) asks() bool { return r.byApplication() && r.Spec.Drain.Application != nil }

// Asked returns the changes that applications are asked for, and the rest, which registries make.
func (c Changes) Asked() (asked []registry.Change, rest Changes) {
	called := func(change registry.Change) bool { _, calls := c.Calls[change.Entry.ID]; return calls }
	leaving, leaves := split(c.Leaves, called)
	joining, joins := split(c.Joins, called)
	c.Leaves, c.Joins = leaves, joins
	return slices.Concat(leaving, joining), c
}

// requestOf is what the application is asked.
func requestOf(
	a *usherv1alpha1.AskedApplication, op registry.Op,
) (request usherv1alpha1.ApplicationRequest, hint string) {
	leaves := op == registry.TakeOut
	switch {
	case a.Preset == usherv1alpha1.PresetSpringBootActuator:
		status := map[bool]string{true: "OUT_OF_SERVICE", false: "UP"}[leaves]
		request = usherv1alpha1.ApplicationRequest{
			Method: "POST", Path: "/actuator/serviceregistry", Body: `{"status":"` + status + `"}`,
		}
		return request, "set management.endpoints.web.exposure.include=serviceregistry in the application, have " +
			"management.server.address accept other hosts, and drain.application.port to the port of management.server.port"
	case a.Preset == usherv1alpha1.PresetDubboQos:
		request = usherv1alpha1.ApplicationRequest{
			Method: "GET", Path: map[bool]string{true: "/offline", false: "/online"}[leaves],
		}
		return request, "Dubbo's QoS server answers only its own host by default: set " +
			"dubbo.application.qos-accept-foreign-ip=true and qos-anonymous-allow-commands=offline,online in the " +
			"application, or Usher's address in qos-accept-foreign-ip-whitelist"
	case leaves && a.Leave != nil:
		request = *a.Leave
	case !leaves && a.Return != nil:
		request = *a.Return
	}
	request.Method = cmp.Or(request.Method, "POST")
	return request, "have it listen on the Pod's address, not only on that of the loopback interface, and let " +
		"NetworkPolicies pass Usher"
}

// callOf is the request that asks the Pod's application; nil if it cannot be asked, and callAt says why.
func (ix *index) callOf(r *registration, p *pod, op registry.Op) *Call {
	at, err := ix.callAt(r, p)
	if err != nil {
		return nil
	}
	request, hint := requestOf(r.Spec.Drain.Application, op)
	return &Call{At: at, Method: request.Method, Path: request.Path, Body: request.Body, Hint: hint}
}

// callAt is where the Pod's application is asked. A Pod in its node's network is not.
func (ix *index) callAt(r *registration, p *pod) (at netip.AddrPort, err error) {
	addresses := addressesIn(p.Pod, r.Spec.Instance.IPFamily)
	if len(addresses) == 0 {
		return at, errors.New("it has no address of the family in spec.instance.ipFamily")
	}
	address, err := ix.ownAddress(addresses[0])
	if err != nil {
		return at, err
	}
	if inNodeNetwork(p.Pod, address) {
		return at, fmt.Errorf("its address %s is its node's, too, and Usher asks nobody but a Pod", address)
	}
	wanted := r.Spec.Drain.Application.Port
	if wanted == (intstr.IntOrString{}) {
		wanted = intstr.FromInt32(QosPort)
	}
	port, err := portToCall(p.Pod, wanted, "spec.drain.application.port")
	return netip.AddrPortFrom(address, port), err
}

// askedBy are the Registrations that have asked the Pod's application to leave, by its annotation.
func (p *pod) askedBy() []string {
	text := p.Annotations[usherv1alpha1.AnnotationAsked]
	return list.Only(strings.Split(text, ","), func(name string) bool { return name != "" })
}

// asked reports whether the Registration has asked the Pod's application to leave.
func (p *pod) asked(r *registration) bool { return slices.Contains(p.askedBy(), r.Name) }

// callable reports whether callers get an entry of an application, or may get it.
func callable(e *registry.Entry) bool { return e.Weight > 0 || e.Unsettled != "" }

// stepsOfAsked are what the Pod's application is asked about a target: one step at most.
func (ix *index) stepsOfAsked(r *registration, t Target, p *pod, listed *targetListing) []step {
	s := step{
		stand: ix.standOf(r, p), why: p.unfit(r), entry: registry.Entry{ID: ix.nameIn(r, p), Owner: ix.entry(r, p).Owner},
	}
	serving := list.Only(ix.ofApplication(r, p, listed), callable)
	switch {
	case !p.asked(r):
		return nil // nobody would know that it has to come back
	case s.stand == standsOut && len(serving) > 0 && !r.mayNot(t):
		s.call = ix.callOf(r, p, registry.TakeOut)
	case s.stand == standsIn && len(serving) == 0 && p.unready == "" && ix.mayReturn(r, p):
		s.call = ix.callOf(r, p, registry.BringBack)
	}
	if s.call == nil || len(ix.places(r, p)) == 0 {
		return nil
	}
	s.entry.Address, s.entry.Port = s.call.At.Addr().String(), portOf(p.Pod, r.Spec.Instance.Port)
	return []step{s}
}

// beginsToAsk are the Registrations that ask the Pod's application to leave from now on.
func (ix *index) beginsToAsk(p *pod) (all []*registration) {
	for _, r := range p.all() {
		if !r.asks() || p.asked(r) || ix.standOf(r, p) != standsOut {
			continue
		}
		if slices.ContainsFunc(r.targets(), func(t Target) bool { return ix.overrides(r, t) && ix.servesIn(r, t, p) }) {
			all = append(all, r)
		}
	}
	return all
}

// servesIn reports whether a target lists the Pod's application as callable.
func (ix *index) servesIn(r *registration, t Target, p *pod) bool {
	listed, err := ix.look(t)
	return err == nil && slices.ContainsFunc(ix.ofApplication(r, p, listed), callable)
}

// mark adds to the patch, which is sent before anything else, the Registrations that are going to ask.
func (ix *index) mark(p *pod, patch *PodPatch) {
	if more := ix.beginsToAsk(p); len(more) > 0 {
		names := list.Map(more, func(r *registration) string { return r.Name })
		patch.Asked = new(strings.Join(distinct(slices.Concat(p.askedBy(), names)), ","))
	}
}

// unmark takes out of the annotation who needs to know no more that he has asked: the Pod serves again.
func (ix *index) unmark(p *pod, patch *PodPatch) {
	before := p.askedBy()
	after := list.Only(before, func(name string) bool {
		r := named(ix.registrations, name)
		return r != nil && r.asks() && !ix.isBack(r, p)
	})
	if len(after) < len(before) {
		patch.Asked = new(strings.Join(after, ","))
	}
}

// isBack reports whether the Pod's application is in service in all targets, and stays there.
func (ix *index) isBack(r *registration, p *pod) bool {
	return ix.standOf(r, p) == standsIn && !slices.ContainsFunc(r.targets(), func(t Target) bool {
		return ix.overrides(r, t) && !ix.servesIn(r, t, p)
	})
}

// presenceOfAsked is what a target lists of an application that is asked.
func (ix *index) presenceOfAsked(r *registration, t Target, p *pod, listed *targetListing) presence {
	found := presence{reason: ReasonNotRegistered, cause: ix.failure(t, ix.nameIn(r, p))}
	for _, e := range ix.ofApplication(r, p, listed) {
		found.reason, found.wrote = ReasonNotInService, true
		found.listed = found.listed || callable(e)
		found.current = found.current || e.Weight > 0 && e.Unsettled == ""
		found.why = cmp.Or(found.why, e.Unsettled, e.Hidden)
	}
	found.overridden = p.asked(r) && !found.listed
	if _, err := ix.callAt(r, p); err != nil && found.listed && ix.standOf(r, p) == standsOut {
		found.why = err.Error()
	}
	return found
}

// askedAt is where the Pod's application is asked, for messages.
func (ix *index) askedAt(r *registration, p *pod) string {
	at, err := ix.callAt(r, p)
	if err != nil {
		return err.Error()
	}
	return at.String()
}
