// SPDX-License-Identifier: Apache-2.0

package awstargetgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
	"github.com/usher-dev/usher/internal/registration/registry/targets"
)

// Managed implements registry.Connector for target groups that nobody else writes. A target is an address and a port,
// so a tag of the group says whose targets it has, and the cluster's Pods say whose address one is.
type Managed struct {
	*Registry

	mu sync.Mutex
	// known are the entries of targets, by group and address.
	known map[string]map[string]identity
}

// identity is whose a target is.
type identity struct {
	id    string
	owner registry.Owner
	// weight is kept for whoever lists it: load balancers have none.
	weight int32
}

// unknown is the Pod of a target whose address no Pod has.
const unknown = "unknown"

// NewManaged is New for a Registry with manage.
func NewManaged(
	s *usherv1alpha1.AWSTargetGroupRegistry, reader client.Reader, clients *Clients, namespace string, secret map[string][]byte,
) (*Managed, error) {
	r, err := New(s, reader, clients, namespace, secret)
	if err != nil {
		return nil, err
	}
	return &Managed{Registry: r, known: map[string]map[string]identity{}}, nil
}

// held is a target with its entry.
type held struct {
	target
	entry registry.Entry
}

func (h held) asEntry() registry.Entry { return h.entry }

// List implements registry.Connector. A target that is not healthy is Unsettled, as is one that drains.
func (m *Managed) List(ctx context.Context, service string) ([]registry.Entry, error) {
	g, err := m.only(service)
	if err != nil || g.arn == "" {
		return []registry.Entry{}, err
	}
	found, _, err := m.read(ctx, g)
	return registry.Listed(found, err, held.asEntry)
}

// only is the target group of a Service; without ARN if the Registry names none.
func (m *Managed) only(service string) (g group, err error) {
	for _, one := range m.spec.TargetGroups {
		if one.Namespace != m.namespace || one.Service != service {
			continue
		}
		if g.arn != "" || len(one.ARNs) != 1 {
			return group{}, oneService("spec.awsTargetGroup.targetGroups has several target groups for Service %s: with manage, a Service has one", service)
		}
		if g, err = m.groupOf(one.ARNs[0], "spec.awsTargetGroup.targetGroups of the Registry"); err != nil {
			return group{}, err
		}
	}
	return g, nil
}

// read returns the targets of a group with their entries, and whose they are.
func (m *Managed) read(ctx context.Context, g group) ([]held, registry.Owner, error) {
	all, err := m.api.targets(ctx, g)
	if isGone(err) {
		return nil, registry.Owner{}, registry.OneService(registry.Permanent(fmt.Errorf("target group %s: %w", g.name, err)))
	}
	if err != nil {
		return nil, registry.Owner{}, err
	}
	owner, err := m.api.owner(ctx, g)
	if err != nil {
		return nil, registry.Owner{}, err
	}
	there := list.Only(all, func(t target) bool { return !t.left(m.spec.Draining) })
	whose, err := m.identify(ctx, g, owner, there)
	if err != nil {
		return nil, registry.Owner{}, err
	}
	return list.Map(there, func(t target) held { return held{t, t.entryOf(whose[t.hostPort()], m.spec.Draining)} }), owner, nil
}

// left reports whether a target is none any more: it was deregistered, and its drain does not count.
func (t target) left(draining usherv1alpha1.TargetDraining) bool {
	return t.use(draining) == targets.Unused && (t.state == "draining" || t.reason == "Target.NotRegistered")
}

func (t target) hostPort() string { return registry.Entry{Address: t.address, Port: t.port}.HostPort() }

// entryOf is a target as an entry.
func (t target) entryOf(of identity, draining usherv1alpha1.TargetDraining) registry.Entry {
	e := t.target(draining).Entry()
	e.ID, e.Owner = of.id, of.owner
	if e.Weight > 0 {
		e.Weight = of.weight
	}
	if of.owner != (registry.Owner{}) { // one that nobody uses is to be used
		e.Unsettled, e.Hidden = cmp.Or(e.Unsettled, e.Hidden), ""
	}
	e.Version = registry.Digest([]byte(fmt.Sprint(t.hostPort(), " ", t.state, " ", t.reason, " ", of)))
	return e
}

// identify finds whose the targets are, by their addresses: from what Apply wrote, or from the Pods of the namespace.
// Targets of a group without owner are nobody's.
func (m *Managed) identify(ctx context.Context, g group, owner registry.Owner, there []target) (map[string]identity, error) {
	whose, missing := map[string]identity{}, false
	m.mu.Lock()
	known := m.known[g.arn]
	for _, t := range there {
		of, found := known[t.hostPort()]
		if !found || tagOf(of.owner) != tagOf(owner) {
			of, missing = identity{id: t.hostPort(), owner: owner, weight: 1}, true
			if owner != (registry.Owner{}) {
				of.owner.Pod, of.owner.PodUID = unknown, unknown
			}
		}
		whose[t.hostPort()] = of
	}
	m.mu.Unlock()
	if missing && owner.Namespace == m.namespace {
		if err := m.findPods(ctx, owner, whose); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[g.arn] = map[string]identity{}
	for at, of := range whose {
		if of.owner.PodUID != "" && of.owner.PodUID != unknown {
			m.known[g.arn][at] = of
		}
	}
	return whose, nil
}

// findPods finds the Pods of targets that nobody is known to have.
func (m *Managed) findPods(ctx context.Context, owner registry.Owner, whose map[string]identity) error {
	byAddress := map[string]registry.Owner{}
	note := func(pod *corev1.Pod) (*corev1.Pod, bool) {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			return nil, false // another Pod may have its address
		}
		of := owner
		of.Pod, of.PodUID = pod.Name, string(pod.UID)
		for _, ip := range pod.Status.PodIPs {
			byAddress[targets.Canonical(ip.IP)] = of
		}
		return nil, false
	}
	if _, err := kube.ListKept(ctx, m.reader, "Pods", &corev1.PodList{}, note, client.InNamespace(m.namespace)); err != nil {
		return registry.OneService(endpointslice.Typed(ctx, err))
	}
	for at, of := range whose {
		var e registry.Entry
		e.SetHostPort(at)
		if pod, found := byAddress[e.Address]; found && of.owner.PodUID == unknown {
			of.id, of.owner = registry.PodID(pod.Namespace, pod.Pod, pod.PodUID), pod
			whose[at] = of
		}
	}
	return nil
}

// batch are the calls to make.
type batch struct {
	register, deregister []held
	// changes are those that need a target registered, by its address.
	changes map[string]registry.Change
	// released are addresses whose entries are removed in the same batch.
	released map[string]bool
}

// Apply implements registry.Connector. Targets are registered and deregistered up to 200 a call. A target that is there
// and not healthy is a transient error of its change, with AWS's reason.
func (m *Managed) Apply(ctx context.Context, service string, changes []registry.Change) error {
	g, err := m.only(service)
	if err == nil && g.arn == "" {
		err = oneService("spec.awsTargetGroup.targetGroups of the Registry names no target group for Service %s of namespace %s: name it there",
			service, m.namespace)
	}
	if err != nil {
		return err
	}
	found, owner, err := m.read(ctx, g)
	if err != nil {
		return err
	}
	changes, refused, err := m.claim(ctx, g, owner, found, changes)
	if err != nil {
		return errors.Join(err, refused)
	}
	b := &batch{changes: map[string]registry.Change{}, released: map[string]bool{}}
	for _, change := range changes {
		if h := list.Find(found, func(h *held) bool { return h.entry.ID == change.Entry.ID }); h != nil && change.Op == registry.Remove {
			b.released[h.hostPort()] = true
		}
	}
	at := list.By(list.Pointers(found), func(h *held) string { return h.hostPort() })
	_, wrong := registry.Decide(found, held.asEntry, changes, func(change registry.Change, there *held) (struct{}, error) {
		return struct{}{}, m.plan(g, b, change, there, at[change.Entry.HostPort()])
	})
	return errors.Join(refused, wrong, m.deregister(ctx, g, b), m.register(ctx, g, b))
}

// plan adds what a change needs to the calls to make. there is what its entry has, at what its address has.
func (m *Managed) plan(g group, b *batch, change registry.Change, there, at *held) error {
	if change.Op == registry.Remove {
		b.leaves(there)
		return nil
	}
	e := change.Entry
	mine := at != nil && at.entry.ID == e.ID
	if at != nil && !mine && !b.released[at.hostPort()] {
		return fmt.Errorf("target group %s has %s for %s: %w", g.name, at.hostPort(), at.entry.Owner, registry.ErrConflict)
	}
	if there != nil && there.hostPort() != e.HostPort() {
		b.leaves(there)
	}
	wanted := held{target: target{address: e.Address, port: e.Port}, entry: e}
	if !mine || at.state == "draining" {
		b.register, b.changes[wanted.hostPort()] = append(b.register, wanted), change
		return nil
	}
	m.remember(g, wanted)
	if at.entry.Unsettled != "" { // registered, and not healthy
		return registry.OneService(registry.Transient(errors.New(at.entry.Unsettled)))
	}
	return nil
}

// leaves has a target deregistered, unless it is already.
func (b *batch) leaves(there *held) {
	if there.state != "draining" {
		b.deregister = append(b.deregister, *there)
	}
}

func (m *Managed) remember(g group, h held) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known[g.arn] == nil {
		m.known[g.arn] = map[string]identity{}
	}
	m.known[g.arn][h.hostPort()] = identity{h.entry.ID, h.entry.Owner, h.entry.Weight}
}

// perCall is how many targets a call registers or deregisters.
const perCall = 200

// deregister deregisters targets. Their addresses may be registered again by the same batch.
func (m *Managed) deregister(ctx context.Context, g group, b *batch) error {
	again := func(h held) bool { _, yes := b.changes[h.hostPort()]; return yes }
	for some := range slices.Chunk(list.Only(b.deregister, func(h held) bool { return !again(h) }), perCall) {
		if err := m.api.deregister(ctx, g, some); err != nil {
			return ofGroup(err, g)
		}
	}
	return nil
}

// register registers targets. AWS refuses all of a call for one of them, so that what is refused is tried by halves.
func (m *Managed) register(ctx context.Context, g group, b *batch) error {
	var errs []error
	for some := range slices.Chunk(b.register, perCall) {
		errs = append(errs, m.registerSome(ctx, g, b, some))
	}
	return errors.Join(errs...)
}

func (m *Managed) registerSome(ctx context.Context, g group, b *batch, some []held) error {
	err := m.api.register(ctx, g, some)
	switch refused := errors.Is(err, registry.ErrPermanent) && !isDenied(err); {
	case err == nil:
		for _, h := range some {
			m.remember(g, h)
		}
		return nil
	case refused && len(some) > 1:
		half := len(some) / 2
		return errors.Join(m.registerSome(ctx, g, b, some[:half]), m.registerSome(ctx, g, b, some[half:]))
	case refused:
		return b.changes[some[0].hostPort()].Refused(ofGroup(err, g))
	}
	return ofGroup(err, g)
}

// ownerTag is the tag of a target group that says whose targets it has.
const ownerTag = "usher.dev/owner"

// maxTag is how long a tag may be.
const maxTag = 256

// tagOf is an owner as a tag: without its Pod.
func tagOf(o registry.Owner) string {
	return strings.Join([]string{o.Cluster, o.Namespace, o.Registration}, "/")
}

// ownerOf reads a tag.
func ownerOf(tag string) registry.Owner {
	parts := strings.Split(tag, "/")
	if len(parts) != 3 {
		return registry.Owner{}
	}
	return registry.Owner{Cluster: parts[0], Namespace: parts[1], Registration: parts[2]}
}

// claim returns the changes that may be made: a group has the targets of one Registration, which its tag names. An
// empty group is anybody's, and gets the tag.
func (m *Managed) claim(
	ctx context.Context, g group, owner registry.Owner, found []held, changes []registry.Change,
) (may []registry.Change, refused, err error) {
	var wrong []error
	checked := false
	for _, change := range changes {
		if change.Op != registry.Put || tagOf(change.Entry.Owner) == tagOf(owner) && checked {
			may = append(may, change)
			continue
		}
		if err := m.mayHave(g, owner, found, change.Entry.Owner); err != nil {
			wrong = append(wrong, change.Refused(err))
			continue
		}
		if !checked {
			if err := m.unbound(ctx, g); err != nil {
				return nil, errors.Join(wrong...), err
			}
		}
		if tagOf(change.Entry.Owner) != tagOf(owner) {
			if owner, err = m.take(ctx, g, change.Entry.Owner); err != nil {
				return nil, errors.Join(wrong...), err
			}
		}
		checked = true
		may = append(may, change)
	}
	return may, errors.Join(wrong...), nil
}

// mayHave reports why a group is not for an owner.
func (m *Managed) mayHave(g group, owner registry.Owner, found []held, wants registry.Owner) error {
	switch {
	case tagOf(wants) == tagOf(owner):
		return nil
	case len(tagOf(wants)) > maxTag:
		return registry.Permanent(fmt.Errorf("the name of the Registration is too long for the tag %s of target group %s: use a shorter one", ownerTag, g.name))
	case len(found) == 0:
		return nil
	case owner == registry.Owner{}:
		return fmt.Errorf("target group %s has targets, and no tag %s, so that somebody else writes them: empty it, or take manage out of the Registry: %w",
			g.name, ownerTag, registry.ErrForeign)
	}
	return fmt.Errorf("target group %s has the targets of Registration %s/%s of cluster %s, as its tag %s says, and it has those of one only: "+
		"use another group: %w", g.name, registry.Excerpt(owner.Namespace), registry.Excerpt(owner.Registration), registry.Excerpt(owner.Cluster), ownerTag, registry.ErrForeign)
}

// take writes the tag, and reads whose the group is then: another may have been quicker.
func (m *Managed) take(ctx context.Context, g group, owner registry.Owner) (registry.Owner, error) {
	if err := m.api.tag(ctx, g, tagOf(owner)); err != nil {
		return registry.Owner{}, ofGroup(err, g)
	}
	now, err := m.api.owner(ctx, g)
	if err == nil && tagOf(now) != tagOf(owner) {
		err = registry.OneService(registry.Transient(fmt.Errorf("target group %s has just got another owner", g.name)))
	}
	return now, err
}
