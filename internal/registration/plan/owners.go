// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// ServiceRule is a rule of spec.services of a Registry, as it is for the namespace of the
// snapshot.
type ServiceRule struct {
	// Names of services; * at the end stands for any rest.
	Names []string
	// Admits means that the namespace may register there.
	Admits bool
	// Shared means that others may have entries there, too.
	Shared bool
}

// refusal is why no new entries of a Registration may be written to a target.
type refusal struct {
	// reason is empty if that is not known yet: nothing is written, and nothing is said.
	reason  Reason
	message string
}

// refuse decides, once for each plan, to which targets Registrations may not write.
func (ix *index) refuse() {
	for _, r := range ix.registrations {
		r.refused = map[Target]*refusal{}
		for _, t := range r.current {
			r.refused[t] = cmp.Or(ix.refusal(r, t), ix.Registries[t.Registry].full(UserOf(r.Registration, t), t))
		}
	}
}

const (
	// maxUsers bounds what a Registry records of all namespaces, in bytes: the API server takes objects of
	// 1.5 MiB. Half of it, sharedUsers, is for namespaces that record many Registrations; the rest is left to the
	// first Registration of each namespace, so that there is room for one of a thousand namespaces, however long
	// its names.
	maxUsers    = 5 << 18
	sharedUsers = maxUsers / 2
	// maxUsersOfOne bounds the share of one namespace, in bytes. shares is in how many parts what other namespaces
	// have left of sharedUsers is divided: one namespace may record a part.
	maxUsersOfOne = 128 << 10
	shares        = 4
	// perUser is what the record of a Registration takes besides its texts, in bytes.
	perUser = 64
)

// UserOf is what a Registry records of a Registration's target.
func UserOf(r *usherv1alpha1.Registration, t Target) usherv1alpha1.RegistryUser {
	return usherv1alpha1.RegistryUser{
		Namespace: r.Namespace, Registration: r.Name, Prefix: t.Prefix, Service: t.Service,
		ByApplication: r.Spec.Instance.RegisteredBy == usherv1alpha1.RegisteredByApplication,
	}
}

// HasRoom reports whether a Registry with these users can record another one. The more is recorded, the
// smaller is the share of each namespace, and one that has nothing yet finds room for its first Registration.
func HasRoom(users []usherv1alpha1.RegistryUser, next usherv1alpha1.RegistryUser) bool {
	size := func(u *usherv1alpha1.RegistryUser) int {
		return len(u.Namespace) + len(u.Registration) + len(u.Prefix) + len(u.Service) + perUser
	}
	own, others := 0, 0
	for i := range users {
		if u := &users[i]; u.Namespace == next.Namespace {
			own += size(u)
		} else {
			others += size(u)
		}
	}
	with := own + size(&next)
	return others+with <= maxUsers && (own == 0 || with <= min((sharedUsers-others)/shares, maxUsersOfOne))
}

// full is why a Registry cannot record a Registration; nil if it has, or can.
func (s RegistryState) full(u usherv1alpha1.RegistryUser, t Target) *refusal {
	if slices.Contains(s.Users, u) || HasRoom(s.Users, u) {
		return nil
	}
	return refuse(ReasonRegistryFull, "status.users of Registry %s has no room for another Registration of namespace %s: "+
		"delete Registrations, or use another Registry", t.Registry, u.Namespace)
}

// refusal is why the namespace may not register in a target; nil if it may. The record in the
// Registry's status decides between namespaces: it is written before the first entry, and the
// API server takes it only from one who has seen all earlier ones. Entries are looked at only
// without a record: those by other Registries of the same server, of other clusters, and of
// others than Usher. Whoever writes no entry takes no service from anybody.
func (ix *index) refusal(r *registration, t Target) *refusal {
	state := ix.Registries[t.Registry]
	rule := state.rule(t.Service)
	switch {
	case state.Gated, state.Follows:
		return nil
	case rule != nil && !rule.Admits:
		return refuse(ReasonServiceNotAllowed, "spec.services of Registry %s does not let namespace %s register in service %s: "+
			"widen the namespaces of that rule, or choose another spec.instance.service", t.Registry, ix.Namespace, t.Service)
	case rule == nil && state.Strict:
		return refuse(ReasonServiceNotAllowed, "no rule in spec.services of Registry %s names service %s, and strictServices is set: %s",
			t.Registry, t.Service, addRule(t.Service, false, ix.Namespace))
	case rule != nil && rule.Shared, state.Own, r.byApplication():
		return nil
	}
	other, recorded := state.holder(ix.Namespace, t)
	if recorded {
		return nil
	}
	listed, err := ix.look(t)
	if err != nil {
		return &refusal{}
	}
	return ix.taken(t, listed.Entries(), other, rule != nil)
}

// taken is whose the service is, by its entries and by who is recorded there; nil if it is the
// namespace's own, or nobody's. ruled means that a rule names it.
func (ix *index) taken(t Target, entries []*registry.Entry, other string, ruled bool) *refusal {
	var foreign *registry.Entry
	for _, e := range entries {
		switch owner := e.Owner; {
		case owner.Namespace == ix.Namespace && owner.Cluster == ix.Cluster:
			return nil
		case owner.Namespace == ix.Namespace: // the same one of another cluster
		case owner.Namespace != "":
			other = cmp.Or(other, owner.Namespace)
		case foreign == nil:
			foreign = e
		}
	}
	remedy := func(namespaces ...string) string {
		if ruled {
			return "set shared: true in its rule in spec.services of the Registry"
		}
		return addRule(t.Service, true, append(namespaces, ix.Namespace)...)
	}
	switch {
	case other != "":
		return refuse(ReasonServiceTaken, "service %s of Registry %s belongs to namespace %s: choose another spec.instance.service; "+
			"if it is to be shared, %s", t.Service, t.Registry, other, remedy(other))
	case foreign != nil:
		return refuse(ReasonServiceTaken, "service %s of Registry %s has entries that Usher did not write, such as %s: "+
			"choose another spec.instance.service; if it is to be shared, %s", t.Service, t.Registry, Shorten(foreign.ID, maxForeign), remedy())
	}
	return nil
}

// maxForeign bounds how much of a foreign entry's ID a message repeats, in bytes.
const maxForeign = 64

func refuse(reason Reason, format string, args ...any) *refusal {
	return &refusal{reason, fmt.Sprintf(format, args...)}
}

// addRule is the rule that would let the namespaces register in the service.
func addRule(service string, shared bool, namespaces ...string) string {
	rule := fmt.Sprintf("names: [%s], namespaces: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [%s]}]}",
		service, strings.Join(namespaces, ", "))
	if shared {
		rule += ", shared: true"
	}
	return "add to spec.services of the Registry: {" + rule + "}"
}

// Open reports whether every namespace may register in some service of a Registry. Kinds that keep the
// services of each namespace apart have nothing to share.
func Open(r *usherv1alpha1.RegistrySpec) bool {
	apart := r.Service != nil || r.AWSTargetGroup != nil || r.GCPNEG != nil ||
		r.EndpointSlice != nil && r.EndpointSlice.Namespace == "" || r.XDS != nil && r.XDS.Namespace == ""
	admitsAll := func(rule usherv1alpha1.ServiceRule) bool { return !selective(rule.Namespaces) }
	return !apart && !selective(r.Namespaces) && (!r.StrictServices || slices.ContainsFunc(r.Services, admitsAll))
}

// OnlyFollowed reports whether somebody else writes the entries of a Registry's kind: Usher takes no Pod out there.
func OnlyFollowed(r *usherv1alpha1.RegistrySpec) bool {
	return r.AWSTargetGroup != nil && !r.AWSTargetGroup.Manage || r.GCPNEG != nil
}

// selective reports whether a selector of namespaces leaves any out.
func selective(s *usherv1alpha1.LabelSelector) bool {
	return s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0
}

// rule is the first one that names the service; nil if none does.
func (s RegistryState) rule(service string) *ServiceRule {
	service = s.folded(service)
	names := func(name string) bool {
		start, any := strings.CutSuffix(s.folded(name), "*")
		return start == service || any && strings.HasPrefix(service, start)
	}
	return list.Find(s.Rules, func(r *ServiceRule) bool { return slices.ContainsFunc(r.Names, names) })
}

// holder looks for namespaces that the Registry has recorded in the target: the snapshot's, or
// the first other one. A Registration whose applications register themselves takes no service.
func (s RegistryState) holder(namespace string, t Target) (other string, recorded bool) {
	service := s.folded(t.Service)
	for i := range s.Users {
		u := &s.Users[i]
		switch {
		case u.ByApplication || u.Prefix != t.Prefix || s.folded(u.Service) != service:
		case u.Namespace == namespace:
			return "", true
		case other == "":
			other = u.Namespace
		}
	}
	return other, false
}

func (s RegistryState) folded(service string) string {
	if s.Fold == nil {
		return service
	}
	return s.Fold(service)
}
