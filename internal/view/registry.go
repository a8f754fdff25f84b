// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

// Namespace has the objects of one namespace that uses a registry.
type Namespace struct {
	Name string
	// Unread says why the namespace could not be read; empty if it was.
	Unread string
	// Objects are its Registrations, CloneSets and Pods.
	Objects []metav1.Object
}

// Registry compares the entries that a registry lists, as the hook operator last read them back, with
// those that it should list for the Pods as they are.
type Registry struct {
	Name string `json:"name"`
	Kind string `json:"kind,omitempty"`
	// Answers is the status of the condition Reachable; Message says why the registry is not reachable.
	Answers string `json:"answers"`
	Message string `json:"message,omitempty"`
	// OutageFrom and OutageTo are the beginning and the end of the last outage; OutageTo is zero while
	// it lasts.
	OutageFrom time.Time `json:"outageFrom,omitzero"`
	OutageTo   time.Time `json:"outageTo,omitzero"`
	Uses       []Use     `json:"uses"`
}

// Use is a Registration that may have entries in a service of a registry.
type Use struct {
	Namespace    string `json:"namespace"`
	Registration string `json:"registration"`
	Service      string `json:"service"`
	// Problem says what is wrong. If Known is false, the other fields have no values.
	Problem string `json:"problem,omitempty"`
	Known   bool   `json:"known"`
	// Expected counts the entries that should be listed, Listed those that were, Differing those that
	// were not as they should be.
	Expected  int `json:"expected"`
	Listed    int `json:"listed"`
	Differing int `json:"differing"`
	Draining  int `json:"draining"`
	Waiting   int `json:"waiting"`
	// Entries are the entries that should be listed, and other ones that are.
	Entries []ListedEntry `json:"entries,omitempty"`
}

// ListedEntry is a Pod's entry in a registry.
type ListedEntry struct {
	Pod     string `json:"pod"`
	ID      string `json:"id"`
	Address string `json:"address,omitempty"`
	// Should and Is are one of the constants below.
	Should string `json:"should"`
	Is     string `json:"is"`
	// Why says why they differ.
	Why string `json:"why,omitempty"`
}

// The values of Should and Is.
const (
	EntryListed  = "listed"
	EntryHidden  = "hidden"
	EntryMissing = "not listed"
	EntryDiffers = "differs"
	EntryUnknown = "?"
)

// Same reports whether the entry is as it should be.
func (e *ListedEntry) Same() bool { return e.Should == e.Is }

// OfRegistry returns the view of a registry and of the Registrations that use it.
func OfRegistry(now time.Time, r *usherv1alpha1.Registry, namespaces []Namespace) Registry {
	v := Registry{Name: r.Name, Kind: r.Status.Kind, Answers: string(metav1.ConditionUnknown), Uses: []Use{}}
	if c := meta.FindStatusCondition(r.Status.Conditions, usherv1alpha1.ConditionReachable); c != nil {
		v.Answers = string(c.Status)
		if c.Status == metav1.ConditionFalse {
			v.Message = c.Message
		}
	}
	if o := r.Status.LastOutage; o != nil {
		// The hook operator dates an outage earlier, in case clocks differ; but no outage begins before
		// the Registry existed.
		v.OutageFrom, v.OutageTo = list.Latest(o.From.Time, r.CreationTimestamp.Time), ptr.Deref(o.To, metav1.Time{}).Time
	}
	for _, user := range r.Status.Users {
		at := slices.IndexFunc(namespaces, func(n Namespace) bool { return n.Name == user.Namespace })
		// A Registration that changed its prefix is listed twice.
		known := slices.ContainsFunc(v.Uses, func(u Use) bool {
			return u.Namespace == user.Namespace && u.Registration == user.Registration && u.Service == user.Service
		})
		if at >= 0 && !known {
			v.Uses = append(v.Uses, namespaces[at].use(now, r, &user))
		}
	}
	for i := range namespaces {
		v.Uses = append(v.Uses, namespaces[i].waiting(r)...)
	}
	return v
}

// waiting returns the Registrations that name a registry whose status does not list them yet: they have
// no entries in it.
func (n *Namespace) waiting(r *usherv1alpha1.Registry) (uses []Use) {
	for _, one := range Each[*usherv1alpha1.Registration](n.Objects) {
		recorded := slices.ContainsFunc(r.Status.Users, func(u usherv1alpha1.RegistryUser) bool {
			return u.Namespace == n.Name && u.Registration == one.Name && u.Service == one.Spec.Instance.Service
		})
		if recorded || !slices.Contains(one.Spec.Registries, r.Name) {
			continue
		}
		isIt := func(p *usherv1alpha1.RegistryPods) bool { return p.Name == r.Name }
		known := ptr.Deref(list.Find(one.Status.Registries, isIt), usherv1alpha1.RegistryPods{})
		uses = append(uses, Use{
			Namespace: n.Name, Registration: one.Name, Service: one.Spec.Instance.Service,
			Draining: int(known.Draining), Waiting: int(known.Waiting),
			Problem: "it has no entries there yet" + strings.ReplaceAll(prefixed(": ", known.Error), "\n", " "),
		})
	}
	return uses
}

// prefixed returns a text after a prefix; empty if the text is empty.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// use compares the entries that a registry lists for one Registration with those that it should list.
func (n *Namespace) use(now time.Time, registry *usherv1alpha1.Registry, user *usherv1alpha1.RegistryUser) Use {
	u := Use{Namespace: user.Namespace, Registration: user.Registration, Service: user.Service, Problem: n.Unread}
	registrations, pods := Each[*usherv1alpha1.Registration](n.Objects), Each[*corev1.Pod](n.Objects)
	r := list.By(registrations, (*usherv1alpha1.Registration).GetName)[user.Registration]
	switch {
	case u.Problem != "":
		return u
	case r == nil:
		u.Problem = "the Registration is gone, and its entries may be left"
		return u
	case r.Spec.Instance.Service != user.Service || !slices.Contains(r.Spec.Registries, registry.Name):
		u.Problem = "the Registration does not use this service any more, and its entries may be left"
		return u
	}
	listed := list.Find(r.Status.Registries, func(p *usherv1alpha1.RegistryPods) bool { return p.Name == registry.Name })
	known := ptr.Deref(listed, usherv1alpha1.RegistryPods{})
	u.Problem = strings.ReplaceAll(known.Error, "\n", " ")
	if u.Known = known.Entries != nil; !u.Known && u.Problem == "" {
		u.Problem = "its entries have not been read back yet; a hook operator that is older than this plugin does not record them"
	}
	u.Listed, u.Differing = int(ptr.Deref(known.Entries, 0)), int(known.Differing)
	u.Draining, u.Waiting = int(known.Draining), int(known.Waiting)
	c := comparison{Use: &u, registry: registry.Name, registries: r.Status.Registries, known: &known, pods: list.By(pods, (*corev1.Pod).GetName)}
	snapshot := regplan.Snapshot{
		Now: now, Namespace: n.Name, Registrations: []*usherv1alpha1.Registration{r}, CloneSets: Each[*apps.CloneSet](n.Objects), Pods: pods,
	}
	for _, e := range regplan.Expect(snapshot) {
		c.expected(&e)
		if e.Listed {
			u.Expected++
		}
	}
	c.others()
	return u
}

// comparison compares the entries that the hook operator read back with those that the Pods ask for.
type comparison struct {
	*Use
	registry string
	// registries are all registries of the Registration; known is the one that is compared.
	registries []usherv1alpha1.RegistryPods
	known      *usherv1alpha1.RegistryPods
	pods       map[string]*corev1.Pod
}

// differs returns the difference that the operator found in an entry; nil if it found none.
func (c *comparison) differs(id string) *usherv1alpha1.EntryDifference {
	return list.Find(c.known.Differences, func(d *usherv1alpha1.EntryDifference) bool { return d.Entry == id })
}

// expected adds the entry of a Pod that is listed or should be.
func (c *comparison) expected(e *regplan.Expected) {
	entry := ListedEntry{Pod: e.Pod, ID: e.ID, Should: EntryMissing, Why: e.Why}
	if e.Address != "" {
		entry.Address = net.JoinHostPort(e.Address, strconv.Itoa(int(e.Port)))
	}
	switch {
	case e.Hidden:
		entry.Should = EntryHidden
	case e.Listed:
		entry.Should = EntryListed
	}
	difference := c.differs(e.ID)
	switch {
	case difference != nil:
		entry.Is, entry.Why = c.found(difference, e.Listed), cmp.Or(entry.Why, c.why(difference))
	case !e.Listed:
		return
	case entry.Should == EntryListed && !c.confirmed(e.Pod):
		entry.Is, entry.Why = EntryUnknown, "it has not been read back yet"
	default:
		entry.Is = entry.Should
	}
	c.Entries = append(c.Entries, entry)
}

// confirmed reports whether this registry is known to list the Pod: the Pod's condition says that all
// registries do, or it is another registry that does not.
func (c *comparison) confirmed(pod string) bool {
	if podread.IsTrue(c.pods[pod], usherv1alpha1.ConditionRegistered) {
		return true
	}
	missesIt := func(d usherv1alpha1.EntryDifference) bool { return d.Pod == pod }
	return slices.ContainsFunc(c.registries, func(other usherv1alpha1.RegistryPods) bool {
		return other.Name != c.registry && slices.ContainsFunc(other.Differences, missesIt)
	})
}

// found returns the state of an entry that the operator found wrong.
func (c *comparison) found(d *usherv1alpha1.EntryDifference, should bool) string {
	is := reasons[regplan.Reason(d.Reason)].is
	if is == "" && should {
		return EntryMissing
	}
	return cmp.Or(is, EntryListed)
}

// others adds entries that belong to no Pod of the Registration.
func (c *comparison) others() {
	for _, d := range c.known.Differences {
		if !slices.ContainsFunc(c.Entries, func(e ListedEntry) bool { return e.ID == d.Entry }) {
			c.Entries = append(c.Entries, ListedEntry{Pod: d.Pod, ID: d.Entry, Should: EntryMissing, Is: c.found(&d, false), Why: c.why(&d)})
		}
	}
}

// reasons explain the reasons in the status: is, the state of the entry, if that does not follow from
// the state in which it should be; and why.
var reasons = map[regplan.Reason]struct{ is, why string }{
	regplan.ReasonOrphan:           {EntryListed, "its Pod or Registration is gone: the hook operator removes it"},
	regplan.ReasonStillListed:      {EntryListed, "it is on its way out"},
	regplan.ReasonDraining:         {EntryListed, "it waits for its last requests"},
	regplan.ReasonNotListed:        {"", "it is on its way in"},
	regplan.ReasonNotRegistered:    {"", "its application has not registered itself"},
	regplan.ReasonNotInService:     {EntryHidden, "its application is registered, and gets no callers"},
	regplan.ReasonAddressShared:    {"", "other Pods may have its address, and no entry is known to be its own"},
	regplan.ReasonSelectorMismatch: {"", "the Service's selector does not match the Pod's labels"},
	regplan.ReasonNoEndpoint:       {"", "the Service selects the Pod, and no endpoint lists it as ready"},
	regplan.ReasonServiceNotFound:  {"", "there is no such Service"},
	regplan.ReasonDifferent:        {EntryDiffers, "address, weight or metadata are older than the Pod's"},
	regplan.ReasonForeignEntry:     {EntryDiffers, "somebody else's entry has its id"},
	regplan.ReasonDuplicate:        {EntryDiffers, "another Registration registers the Pod there already"},
	regplan.ReasonRateLimited:      {"", "spec.rateLimit of the Registry puts it off"},
	regplan.ReasonPortNotFound:     {"", "no container or native sidecar of the Pod has the port of spec.instance.port"},
	regplan.ReasonRegistryRefuses:  {"", "the registry refuses it"},
	regplan.ReasonClusterCopied:    {"", "the cluster may be a copy of another one, whose entries these are"},
	regplan.ReasonAddressNotFound:  {"", "the Pod has no address of spec.instance.ipFamily"},
}

// why returns why an entry is not as it should be: the registry's answer, if the Pod's condition has
// it.
func (c *comparison) why(d *usherv1alpha1.EntryDifference) string {
	if pod := c.pods[d.Pod]; pod != nil {
		condition := podread.Condition(pod, usherv1alpha1.ConditionRegistered)
		if condition != nil && condition.Reason == d.Reason {
			if _, detail, found := strings.Cut(condition.Message, fmt.Sprintf(": Registry %s: ", c.registry)); found {
				return strings.ReplaceAll(detail, "\n", " ")
			}
		}
	}
	return cmp.Or(reasons[regplan.Reason(d.Reason)].why, d.Reason)
}
