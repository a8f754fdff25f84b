// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/guard"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/test/model"
)

const (
	actorGuard    = "guard"
	actorCloneSet = "system:serviceaccount:usher-system:usher"
	// clockSkew is how far the clock of the second replica is ahead.
	clockSkew = 2 * time.Second
)

// webhook is how the guard answers API servers.
type webhook int

const (
	there webhook = iota
	// away cannot be reached; slow acts, and answers too late. Both let requests pass.
	away
	slow
)

// guardian is the guard as API servers see it.
type guardian struct {
	webhook  webhook
	replicas []admission.Handler
	// excuse is why the present request may end a Pod that callers use; empty if it may not.
	// proceeded are Pods that left at a deadline.
	excuse    string
	proceeded map[types.UID]bool
	// past are the owners of Pods that were deleted past the guard.
	past map[types.UID]string
	// unfollowed are Pods that have drained while the operator knew no Registration that follows the load balancer.
	unfollowed map[types.UID]bool
	// deleters are the Pods that someone has asked to delete, not only to evict.
	deleters map[types.UID]bool
	// costs are the deletion costs that users have set.
	costs map[types.UID]string
	// mislabelled are Pods whose label somebody has removed, until the operator puts it back.
	mislabelled map[types.UID]bool
	// writes are the present process's last writes of Pods.
	writes map[types.UID]*written
}

// written is a Pod as the operator wrote it.
type written struct {
	*corev1.Pod
	version int64
}

// stand puts the guard before the API server, with two replicas.
func (s *simulation) stand() {
	s.guardian = guardian{proceeded: map[types.UID]bool{}, past: map[types.UID]string{}, unfollowed: map[types.UID]bool{}, deleters: map[types.UID]bool{},
		costs: map[types.UID]string{}, mislabelled: map[types.UID]bool{}}
	if !s.features.guard {
		return
	}
	for _, skew := range []time.Duration{0, clockSkew} {
		live := model.Client{Server: s.server, Actor: actorGuard, Send: s.interfere}
		s.guardian.replicas = append(s.guardian.replicas, &guard.Handler{
			Reader: &live, Writer: &live, Recorder: recorder{s}, Clock: skewed{s.clock, skew}, CloneSetUsers: []string{actorCloneSet},
			Secret: func() string { return "the path" },
		})
	}
	s.server.Admit = s.admit
}

// skewed is a clock that is ahead.
type skewed struct {
	*clocktesting.FakePassiveClock
	by time.Duration
}

// Now implements clock.PassiveClock.
func (c skewed) Now() time.Time { return c.FakePassiveClock.Now().Add(c.by) }

// interfere lets the operator act between what the guard reads and what it writes.
func (s *simulation) interfere(r *model.Request, do func() error) error {
	if r.Writes() {
		r.Patch = s.defects.miswritten(r)
		if s.random.IntN(4) == 0 {
			s.passAtRandom()
		}
	}
	err := do()
	if r.Writes() {
		s.log("  guard: %s %s %s: %v", r.Verb, r.At.Name, r.Patch, err)
	}
	return err
}

// admit asks the guard.
func (s *simulation) admit(r *admissionv1.AdmissionRequest) error {
	switch pod := s.pod(r.Name); {
	case !s.called(r):
		return nil
	case s.guardian.webhook == away:
		s.guardian.excuse = "the webhook is away"
		return nil
	case pod != nil && pod.Annotations[usher.AnnotationSkipDrain] == "true":
		s.guardian.excuse = "the Pod skips the drain"
	}
	response := pick(s, s.guardian.replicas...).Handle(s.logged(), admission.Request{AdmissionRequest: *r})
	switch {
	case s.guardian.webhook == slow:
		s.guardian.excuse = "the webhook is slow"
	case !response.Allowed && !s.defects.allowed(s.pod(r.Name)):
		return &apierrors.StatusError{ErrStatus: *response.Result}
	}
	return nil
}

// conditions are the matchConditions of the chart.
var conditions = map[string]func(*admissionv1.AdmissionRequest) bool{
	"!has(request.dryRun) || !request.dryRun": func(r *admissionv1.AdmissionRequest) bool { return r.DryRun == nil || !*r.DryRun },
	"has(oldObject.metadata.finalizers) && 'usher.dev/registration' in oldObject.metadata.finalizers && !has(oldObject.metadata.deletionTimestamp)": func(r *admissionv1.AdmissionRequest) bool {
		pod := read[corev1.Pod](r.OldObject.Raw)
		return slices.Contains(pod.Finalizers, usher.Finalizer) && pod.DeletionTimestamp == nil
	},
	"!has(request.options.gracePeriodSeconds) || request.options.gracePeriodSeconds != 0": func(r *admissionv1.AdmissionRequest) bool {
		return !strings.Contains(string(r.Options.Raw), `"gracePeriodSeconds":0`)
	},
	"!has(object.deleteOptions) || !has(object.deleteOptions.dryRun) || object.deleteOptions.dryRun.size() == 0": func(r *admissionv1.AdmissionRequest) bool {
		eviction := read[policyv1.Eviction](r.Object.Raw)
		return eviction.DeleteOptions == nil || len(eviction.DeleteOptions.DryRun) == 0
	},
	"!has(object.deleteOptions) || !has(object.deleteOptions.gracePeriodSeconds) || object.deleteOptions.gracePeriodSeconds != 0": func(r *admissionv1.AdmissionRequest) bool {
		return !strings.Contains(string(r.Object.Raw), `"gracePeriodSeconds":0`)
	},
}

// webhooks are those of the chart, for deletions and for evictions.
var webhooks = func() []admissionregistrationv1.ValidatingWebhook {
	manifests, err := os.ReadFile("../../../tools/chart/testdata/golden/guard.yaml")
	if err != nil {
		panic(err) // it is a file of this repository
	}
	for document := range strings.SplitSeq(string(manifests), "\n---\n") {
		if strings.Contains(document, "\nkind: ValidatingWebhookConfiguration\n") {
			text, err := yaml.YAMLToJSON([]byte(document))
			if err != nil {
				panic(err) // the chart's tests decode it
			}
			return read[admissionregistrationv1.ValidatingWebhookConfiguration](text).Webhooks
		}
	}
	panic("the chart has no ValidatingWebhookConfiguration")
}()

// read decodes what encodes a T.
func read[T any](text []byte) (out T) {
	if err := json.Unmarshal(text, &out); err != nil {
		panic(err) // it was encoded before
	}
	return out
}

// called reports whether API servers call the guard, as it is configured.
func (s *simulation) called(r *admissionv1.AdmissionRequest) bool {
	at := slices.IndexFunc(webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool {
		return slices.Contains(w.Rules[0].Operations, admissionregistrationv1.OperationType(r.Operation))
	})
	if !selects(webhooks[at].ObjectSelector, r) {
		if pod := s.pod(r.Name); s.guardian.mislabelled[pod.UID] {
			s.guardian.excuse = "somebody has removed its label"
		}
		return false
	}
	for _, c := range webhooks[at].MatchConditions {
		holds, known := conditions[c.Expression]
		if !known {
			s.Fatalf("the chart has the matchCondition %s: write it in Go as well", c.Expression)
		}
		if !holds(r) {
			return false
		}
	}
	return true
}

// selects reports whether a webhook's selector selects an object of the request.
func selects(objects *metav1.LabelSelector, r *admissionv1.AdmissionRequest) bool {
	selector, err := metav1.LabelSelectorAsSelector(objects)
	if err != nil {
		panic(err) // the chart's tests have it installed
	}
	return slices.ContainsFunc([][]byte{r.Object.Raw, r.OldObject.Raw}, func(raw []byte) bool {
		return objects == nil || string(raw) != "null" && selector.Matches(labels.Set(read[metav1.PartialObjectMetadata](raw).Labels))
	})
}

// mislabel removes the label by which API servers know the guard's Pods, or gives it to a Pod
// that the guard does not know.
func (s *simulation) mislabel(pod *corev1.Pod) {
	_, labelled := pod.Labels[usher.LabelGuarded]
	s.guardian.mislabelled[pod.UID] = labelled && controllerutil.ContainsFinalizer(pod, usher.Finalizer)
	s.change(pod, fmt.Sprintf("has the guard's label: %t", !labelled), func(pod *corev1.Pod) {
		if pod.Labels[usher.LabelGuarded] = "somebody's"; labelled {
			delete(pod.Labels, usher.LabelGuarded)
		}
	})
}

// judgeLabels checks that the operator has put the label back after a pass that saw all Pods as
// they are.
func (s *simulation) judgeLabels() {
	for _, pod := range s.pods() {
		if s.guardian.mislabelled[pod.UID] && plan.Unguarded(pod) {
			s.fail("%s is without the guard's label after a pass", pod.Name)
		}
	}
}

// judgeEnd checks that no callers use a Pod that is deleted: its containers get SIGTERM.
func (s *simulation) judgeEnd(c *model.Commit) {
	pod, _ := c.Pods()
	if pod == nil || !c.Deletes() || !s.features.guard || s.unguarded(pod.UID) || s.guardian.proceeded[pod.UID] {
		return
	}
	if excuse := cmp.Or(s.guardian.excuse, s.hurried(pod)); excuse != "" {
		s.guardian.past[pod.UID] = model.OwnerOf(pod)
		s.log("%s: gets SIGTERM at once: %s", pod.Name, excuse)
		return
	}
	s.judgeDrain(pod.Name+" gets SIGTERM", true, pod)
	if drained(pod) {
		s.judgeBalancer(pod.Name+" gets SIGTERM", pod)
	}
}

// judgeFinish checks that the operator deletes no Pod but one that somebody has asked it to drain, and
// whose reason holds.
func (s *simulation) judgeFinish(c *model.Commit) {
	pod, _ := c.Pods()
	if c.Actor != actorOperator || pod == nil || !c.Deletes() || pod.DeletionTimestamp != nil {
		return
	}
	s.finished++
	request, err := usher.DeletionRequestOf(pod)
	if err != nil || request == nil || !s.features.finishes {
		s.fail("the operator deletes %s, and nobody has asked for that", pod.Name)
	} else if !request.Eviction && !s.goes(pod) {
		s.judgeReason(pod)
	}
}

// judgeReason checks that the owner of a Pod that is deleted just now does not want it.
func (s *simulation) judgeReason(pod *corev1.Pod) {
	switch ofSet := model.OwnerOf(pod) == s.replicaSet(); {
	case ofSet && s.surplus()+s.unseen() < 0: // the Pod counts no more
		s.fail("the operator deletes %s, which its ReplicaSet wants", pod.Name)
	case !ofSet && s.ending == "":
		s.fail("the operator deletes %s, whose owner is there", pod.Name)
	}
}

// unseen counts the Pods of the ReplicaSet that were deleted past the guard, and that the operator still sees as they were.
// The guard holds the others, so the operator need not read them before it deletes one that has drained.
func (s *simulation) unseen() (pods int) {
	for uid, owner := range s.guardian.past {
		if seen := s.process.seen(uid); owner == s.replicaSet() && seen != nil && seen.DeletionTimestamp == nil {
			pods++
		}
	}
	return pods
}

// proceeds notes that a Pod leaves although a registry lists it: its deadline has passed, which counts from
// when it was deleted, or from the beginning of the drain before that.
func (s *simulation) proceeds(pod *corev1.Pod) {
	since := cmp.Or(podread.DeletedSince(pod), s.clock.Now())
	record := plan.ReadRecord(pod)
	if record != nil && record.Began.Before(since) && (pod.DeletionTimestamp == nil || record.Gate == plan.GatePreDelete || record.Gate == plan.GateRequested) {
		since = record.Began
	}
	if s.features.proceeds(s.clock.Now().Sub(since)) || s.outOfTime(pod) {
		s.guardian.proceeded[pod.UID] = true
	}
}

// seen is a Pod as the operator may see it: as the caches show it, or as it has last written
// it; nil if it sees none.
func (p *process) seen(uid types.UID) *corev1.Pod {
	for _, pod := range model.List[*corev1.Pod](p.cached) {
		if pod.UID != uid {
			continue
		}
		if written := p.guardian.writes[uid]; written != nil && written.version > model.Version(pod) {
			return written.Pod
		}
		return pod
	}
	return nil
}

// departing reports whether the Pod drains because somebody deletes or evicts it: it is on its way out, and the budgets
// still count it. A CloneSet decides itself when it begins what it was asked for by name.
func (p *process) departing(pod *corev1.Pod) bool {
	request, err := usher.DeletionRequestOf(pod)
	record := plan.ReadRecord(pod)
	asked := err == nil && request != nil && (request.Eviction || !request.Named) || underWay(p.cached, pod.UID)
	return asked && pod.DeletionTimestamp == nil &&
		model.Condition(pod, corev1.PodReady).Status == corev1.ConditionTrue &&
		(!slices.Contains(pod.Finalizers, usher.Finalizer) || record != nil && record.Gate == plan.GateRequested)
}

// leaving are the Pods of a budget that drain, whoever asked for that.
func (p *process) leaving(budget *policyv1.PodDisruptionBudget) map[types.UID]bool {
	leaving := map[types.UID]bool{}
	for _, pod := range model.List[*corev1.Pod](p.cached) {
		if pod = p.seen(pod.UID); pod != nil && p.departing(pod) && model.Covers(budget, pod) {
			leaving[pod.UID] = true
		}
	}
	return leaving
}

// judgeBudgets checks that no more Pods leave for evictions than their budgets allow, as far
// as the operator can see.
func (p *process) judgeBudgets(changes []registry.Change) {
	for _, budget := range model.List[*policyv1.PodDisruptionBudget](p.cached) {
		leaving, fresh := p.leaving(budget), ""
		for _, c := range changes {
			uid := types.UID(c.Entry.Owner.PodUID)
			pod := p.seen(uid)
			leaves := (c.Op == registry.Remove || c.Op == registry.TakeOut) && !leaving[uid]
			if leaves && pod != nil && p.evicted(pod, c.Entry.Owner.Registration) && p.covered(pod, budget) {
				leaving[uid], fresh = true, pod.Name
			}
		}
		if allowed := int(budget.Status.DisruptionsAllowed); fresh != "" && len(leaving) > allowed {
			p.fail("%s leaves for its eviction, with %d others, and its budget allows %d", fresh, len(leaving)-1, allowed)
		}
	}
}

// covered reports whether the budget is for the Pod, as the operator sees it and as it is.
func (p *process) covered(pod *corev1.Pod, budget *policyv1.PodDisruptionBudget) bool {
	return model.Covers(budget, pod) && model.Covers(budget, p.pod(pod.Name))
}

// evicted reports whether the Pod begins to leave because someone evicts it, and for no other reason: budgets do not
// bind an owner that wants fewer Pods. The operator may see the Pod as it is, or as the caches show it.
func (p *process) evicted(pod *corev1.Pod, registration string) bool {
	live := p.pod(pod.Name)
	if live == nil || live.UID != pod.UID || !p.exists(registration) || p.leavesAnyway(live) {
		return false
	}
	return !p.superfluous(live) && !slices.ContainsFunc([]*corev1.Pod{pod, live}, func(pod *corev1.Pod) bool {
		ready, _ := plan.Ready(pod)
		healthy := model.Condition(pod, corev1.PodReady).Status == corev1.ConditionTrue // to budgets
		return !ready || !healthy || !listable(pod) || !p.matches(registration, pod) || pod.Annotations[usher.AnnotationDeletionRequest] == "" && !underWay(p.cached, pod.UID)
	})
}

// leavesAnyway reports whether a Pod leaves for another reason than its eviction, or has begun to.
func (p *process) leavesAnyway(pod *corev1.Pod) bool {
	return p.departing(pod) || p.goes(pod) || p.guardian.deleters[pod.UID]
}

// checkWanted checks that no Pod is out of service that its ReplicaSet wants, for a request of the ReplicaSet's
// controller: it has had some rounds to come back. It returns for how many the ReplicaSet has wanted all its Pods.
func (s *simulation) checkWanted(rounds int) int {
	const enough = 5
	if s.surplus() > 0 {
		return 0
	}
	for _, pod := range s.replicas() {
		request, err := usher.DeletionRequestOf(pod)
		if rounds >= enough && err == nil && request != nil && request.Controller && !s.hasDeadline(request) && s.ending == "" {
			s.fail("%s: its ReplicaSet wants it again, and it is out of service", pod.Name)
		}
	}
	return rounds + 1
}

// unasked describes what is left of a request to delete a Pod that nobody came back for.
func (s *simulation) unasked(pod *corev1.Pod) string {
	request, err := usher.DeletionRequestOf(pod)
	switch {
	case err != nil:
		return err.Error()
	case request != nil && !request.Named:
		return "it is out of service for a deletion that never came"
	case pod.Annotations[corev1.PodDeletionCost] != s.guardian.costs[pod.UID] && (s.guardian.costs[pod.UID] != "" || plan.CostOf(pod) == nil):
		return "its deletion cost is not what its user has set"
	}
	return ""
}

// TestConditions: the guard's matchConditions in Go are those of the chart.
func TestConditions(t *testing.T) {
	used := sets.New[string]()
	for _, w := range webhooks {
		for _, c := range w.MatchConditions {
			used.Insert(c.Expression)
		}
	}
	checktest.Same(t, "what the chart has, and what is written in Go,", sets.List(used), slices.Sorted(maps.Keys(conditions)))
}
