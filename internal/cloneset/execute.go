// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

// outcome is the result of one action.
type outcome struct {
	action plan.Action
	// pod is the Pod as the last write left it; nil if there was none.
	pod *corev1.Pod
	err error
	// async: the action ended outside a pass, so the Pod's watch event may already have been handled.
	async bool
	// refused means that the API server refuses the update of Pods like this one, as the next plan will know.
	refused bool
}

// namespaceEnds reports whether the action failed because the namespace is being deleted.
func (o outcome) namespaceEnds() bool {
	return kube.NamespaceEnds(o.err)
}

// conflicted reports whether the action did not happen because the Pod changed after it was
// observed: nothing is wrong, and the next pass decides again.
func (o outcome) conflicted() bool {
	return kube.Conflicts(o.err) || (apierrors.IsNotFound(o.err) && o.action.Verb != plan.Create)
}

// failed reports whether the action failed. A conflict, and a deletion that is deferred, are no
// failures.
func (o outcome) failed() bool { return o.err != nil && !o.conflicted() && o.deferred() == nil }

// hasEvent reports whether an event may report the outcome: the action was done, or failed.
func (o outcome) hasEvent() bool { return o.err == nil || o.failed() }

// results are the results of executing a plan.
type results struct {
	// actions are those of the plan that were carried out. skipped is how many were not: their Pods were
	// written in the background after the pass read them.
	actions []plan.Action
	skipped int
	// outcomes are those of the actions that have ended, and of work in the background since the last pass.
	outcomes []outcome
	pulls    pullResults
	// err is why revisions were not pruned, or pull Pods not created or deleted.
	err error
	// at is when the pass had its results.
	at time.Time
}

// more reports whether another pass has to follow at once, because this one could not do everything.
func (d *results) more() bool {
	return d.skipped > 0 || d.pulls.refused() || slices.ContainsFunc(d.outcomes, outcome.conflicted)
}

// execute carries out a plan, and puts Pods back into service meanwhile. A later pass collects the results of
// returns that have not ended by then.
func (r *Reconciler) execute(ctx context.Context, before *observation, decided *plan.Plan) *results {
	set, executor := before.set, r.shared(keyOf(before.set)).executor
	outdated := func(pod *corev1.Pod) bool { return r.pods.Newest(set.UID, pod) != pod }
	tasks := executor.Open(r.tasksOf(ctx, before, decided.Actions), outdated, r.returner(ctx, before))
	outcomes := r.act(executor, tasks, decided.More && r.isSmall(len(before.snapshot.Pods)))
	if len(tasks) == 0 {
		executor.Wait()
	}
	for _, o := range executor.Collect() {
		o.async = true
		outcomes = append(outcomes, o)
	}
	pulls := r.pullImages(ctx, before, decided)
	pruned := r.pruneRevisions(ctx, set, before.revisions, before.snapshot.Pods)
	return &results{
		actions: list.Map(tasks, func(t *task) plan.Action { return t.Action }),
		skipped: len(decided.Actions) - len(tasks), outcomes: outcomes, pulls: pulls,
		err: errors.Join(pulls.err, pruned), at: r.Clock.Now(),
	}
}

// act runs the tasks in parallel, started in their order. Creates start slowly (one, two, four, …) and
// stop at the first refusal: a quota that refuses one of them refuses them all. If another pass
// follows, act does not wait for the last writes: see async.Executor.Run.
func (r *Reconciler) act(run *executor, tasks []*task, more bool) []outcome {
	creates := func(t *task) bool { return t.Action.Verb == plan.Create }
	var outcomes []outcome
	for len(tasks) > 0 {
		count := 0
		for count < len(tasks) && creates(tasks[count]) == creates(tasks[0]) {
			count++
		}
		part := tasks[:count]
		tasks = tasks[count:]
		if creates(part[0]) {
			outcomes = append(outcomes, r.runCreates(run, part)...)
			continue
		}
		r.metrics.parallel.Set(float64(r.Width.Now()))
		outcomes = append(outcomes, run.Run(part, more)...)
	}
	return outcomes
}

// runCreates runs tasks that create Pods, a few at first.
func (r *Reconciler) runCreates(run *executor, tasks []*task) (outcomes []outcome) {
	for batch := 1; len(tasks) > 0; batch *= 2 {
		size := min(batch, len(tasks))
		for tasks[size-1].Action.Revision != tasks[0].Action.Revision {
			size-- // Pods that the partition keeps come first, and must succeed first
		}
		r.metrics.parallel.Set(float64(r.Width.Now()))
		done := run.Run(tasks[:size], false)
		outcomes = append(outcomes, done...)
		if slices.ContainsFunc(done, func(o outcome) bool { return o.err != nil }) {
			break
		}
		tasks = tasks[size:]
	}
	return outcomes
}

// startsShare is the share of its Pods, as a divisor, that a pass over a large set may start. Each pass
// reads all Pods: with fewer starts, passes would take more CPU time than their writes.
const startsShare = 100

// starts returns how many Pods a pass may start: at most 4 × width (two writes each, so eight round
// trips), or 1 % of a large set. With fewer, the end of a pass, when few writes are under way, would
// take much of its time.
func (r *Reconciler) starts(pods int) int { return max(4*r.Width.Now(), pods/startsShare) }

// isSmall reports whether a set has so few Pods that a pass over it is short. In a large set, all writes end in
// their pass: to end it early gains little, and the next plan would delay the remaining writes.
func (r *Reconciler) isSmall(pods int) bool { return r.starts(pods) == r.starts(0) }

// stepOf returns the first step of an action.
func (r *Reconciler) stepOf(ctx context.Context, set *apps.CloneSet, a plan.Action) step {
	return func() (outcome, step) { return r.perform(ctx, set, a) }
}

// perform does the first step of an action, and returns the next one, or the outcome if there is none.
func (r *Reconciler) perform(ctx context.Context, set *apps.CloneSet, a plan.Action) (outcome, step) {
	switch a.Verb {
	case plan.Create:
		pod, err := r.createPod(ctx, set, a)
		return outcome{action: a, pod: pod, err: err}, nil
	case plan.Delete:
		return outcome{action: a, pod: a.Pod, err: r.deleteInstance(ctx, set, a)}, nil
	case plan.Discard:
		return outcome{action: a, err: r.discard(ctx, set, a)}, nil
	case plan.Provide:
		_, err := r.provide(ctx, set, a.Instance, r.findClaim)
		return outcome{action: a, err: err}, nil
	}
	return r.changePod(ctx, set, a, a.Pod, write.Subresources(&a))
}

// idTries bounds how often another name is tried after one that is taken.
const idTries = 5

// createPod creates a Pod, after its claims. If the name of the Pod or of a claim is
// taken, it retries with another instance id and deletes what it created for the previous
// one. After any other failure the new claims stay, and the next Pod takes them over.
func (r *Reconciler) createPod(ctx context.Context, set *apps.CloneSet, a plan.Action) (*corev1.Pod, error) {
	var err error
	id := a.Instance
	for range idTries {
		fresh, exists := id == "", r.takeOver
		if fresh {
			id, exists = r.newID(a.Taken), nil
		}
		pod := &corev1.Pod{}
		made, failure := r.provide(ctx, set, id, exists)
		if err = failure; err == nil {
			manifest := write.WithFailures(write.PodManifest(set, a.Revision, id, r.Clock.Now()), a.Failures)
			err = create(ctx, r, r.pods, set, manifest, pod, client.FieldOwner(write.Creator))
		}
		switch {
		case err == nil:
			return r.openGates(ctx, set, pod)
		case !apierrors.IsAlreadyExists(err) && !errors.Is(err, errClaimTaken):
			return nil, fmt.Errorf("create a Pod of revision %s: %w", a.Revision.Name, err)
		case fresh:
			if err := r.deleteUnusedClaims(ctx, set, id, made); err != nil {
				return nil, err
			}
		}
		id = "" // the holder may be a Pod that is still terminating: take another name
	}
	return nil, fmt.Errorf("create a Pod of revision %s: %w", a.Revision.Name, err)
}

// openGates sets a new Pod's own readiness gates to True. If that fails, the next pass
// does it.
func (r *Reconciler) openGates(ctx context.Context, set *apps.CloneSet, pod *corev1.Pod) (*corev1.Pod, error) {
	var conditions []plan.Condition
	for _, gate := range pod.Spec.ReadinessGates {
		if gate.ConditionType == apps.ConditionInPlaceUpdateReady || gate.ConditionType == apps.ConditionPodReady {
			conditions = append(conditions, plan.Condition{Type: gate.ConditionType, Status: corev1.ConditionTrue, Reason: plan.ReasonInService})
		}
	}
	opened, err := r.writePod(ctx, set, pod, plan.Action{Conditions: conditions}, "status")
	if apierrors.IsNotFound(err) {
		// Decide again at once: if the cache never holds the Pod, no event reports its
		// deletion.
		r.pods.noteDeleted(set, pod, r.Clock.Now())
		return nil, apierrors.NewConflict(corev1.Resource("pods"), pod.Name, errGone)
	}
	if err != nil {
		return pod, fmt.Errorf("open the readiness gates of Pod %s: %w", pod.Name, err)
	}
	return opened, nil
}

func (r *Reconciler) deletePod(ctx context.Context, set *apps.CloneSet, a plan.Action) error {
	// The version is a precondition: a Pod must not be deleted if its hook has taken hold
	// again since it was observed.
	return r.retryUnchanged(ctx, set, a.Pod, func(pod *corev1.Pod) error {
		err := r.remove(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
		// A Pod that someone other than the controller deleted leaves its claims behind.
		if err == nil || (apierrors.IsNotFound(err) && len(a.Claims) == 0) {
			r.pods.noteDeleted(set, pod, r.Clock.Now())
			return nil
		}
		return deferral(err)
	})
}

// changePod makes the next write of an action that changes a Pod. It builds on the answer to the
// previous write, whatever the cache shows. A Move is a single step, though it may take two writes.
func (r *Reconciler) changePod(
	ctx context.Context, set *apps.CloneSet, a plan.Action, pod *corev1.Pod, subresources []string,
) (outcome, step) {
	for i, subresource := range subresources {
		var written *corev1.Pod
		err := r.retryUnchanged(ctx, set, pod, func(observed *corev1.Pod) (err error) {
			written, err = r.writePod(ctx, set, observed, a, subresource)
			return err
		})
		if err != nil {
			return r.learn(set, outcome{action: a, pod: pod, err: fmt.Errorf("change Pod %s: %w", a.Pod.Name, err)}), nil
		}
		if written != pod && a.Verb != plan.Move {
			return outcome{}, func() (outcome, step) { return r.changePod(ctx, set, a, written, subresources[i+1:]) }
		}
		pod = written
	}
	return r.learn(set, outcome{action: a, pod: pod}), nil
}

// retryUnchanged runs a write. On a conflict it reads the Pod from the API server. If
// nothing that the planner reads has changed (a kubelet writes status all the time), the
// decision holds and the write is retried once.
func (r *Reconciler) retryUnchanged(ctx context.Context, set *apps.CloneSet, pod *corev1.Pod, write func(*corev1.Pod) error) error {
	whole, err := r.whole(ctx, set, pod)
	if err == nil {
		err = write(whole)
	}
	if apierrors.IsNotFound(err) {
		r.pods.noteDeleted(set, pod, r.Clock.Now())
	}
	if !kube.Conflicts(err) || whole == nil {
		return err
	}
	live, exists, getErr := getLive(ctx, r.Reader, pod)
	if getErr != nil {
		return getErr
	}
	if !exists {
		r.pods.noteDeleted(set, pod, r.Clock.Now())
		return err
	}
	r.pods.noteLive(set, live, r.Clock.Now())
	if !plan.Alike(live, whole) {
		return err
	}
	return write(live)
}

// whole returns the observed Pod with all fields that writes depend on. If the cache keeps only a part
// of it, whole reads the Pod from the API server, where it must still have the observed version. With
// an error, the Pod is nil.
func (r *Reconciler) whole(ctx context.Context, set *apps.CloneSet, pod *corev1.Pod) (*corev1.Pod, error) {
	if !podread.IsPartial(pod) {
		return pod, nil
	}
	live, exists, err := getLive(ctx, r.Reader, pod)
	switch {
	case err != nil:
		return nil, err
	case !exists:
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), pod.Name)
	case live.ResourceVersion != pod.ResourceVersion:
		r.pods.noteLive(set, live, r.Clock.Now())
		return nil, apierrors.NewConflict(corev1.Resource("pods"), pod.Name, errNotObserved)
	}
	return live, nil
}

// errNotObserved means that a Pod that is kept in part has changed since it was observed.
var errNotObserved = errors.New("the Pod, of which only a part is kept, is no longer what was observed; the next pass decides again")

// writePod writes what an action changes in a subresource of a Pod.
func (r *Reconciler) writePod(ctx context.Context, set *apps.CloneSet, pod *corev1.Pod, a plan.Action, subresource string) (*corev1.Pod, error) {
	kind, data := write.Patch(subresource, pod, &a, r.Options.KeepFieldManagers, r.Clock.Now())
	if data == nil {
		return pod, nil
	}
	patched, err := sendPatch(ctx, r, subresource, pod, kind, data)
	switch {
	case err != nil && subresource == "resize":
		return nil, r.resizeRefused(ctx, pod, err)
	case err != nil && subresource == "":
		return nil, keysRefused(&a, err)
	case err != nil:
		return nil, err
	}
	r.shared(keyOf(set)).recordDrain(patched, r.Clock.Now())
	r.pods.noteLive(set, patched, r.Clock.Now())
	if !metav1.IsControlledBy(patched, set) {
		// A merge cannot test who owns the Pod. It was taken from the set after it was observed: do
		// nothing more to it.
		return nil, apierrors.NewConflict(corev1.Resource("pods"), pod.Name, errNotOurs)
	}
	return patched, nil
}

// errGone means that somebody else deleted a new Pod at once.
var errGone = errors.New("the Pod was deleted right after its creation")

// errNotOurs ends an action half way, because the Pod has left the set.
var errNotOurs = errors.New("the Pod no longer belongs to the CloneSet")

// keysRefused adds to the refusal of a write with keys of hooks what the user or an admin can do.
func keysRefused(a *plan.Action, err error) error {
	keys := a.ChosenKeys()
	if len(keys) == 0 || kube.Conflicts(err) || !kube.Refused(err) {
		return err
	}
	return fmt.Errorf("the API server refuses a write with the keys %s of spec.lifecycle: %w; name others in the hooks, or change what refuses them",
		strings.Join(keys, ", "), err)
}

// resizeRefusal is the API server's refusal of a resize: only the user can fix it.
type resizeRefusal struct{ error }

// Unwrap returns the API server's answer.
func (r *resizeRefusal) Unwrap() error { return r.error }

// noResize means that the API server has no subresource pods/resize.
type noResize struct{ error }

// Unwrap returns the API server's answer, as a refusal.
func (n *noResize) Unwrap() error { return n.error }

// resizeAnswer distinguishes two causes of NotFound: an API server without the subresource resize, and
// a Pod that is gone. It returns a noResize for the first one.
func (r *Reconciler) resizeAnswer(ctx context.Context, pod *corev1.Pod, err error) error {
	if err == nil || !apierrors.IsNotFound(err) && !apierrors.IsMethodNotSupported(err) {
		return err
	}
	if apierrors.IsNotFound(err) {
		if _, exists, getErr := getLive(ctx, r.Reader, pod); getErr != nil || !exists {
			return cmp.Or(getErr, err)
		}
	}
	return &noResize{apierrors.NewForbidden(corev1.Resource("pods/resize"), pod.Name,
		fmt.Errorf("it has no subresource pods/resize, which Kubernetes has since 1.33: %w", err))}
}

// resizeRefused returns a resizeRefusal if the API server refuses the new cpu or memory, and other
// errors as they are.
func (r *Reconciler) resizeRefused(ctx context.Context, pod *corev1.Pod, err error) error {
	if err = r.resizeAnswer(ctx, pod, err); kube.Conflicts(err) || !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
		return err
	}
	containers := strings.Join(slices.Sorted(maps.Keys(inplace.Resizes(pod))), ", ")
	return &resizeRefusal{fmt.Errorf("the API server does not resize containers %s of Pod %s (%w): change the resources in spec.template, restore the previous ones, or delete the Pod so that it is recreated",
		containers, pod.Name, err)}
}
