// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

// Finding is a problem of an installation, or a risk.
type Finding struct {
	// Wrong means that something does not work; otherwise it is a risk.
	Wrong bool `json:"wrong"`
	// Unknown means that this was not examined: the caller lacks a right.
	Unknown bool `json:"unknown,omitempty"`
	// Partly means that the objects of one namespace were examined nevertheless.
	Partly bool `json:"partly,omitempty"`
	// Object names the object concerned, such as "registration shop/web"; if the finding is Unknown, it
	// is the question.
	Object string `json:"object"`
	// Message says what is wrong and what to do.
	Message string `json:"message"`
}

const (
	// stuckAfter is how long a terminating Pod may wait for Usher's finalizer.
	stuckAfter = 10 * time.Minute
	// silentAfter is how long a lease may go without a renewal, as a multiple of its duration.
	silentAfter = 2
	// maxUsers is how many namespaces a finding names.
	maxUsers = 5
	// skew is by how much clocks may differ.
	skew = 30 * time.Second
)

// Read is the input of an examination.
type Read struct {
	// All are the objects in all namespaces that the caller may read. Of Deployments and webhooks there
	// are only Usher's own, but Leases of other programs too.
	All []metav1.Object
	// Missing are the kinds of Usher's API that the API server does not know.
	Missing []string
	// Unread are the kinds that the caller may list nowhere. Partly are the kinds that the caller may
	// list only in Namespace.
	Unread, Partly []string
	Namespace      string
}

// examination collects findings.
type examination struct {
	now   time.Time
	clock Clock
	Read
	// all has all objects that were read; guards and registrations are some of them.
	all                     []metav1.Object
	guards                  []*admissionregistrationv1.ValidatingWebhookConfiguration
	registrations           []*usherv1alpha1.Registration
	wrongs, risks, unknowns []Finding
}

// Examine finds what is wrong with an installation: first problems, then risks, each in the order of
// the objects, and last the questions that could not be examined.
func Examine(clock Clock, read Read) []Finding {
	e := &examination{
		now: clock.Now, clock: clock, Read: read, all: read.All, registrations: Each[*usherv1alpha1.Registration](read.All),
		guards: Each[*admissionregistrationv1.ValidatingWebhookConfiguration](read.All),
	}
	for _, kind := range read.Missing {
		e.wrong("cluster", "it does not know the kind %s: install Usher's CustomResourceDefinitions", kind)
	}
	for _, one := range e.checks() {
		e.check(one)
	}
	return slices.Concat(e.wrongs, e.risks, e.unknowns)
}

// Blind reports whether nothing could be examined.
func Blind(found []Finding) bool {
	unread := list.Only(found, func(f Finding) bool { return f.Unknown && !f.Partly })
	return len(unread) == len((&examination{}).checks())
}

// check is one question, with the kinds whose objects answer it.
type check struct {
	question string
	kinds    []string
	// whole means that the objects of a single namespace do not answer it.
	whole bool
	run   func()
}

func (e *examination) checks() []check {
	return []check{
		{"whether Usher runs, in one version", []string{"Deployment"}, true, e.usher},
		{"who leads, and whether clocks agree", []string{"Lease"}, true, e.leases},
		{"whether API servers reach and trust the guard", []string{"ValidatingWebhookConfiguration"}, true, e.guard},
		{"Pods that were deleted without the guard", []string{"Event"}, false, e.unguarded},
		{"registries that do not answer", []string{"Registry"}, true, e.registries},
		{"registries that every namespace may use", []string{"Registry", "Registration"}, true, e.open},
		{"Registrations that cannot be used, or have no Pods", []string{"Registration"}, false, e.answered},
		{"Pods that wait for Usher's answer", []string{"Pod", "Registration"}, false, e.gates},
		{"Pods that nothing takes out of their Service", []string{"Pod", "Registration"}, false, e.gateless},
		{"Pods that find no node", []string{"Pod", "Registration"}, false, e.unscheduled},
		{"Pods that their Service does not list", []string{"Pod", "Registration"}, false, e.unlisted},
		{"changes that Usher has not seen", []string{"CloneSet"}, false, e.unseen},
		{"hooks that nobody answers", []string{"CloneSet", "Registration"}, false, e.hooks},
		{"hooks whose answer is overdue", []string{"Pod", "CloneSet", "Registration"}, false, e.lonely},
		{"Pods that Usher's finalizer holds", []string{"Pod"}, false, e.stuck},
		{"readiness probes", []string{"Pod", "Registration"}, false, e.probes},
	}
}

// check answers a question as far as the caller's rights allow, and reports what stays unknown.
func (e *examination) check(one check) {
	missing := func(kinds []string) string {
		return strings.Join(list.Map(list.Only(one.kinds, func(kind string) bool { return slices.Contains(kinds, kind) }), list.Plural), " and ")
	}
	unread, partly := missing(e.Unread), missing(e.Partly)
	switch {
	case unread != "":
		e.unknown(one.question, "you may not list "+unread)
	case partly != "" && one.whole:
		e.unknown(one.question, "you may not list "+partly+" in all namespaces")
	case partly != "":
		e.unknown(one.question+", outside namespace "+e.Namespace, "you may not list "+partly+" there")
		e.unknowns[len(e.unknowns)-1].Partly = true
		one.run()
	default:
		one.run()
	}
}

func (e *examination) unknown(question, why string) {
	e.unknowns = append(e.unknowns, Finding{Unknown: true, Object: question, Message: why})
}

func (e *examination) wrong(object, format string, args ...any) {
	e.wrongs = append(e.wrongs, Finding{Wrong: true, Object: object, Message: fmt.Sprintf(format, args...)})
}

func (e *examination) risk(object, format string, args ...any) {
	e.risks = append(e.risks, Finding{Object: object, Message: fmt.Sprintf(format, args...)})
}

func named(kind string, object metav1.Object) string {
	if object.GetNamespace() == "" {
		return kind + " " + object.GetName()
	}
	return kind + " " + object.GetNamespace() + "/" + object.GetName()
}

// usher checks that Usher runs, in one version.
func (e *examination) usher() {
	deployments := Each[*appsv1.Deployment](e.all)
	if len(deployments) == 0 {
		e.wrong("cluster", "no Deployment has the label app.kubernetes.io/name=usher: install Usher (https://usher.dev/install.html)")
		return
	}
	versions := map[string]bool{}
	for _, d := range deployments {
		if d.Status.AvailableReplicas == 0 {
			e.wrong(named("deployment", d), "none of its replicas is available: kubectl -n %s describe pods -l %s", d.Namespace, metav1.FormatLabelSelector(d.Spec.Selector))
		}
		if v := d.Labels["app.kubernetes.io/version"]; v != "" {
			versions[v] = true
		}
	}
	if len(versions) > 1 {
		e.risk("cluster", "Usher runs in %d versions: update all its Deployments", len(versions))
	}
}

// leases checks that there is a leader, and that its clock agrees with ours.
func (e *examination) leases() {
	for _, l := range Each[*coordinationv1.Lease](e.all) {
		if !strings.HasSuffix(l.Name, usherv1alpha1.GroupVersion.Group) || l.Spec.RenewTime == nil || ptr.Deref(l.Spec.HolderIdentity, "") == "" {
			continue // another program's; or a leader has just stopped
		}
		switch age := e.now.Sub(l.Spec.RenewTime.Time); {
		case age < -skew:
			e.risk(named("lease", l), "its leader's clock is %s ahead of this machine's: correct one of them", Lasted(e.now, l.Spec.RenewTime.Time))
		case age > patienceWith(l):
			e.wrong(named("lease", l), "its holder %s last renewed it %s: nobody leads", *l.Spec.HolderIdentity, e.clock.Ago(l.Spec.RenewTime.Time))
		case age > lengthOf(l):
			e.risk(named("lease", l), "its holder %s last renewed it %s, and it lasts for %s: nobody leads, or the clock of the leader is behind this machine's",
				*l.Spec.HolderIdentity, e.clock.Ago(l.Spec.RenewTime.Time), lengthOf(l))
		}
	}
}

// patienceWith returns how long a lease may go without a renewal before its leader counts as away.
func patienceWith(l *coordinationv1.Lease) time.Duration {
	return max(silentAfter*lengthOf(l), skew)
}

// lengthOf returns how long a lease lasts without a renewal.
func lengthOf(l *coordinationv1.Lease) time.Duration {
	return time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 15)) * time.Second
}

func (e *examination) guard() {
	if len(e.guards) == 0 {
		e.risk("cluster", "the guard is not installed: Pods that somebody deletes or evicts lose requests (https://usher.dev/guard.html)")
		return
	}
	for _, g := range e.guards {
		for _, webhook := range g.Webhooks {
			call, object := webhook.ClientConfig, named("validatingwebhookconfiguration", g)
			if len(call.CABundle) == 0 {
				e.wrong(object, "webhook %s has no caBundle: API servers do not trust the guard, and let every deletion pass; %s", webhook.Name, guardsMaker)
			} else if until := trustedUntil(call.CABundle); e.now.After(until.Add(-renewedBefore)) {
				e.wrong(object, "what the caBundle of webhook %s trusts ends %s, and nobody has renewed it: "+
					"API servers let every deletion pass then; %s", webhook.Name, e.clock.In(until), guardsMaker)
			}
			if call.Service == nil || ptr.Deref(call.Service.Path, "") == "" {
				e.wrong(object, "webhook %s has no path: API servers do not reach the guard, and let every deletion pass; %s", webhook.Name, guardsMaker)
			}
		}
	}
}

// guardsMaker says where to look for the program that makes the certificate and the path.
const guardsMaker = "see the log of the Deployment of the component certificate, or of cert-manager"

// renewedBefore is how long before its expiry a CA of the guard should have been renewed. Usher renews
// it four months before.
const renewedBefore = 30 * 24 * time.Hour

// trustedUntil returns when the last certificate of a bundle expires; the zero time if it has none.
func trustedUntil(bundle []byte) (until time.Time) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if one, err := x509.ParseCertificate(block.Bytes); err == nil && one.NotAfter.After(until) {
			until = one.NotAfter
		}
	}
	return until
}

func (e *examination) registries() {
	for _, r := range Each[*usherv1alpha1.Registry](e.all) {
		for _, condition := range r.Status.Conditions {
			if condition.Status == metav1.ConditionFalse {
				e.wrong(named("registry", r), "%s; see its address and credentials: kubectl get registry %s -o yaml",
					strings.TrimSuffix(condition.Message, "."), r.Name)
			}
		}
	}
}

// open finds Registries that every namespace may use, and that several namespaces do use. Kubernetes
// grants rights by namespace, so each namespace counts as an owner of its own, unless the Registry says
// otherwise.
func (e *examination) open() {
	for _, registry := range Each[*usherv1alpha1.Registry](e.all) {
		var users []string
		for _, r := range e.registrations {
			if slices.Contains(r.Spec.Registries, registry.Name) {
				users = append(users, r.Namespace)
			}
		}
		slices.Sort(users)
		if users = slices.Compact(users); len(users) > 1 && regplan.Open(&registry.Spec) {
			e.risk(named("registry", registry), "every editor of any namespace may register there, and several namespaces do (%s): "+
				"say which namespaces may use it in spec.namespaces, or in the rules of spec.services with strictServices "+
				"(https://usher.dev/registration.html)",
				list.Some(users, maxUsers))
		}
	}
}

// answered checks the hook operator's report on each Registration, and that the Registration has Pods.
func (e *examination) answered() {
	for _, r := range e.registrations {
		for _, kind := range []string{usherv1alpha1.ConditionReady, usherv1alpha1.ConditionHooksMatched, usherv1alpha1.ConditionInstancesValid,
			usherv1alpha1.ConditionScaleInOrdered} {
			if found := meta.FindStatusCondition(r.Status.Conditions, kind); found != nil && found.Status == metav1.ConditionFalse {
				e.wrong(named("registration", r), "%s", found.Message)
			}
		}
		switch {
		case len(r.Status.Conditions) == 0:
			e.wrong(named("registration", r), "nobody has looked at it: does the hook operator run (--controllers=registration)?")
		case r.Status.Pods == 0:
			e.risk(named("registration", r), "it has no Pods: compare spec.selector with the labels of the Pods in namespace %s", r.Namespace)
		case e.usesOnly(r, func(registry *usherv1alpha1.Registry) bool { return regplan.OnlyFollowed(&registry.Spec) }):
			e.risk(named("registration", r), "somebody else writes to all of its registries (%s), and nothing takes its Pods out before they end: "+
				"add a Registry of the kind service with a label to spec.registries (https://usher.dev/registry/service.html)",
				strings.Join(r.Spec.Registries, ", "))
		case e.misnames(r):
			e.risk(named("registration", r), "no container of its Pods has the port %s (spec.instance.port), and its Services do not use it: "+
				"correct the field, or remove it", r.Spec.Instance.Port.StrVal)
		}
	}
}

// misnames reports whether a Registration names a port that none of its Pods has, although only
// Services list them, which have ports of their own. For other registries the operator itself reports
// that.
func (e *examination) misnames(r *usherv1alpha1.Registration) bool {
	services := e.usesOnly(r, func(registry *usherv1alpha1.Registry) bool { return registry.Spec.Service != nil })
	own := list.Only(Each[*corev1.Pod](e.all), func(pod *corev1.Pod) bool {
		return pod.Namespace == r.Namespace && r.Selects(pod.Labels)
	})
	has := func(pod *corev1.Pod) bool { return regplan.HasPort(pod, r.Spec.Instance.Port) }
	return services && len(own) > 0 && !slices.ContainsFunc(own, has)
}

// usesOnly reports whether all of a Registration's registries are of that kind.
func (e *examination) usesOnly(r *usherv1alpha1.Registration, kind func(*usherv1alpha1.Registry) bool) bool {
	of := list.Only(Each[*usherv1alpha1.Registry](e.all), func(registry *usherv1alpha1.Registry) bool {
		return kind(registry) && slices.Contains(r.Spec.Registries, registry.Name)
	})
	return len(of) == len(r.Spec.Registries)
}

// gates finds Pods that wait only for Usher, which does not act: Pods that only their readiness gate
// keeps from getting ready, and Pods whose drain is over.
func (e *examination) gates() {
	unanswered := func(pod *corev1.Pod) bool { return gateUnanswered(e.now, pod) }
	waiting := list.Only(Each[*corev1.Pod](e.all), unanswered)
	strays := list.Only(waiting, func(pod *corev1.Pod) bool { return !e.registered(pod) })
	if selected := list.Only(waiting, e.registered); len(selected) > 0 {
		e.wrong(named("pod", selected[0]), "it waits for the readiness gate %s, and Usher does not answer; such Pods: %d; does the hook operator run (--controllers=registration)?",
			usherv1alpha1.ConditionRegistered, len(selected))
	}
	overdue := list.Only(Each[*corev1.Pod](e.all), func(pod *corev1.Pod) bool { return drainOverdue(e.now, pod) })
	if len(overdue) > 0 {
		e.wrong(named("pod", overdue[0]), "its drain should have ended %s, and Usher does not end it; such Pods: %d; does the hook operator run (--controllers=registration)?",
			e.clock.Ago(drainEnd(overdue[0])), len(overdue))
	}
	if len(strays) > 0 {
		e.wrong(named("pod", strays[0]), "it has the readiness gate %s, and no Registration selects it, so it never gets ready; such Pods: %d; create a Registration, or take the gate out of the template",
			usherv1alpha1.ConditionRegistered, len(strays))
	}
}

// gateless finds workloads whose template lacks the readiness gate, as the hook operator reports on
// their Pods.
func (e *examination) gateless() {
	byOwner := map[string][]*corev1.Pod{}
	for _, pod := range Each[*corev1.Pod](e.all) {
		c := podread.Condition(pod, usherv1alpha1.ConditionRegistered)
		if c != nil && c.Reason == string(regplan.ReasonGateMissing) && pod.DeletionTimestamp == nil && e.registered(pod) {
			byOwner[ownerOf(pod)] = append(byOwner[ownerOf(pod)], pod)
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(byOwner)) {
		pods := byOwner[owner]
		e.risk(owner, "nothing takes its Pods out of their Service before they end, so callers lose requests; such Pods: %d, such as %s; "+
			"add to its Pod template: spec.readinessGates: [{conditionType: %s}]", len(pods), pods[0].Name, usherv1alpha1.ConditionRegistered)
	}
}

// unscheduled finds Pods of CloneSets and Registrations for which the scheduler has found no node for
// long. The Pods of one owner are one finding.
func (e *examination) unscheduled() {
	byOwner := map[string][]*corev1.Pod{}
	for _, pod := range Each[*corev1.Pod](e.all) {
		ref := metav1.GetControllerOfNoCopy(pod)
		ofSet := ref != nil && ref.Kind == apps.KindCloneSet.Kind
		if noNodeComes(e.now, pod) && pod.DeletionTimestamp == nil && (ofSet || e.registered(pod)) {
			byOwner[ownerOf(pod)] = append(byOwner[ownerOf(pod)], pod)
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(byOwner)) {
		pods := byOwner[owner]
		c := noNode(pods[0])
		e.wrong(owner, "Pods that find no node: %d, such as %s %s: %s",
			len(pods), pods[0].Name, e.clock.Since(c.LastTransitionTime.Time), c.Message)
	}
}

// ownerOf names the controller of a Pod; without one, the Pod itself.
func ownerOf(pod *corev1.Pod) string {
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		return strings.ToLower(ref.Kind) + " " + pod.Namespace + "/" + ref.Name
	}
	return named("pod", pod)
}

// unlisted finds Pods that their Service does not list although it lists others. If it lists none, the
// Registration reports that itself.
func (e *examination) unlisted() {
	condition := func(pod *corev1.Pod) *corev1.PodCondition {
		return podread.Condition(pod, usherv1alpha1.ConditionRegistered)
	}
	missed := list.Only(Each[*corev1.Pod](e.all), func(pod *corev1.Pod) bool { return regplan.SaysUnlisted(condition(pod)) })
	for _, r := range e.registrations {
		if meta.IsStatusConditionFalse(r.Status.Conditions, usherv1alpha1.ConditionReady) {
			continue
		}
		own := list.Only(missed, func(pod *corev1.Pod) bool { return pod.Namespace == r.Namespace && r.Selects(pod.Labels) })
		if len(own) > 0 {
			_, _, why := regplan.Reported(condition(own[0]))
			e.wrong(named("registration", r), "Pods that are ready, and that callers do not find: %d, such as %s: %s", len(own), own[0].Name, why)
		}
	}
}

// hooks checks that a key in Usher's domain has a Registration of its name.
func (e *examination) hooks() {
	for _, set := range Each[*apps.CloneSet](e.all) {
		for _, key := range keysOf(set.Spec.Lifecycle) {
			name, _, usher := strings.Cut(key, usherv1alpha1.HookDomain)
			there := slices.ContainsFunc(e.registrations, func(r *usherv1alpha1.Registration) bool {
				return r.Namespace == set.Namespace && (r.Name == name || slices.Contains([]string{
					r.Spec.Hooks.PreNormal, r.Spec.Hooks.InPlaceUpdate, r.Spec.Hooks.PreDelete,
				}, key))
			})
			if usher && !there {
				create := fmt.Sprintf("create Registration %s in namespace %s", name, set.Namespace)
				remedy := cmp.Or(didYouMean(key, e.inNamespace(set.Namespace)), create)
				e.wrong(named("cloneset", set), "nobody answers its hook %s: %s", key, remedy)
			}
		}
	}
}

// inNamespace returns the Registrations of a namespace.
func (e *examination) inNamespace(namespace string) []*usherv1alpha1.Registration {
	return list.Only(e.registrations, func(r *usherv1alpha1.Registration) bool { return r.Namespace == namespace })
}

func keysOf(l *apps.Lifecycle) []string {
	var keys []string
	for _, hook := range lifecycle.FromSpec(l).All() {
		keys = append(keys, hook.Missing(nil, nil)...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// stuck finds terminating Pods that Usher's finalizer has held for long, and Pods that have it but
// would be deleted without a drain.
func (e *examination) stuck() {
	for _, pod := range Each[*corev1.Pod](e.all) {
		if regplan.Unguarded(pod) && len(e.guards) > 0 {
			e.wrong(named("pod", pod), "it has Usher's finalizer, but not the label %s by which API servers know that they have to ask the guard: Usher puts that there at once; if not, see its log", usherv1alpha1.LabelGuarded)
		}
		if pod.DeletionTimestamp == nil || !slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer) {
			continue
		}
		if age := e.now.Sub(pod.DeletionTimestamp.Time); age > stuckAfter {
			e.wrong(named("pod", pod), "it was deleted %s, and Usher's finalizer still holds it: kubectl usher why pod/%s -n %s",
				e.clock.Ago(pod.DeletionTimestamp.Time), pod.Name, pod.Namespace)
		}
	}
}

// probes finds workloads whose Pods count as ready before they serve. One Pod stands for all Pods of
// the same owner.
func (e *examination) probes() {
	known := map[string]bool{}
	for _, pod := range Each[*corev1.Pod](e.all) {
		owner := ownerOf(pod)
		probed := func(c corev1.Container) bool { return c.ReadinessProbe != nil }
		if known[owner] || !e.registered(pod) || slices.ContainsFunc(pod.Spec.Containers, probed) {
			continue
		}
		known[owner] = true
		e.risk(owner, "its Pods are registered and no container has a readinessProbe: callers are sent to them before they serve")
	}
}

// registered reports whether a Registration selects the Pod.
func (e *examination) registered(pod *corev1.Pod) bool {
	return slices.ContainsFunc(e.registrations, func(r *usherv1alpha1.Registration) bool {
		return r.Namespace == pod.Namespace && r.Selects(pod.Labels)
	})
}

// unguarded counts Pods that were deleted without the guard, of which events still exist.
func (e *examination) unguarded() {
	count, last := 0, (*corev1.Event)(nil)
	for _, one := range Each[*corev1.Event](e.all) {
		if one.Reason != regplan.ReasonUnguarded {
			continue
		}
		count++
		if last == nil || eventTime(last).Before(eventTime(one)) {
			last = one
		}
	}
	if last == nil {
		return
	}
	deleted := "1 Pod was deleted"
	if count > 1 {
		deleted = list.Count(count, "Pod") + " were deleted"
	}
	e.risk("cluster", "%s without the guard while registries list them, the last one %s/%s %s: Usher was away, "+
		"or API servers cannot reach the guard (https://usher.dev/guard.html)",
		deleted, last.InvolvedObject.Namespace, last.InvolvedObject.Name, e.clock.Ago(eventTime(last)))
}

// eventTime returns when an event happened last.
func eventTime(e *corev1.Event) time.Time {
	at := list.Latest(e.LastTimestamp.Time, e.EventTime.Time)
	if e.Series != nil {
		at = list.Latest(at, e.Series.LastObservedTime.Time)
	}
	return at
}
