// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/view"
)

// reasonReleased is the reason of the event about a release by hand.
const reasonReleased = "HookReleasedByHand"

func releaseCommand(s *session) *cobra.Command {
	var hook, reason string
	var yes bool
	command := s.on(onlyPods, "release", func(ctx context.Context, t target) error {
		if hook == "" || reason == "" {
			return errors.New("--hook and --reason are needed; kubectl usher why pod/NAME names the hook")
		}
		if _, _, err := s.answered(ctx, t, hook); err != nil {
			return err
		}
		printf(s.ErrOut, "This answers the hook %s of Pod %s instead of its owner. Registries that still list the Pod are not asked: requests may be lost.\n",
			hook, t.name)
		if !yes && !s.dryRun && !s.confirm("Release the hook?") {
			return errors.New("nothing was changed")
		}
		return s.release(ctx, t, hook, reason)
	})
	command.Flags().StringVar(&hook, "hook", "", "`key` of the label, or the finalizer, that holds the Pod")
	command.Flags().StringVar(&reason, "reason", "", "why; it goes into an event")
	completesFlag(command, "hook", s.keys)
	command.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	s.dryRuns(command, "ask the API server whether it would accept the change, and change nothing")
	return command
}

func (s *session) confirm(question string) bool {
	printf(s.ErrOut, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(s.In).ReadString('\n')
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer)))
}

// answered reads a Pod, and returns it as it is and as it is after the hook is answered.
func (s *session) answered(ctx context.Context, t target, key string) (pod, after *corev1.Pod, err error) {
	pod = &corev1.Pod{}
	if err := s.get(ctx, t, pod); err != nil {
		return nil, nil, err
	}
	hook, err := s.hook(ctx, pod, key)
	if err != nil {
		return nil, nil, err
	}
	after = pod.DeepCopy()
	state := apps.LifecycleState(pod.Labels[apps.LabelLifecycleState])
	joins := !hook.Empty() && (state == apps.StatePreparingNormal || state == apps.StateUpdated)
	switch {
	case pod.DeletionTimestamp != nil: // only finalizers hold it
		lifecycle.Hook{FinalizersHandler: []string{key}}.Release(after)
	case joins:
		hook.Confirm(after)
	default: // the finalizer may belong to no hook of the set
		lifecycle.Hook{LabelsHandler: hook.LabelsHandler, FinalizersHandler: []string{key}}.Release(after)
	}
	if equality.Semantic.DeepEqual(pod.ObjectMeta, after.ObjectMeta) {
		return nil, nil, fmt.Errorf("pod/%s does not wait for %q; kubectl usher why pod/%s shows what it waits for", pod.Name, key, pod.Name)
	}
	return pod, after, nil
}

// hook returns the hook of the Pod's CloneSet that has the key and holds the Pod.
func (s *session) hook(ctx context.Context, pod *corev1.Pod, key string) (hook lifecycle.Hook, err error) {
	owner := cloneSetOf(pod)
	if owner == "" {
		return hook, nil
	}
	set := &apps.CloneSet{}
	if err := s.get(ctx, target{kindCloneSet, owner}, set); err != nil {
		return hook, err
	}
	for _, one := range lifecycle.FromSpec(set.Spec.Lifecycle).All() {
		if value, ok := one.LabelsHandler[key]; ok {
			hook.LabelsHandler = map[string]string{key: value}
		}
		if slices.Contains(one.FinalizersHandler, key) {
			hook.FinalizersHandler = []string{key}
		}
	}
	return hook, nil
}

// release changes a Pod, and records in an event who did it. If the Pod is changed meanwhile, for
// example by its kubelet, release checks again whether it waits.
func (s *session) release(ctx context.Context, t target, hook, reason string) error {
	var pod, answered *corev1.Pod
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
		if pod, answered, err = s.answered(ctx, t, hook); err == nil {
			err = failed(s.client.Patch(ctx, answered, client.MergeFromWithOptions(pod, client.MergeFromWithOptimisticLock{})), "change %s", t)
		}
		return err
	})
	if err != nil {
		return err
	}
	s.did("pod/%s released from %s", pod.Name, hook)
	if s.dryRun {
		return nil
	}
	note := fmt.Sprintf("%s released the hook %s by hand: %s", s.whoAmI(ctx), hook, reason)
	now := metav1.NewTime(time.Now())
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: pod.Name + ".", Namespace: pod.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		},
		Type: corev1.EventTypeWarning, Reason: reasonReleased, Message: note,
		FirstTimestamp: now, LastTimestamp: now, Count: 1, Source: corev1.EventSource{Component: "kubectl-usher"},
	}
	if err := s.client.Create(ctx, event); err != nil {
		printf(s.ErrOut, "The event that says who did it and why could not be written: %v\n", err)
	}
	return nil
}

// whoAmI returns the name of the user as the API server knows it.
func (s *session) whoAmI(ctx context.Context) string {
	review := &authenticationv1.SelfSubjectReview{}
	if err := s.client.Create(ctx, review); err != nil || review.Status.UserInfo.Username == "" {
		return "Somebody"
	}
	return review.Status.UserInfo.Username
}

func (s *session) restart(ctx context.Context, set *apps.CloneSet) error {
	o, err := s.gather(ctx, set, kindPod)
	if err != nil {
		return err
	}
	named := 0
	for _, pod := range o.Pods {
		if pod.DeletionTimestamp != nil || pod.Labels[apps.LabelSpecifiedDelete] == "true" {
			continue
		}
		if err := s.nameForDeletion(ctx, pod); err != nil {
			return failed(err, "change pod/%s, after %s", pod.Name, list.Count(named, "other"))
		}
		named++
	}
	s.did("clone/%s replaces %s", set.Name, list.Count(named, "Pod"))
	return s.after(ctx, set)
}

// nameForDeletion asks a CloneSet to replace a Pod, which may be gone.
func (s *session) nameForDeletion(ctx context.Context, pod *corev1.Pod) error {
	label := map[string]any{"labels": map[string]any{apps.LabelSpecifiedDelete: "true"}}
	return client.IgnoreNotFound(s.patchPod(ctx, pod, label))
}

const (
	// askAgain is how often a Pod's deletion is asked for again, so that Usher does not withdraw the
	// drain. It is also how often a refused eviction is retried, as by kubectl drain.
	askAgain = 5 * time.Second
	// drainWithin bounds a drain by default: one whose deadline blocks may never end.
	drainWithin = time.Hour
)

func drainCommand(s *session) *cobra.Command {
	var selector string
	var timeout time.Duration
	command := s.on(drainable, "drain", func(ctx context.Context, t target) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if t.kind == kindNode {
			return s.drainNode(ctx, t, selector)
		}
		pod := &corev1.Pod{}
		if err := s.get(ctx, t, pod); err != nil {
			return err
		}
		if s.dryRun {
			s.did("%s drained", t)
			return nil
		}
		return s.drain(ctx, pod, false)
	})
	s.dryRuns(command, "say which Pods would go, and change nothing")
	s.verboses(command, "of a node, a line for each Pod, and not for several that do the same")
	command.Flags().StringVar(&selector, "pod-selector", "", "of a node, only Pods with these `labels`")
	command.Flags().DurationVar(&timeout, "timeout", drainWithin, "how long to wait for the Pods to go")
	return command
}

func (s *session) drainNode(ctx context.Context, t target, labelled string) error {
	selector, err := labels.Parse(labelled)
	if err != nil {
		return fmt.Errorf("--pod-selector: %w", err)
	}
	node := &corev1.Node{}
	if err := s.get(ctx, t, node); err != nil {
		return err
	}
	if err := s.client.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`))); err != nil {
		return failed(err, "cordon %s", t)
	}
	s.did("%s cordoned", t)
	all, err := s.list(ctx, kindPod, client.MatchingFields{"spec.nodeName": t.name}, client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return failed(err, "list the Pods of %s", t)
	}
	end := func() {}
	if !s.verbose {
		s.crowd = &crowd{}
		end = s.printCrowd(s.crowd, time.Now())
	}
	err = s.drainAll(ctx, view.Each[*corev1.Pod](all))
	end()
	if err != nil {
		return err
	}
	s.did("%s drained", t)
	return nil
}

// drainAll drains the Pods of a node in parallel.
func (s *session) drainAll(ctx context.Context, all []*corev1.Pod) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, pod := range all {
		switch {
		case stays(pod):
		case s.dryRun:
			s.did("pod/%s drained, namespace %s", pod.Name, pod.Namespace)
		default:
			group.Go(func() error { return s.drain(ctx, pod, true) })
		}
	}
	return group.Wait()
}

// stays reports whether a drained node keeps the Pod: it would come back at once, or the
// kubelet runs it by itself.
func stays(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror || owner != nil && owner.Kind == "DaemonSet"
}

// drain drains and deletes one Pod, and returns when it is gone.
func (s *session) drain(ctx context.Context, pod *corev1.Pod, evict bool) error {
	d := &draining{session: s, pod: pod, evict: evict, began: time.Now(), by: s.whoAmI(ctx), printed: map[string]bool{}}
	if err := d.follow(ctx); err != nil {
		return err
	}
	defer func() { d.changes.Stop() }()
	clock := time.NewTicker(askAgain)
	defer clock.Stop()
	for {
		gone, err := d.step(ctx, pod)
		switch {
		case gone:
			d.printOnce("is gone")
			return nil
		case ctx.Err() != nil:
			return d.gaveUp()
		case err != nil:
			return failed(err, "drain pod/%s", d.pod.Name)
		}
		if pod, err = d.next(ctx, clock.C); err != nil {
			return err
		}
	}
}

// next waits for a change of the Pod, and returns the Pod if it came from the watch, so that no version
// is missed. From time to time it prints what the Pod waits for.
func (d *draining) next(ctx context.Context, clock <-chan time.Time) (pod *corev1.Pod, err error) {
	select {
	case <-ctx.Done():
		return nil, d.gaveUp()
	case e, open := <-d.events:
		if !open {
			d.events = nil // the next watch starts with the clock, not at once
		}
		if e.Type != watch.Deleted {
			pod, _ = e.Object.(*corev1.Pod)
		}
	case <-clock:
		if pod = d.seen; d.events == nil { // a new watch brings missed versions
			pod, err = nil, d.follow(ctx)
		}
		d.why(ctx)
	}
	return pod, err
}

// follow watches the Pod; the first event is the Pod as it is.
func (d *draining) follow(ctx context.Context) error {
	thisOne := client.MatchingFields{"metadata.name": d.pod.Name}
	changes, err := d.client.Watch(ctx, &corev1.PodList{}, client.InNamespace(d.pod.Namespace), thisOne)
	if err != nil {
		return failed(err, "watch pod/%s", d.pod.Name)
	}
	if d.changes != nil {
		d.changes.Stop()
	}
	d.changes, d.events = changes, changes.ResultChan()
	return nil
}

// gaveUp returns the error of a drain whose time is over, or that the user has stopped.
func (d *draining) gaveUp() error {
	return fmt.Errorf("pod/%s is still there; kubectl usher why pod/%s -n %s says what it waits for", d.pod.Name, d.pod.Name, d.pod.Namespace)
}

// why prints what a Pod waits for that is not deleted at once. It uses the Pod as it was last reported:
// a newer version would be printed before the versions in between.
func (d *draining) why(ctx context.Context) {
	o, err := d.in(d.pod.Namespace).objects(ctx, target{kindPod, d.pod.Name}, d.seen)
	if err != nil {
		return // its CloneSet may be gone
	}
	for _, pod := range view.Of(o).Members {
		for _, wait := range pod.Waits {
			if len(wait.Registries) == 0 || wait.Until.IsZero() { // report prints when callers stop
				d.printOnce("%s", wait.What)
			}
		}
	}
}

// draining is a Pod that is being drained.
type draining struct {
	*session
	pod   *corev1.Pod
	evict bool
	by    string
	began time.Time
	// asked is when the deletion was last asked for, and seen is the Pod as it was last reported.
	asked   time.Time
	seen    *corev1.Pod
	printed map[string]bool
	// changes watches the Pod, and events are its events; nil once it has ended.
	changes watch.Interface
	events  <-chan watch.Event
}

func (d *draining) printOnce(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	d.once(text, text)
}

// once prints a text, unless one with that key was printed before.
func (d *draining) once(key, text string) {
	if !d.printed[key] {
		d.printed[key] = true
		if d.crowd != nil {
			d.crowd.add(d.pod.Name, text)
			return
		}
		printf(d.Out, "%6.1fs  pod/%s %s\n", time.Since(d.began).Seconds(), d.pod.Name, text)
	}
}

// step reads the Pod, prints what has changed, and asks for the next step of its deletion. It reports
// whether the Pod is gone. If pod is nil, step gets it from the API server.
func (d *draining) step(ctx context.Context, pod *corev1.Pod) (gone bool, err error) {
	if pod == nil {
		pod = &corev1.Pod{}
		err = d.client.Get(ctx, client.ObjectKeyFromObject(d.pod), pod)
		if client.IgnoreNotFound(err) != nil {
			return false, err
		}
	}
	if err != nil || pod.UID != d.pod.UID {
		return true, nil
	}
	d.report(pod)
	switch owner := cloneSetOf(pod); {
	case pod.DeletionTimestamp != nil:
		return false, nil
	case owner != "":
		return false, d.name(ctx, pod, owner)
	case slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer):
		return false, d.request(ctx, pod)
	}
	return false, d.remove(ctx, pod)
}

// report prints which registries no longer list the Pod.
func (d *draining) report(pod *corev1.Pod) {
	d.seen = pod
	record := regplan.ReadRecord(pod)
	if record == nil {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(record.Gone)) {
		_, at, _ := strings.Cut(key, "@")
		registry, _, _ := strings.Cut(at, "/")
		d.printOnce("has left %s", registry)
	}
	if end, now := record.End(), time.Now(); end.After(now) {
		d.once("until "+end.String(), "may still be used by callers, "+d.page().clock(now).ToGo(end))
	}
}

// name asks the Pod's CloneSet to replace it.
func (d *draining) name(ctx context.Context, pod *corev1.Pod, set string) error {
	if pod.Labels[apps.LabelSpecifiedDelete] == "true" {
		return nil
	}
	err := d.nameForDeletion(ctx, pod)
	if err == nil {
		d.printOnce("is named for deletion: clone/%s replaces it within its budgets", set)
	}
	return err
}

// request asks the hook operator for a drain, as the guard does.
func (d *draining) request(ctx context.Context, pod *corev1.Pod) error {
	if time.Since(d.asked) < askAgain {
		return nil
	}
	d.asked = time.Now()
	now := metav1.NowMicro()
	request := usherv1alpha1.DeletionRequest{Since: now, At: now, By: d.by, Eviction: d.evict}
	if before, _ := usherv1alpha1.DeletionRequestOf(pod); before != nil {
		request = *before
		request.At = now
	}
	annotations := map[string]any{usherv1alpha1.AnnotationDeletionRequest: string(encode.JSON(request))}
	err := d.patchPod(ctx, pod, map[string]any{"annotations": annotations})
	if err == nil {
		d.printOnce("leaves its registries")
	}
	return client.IgnoreNotFound(err)
}

// remove deletes or evicts a Pod that no registry lists.
func (d *draining) remove(ctx context.Context, pod *corev1.Pod) error {
	if !d.evict {
		err := d.client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
		if err == nil {
			d.printOnce("is deleted")
		}
		return client.IgnoreNotFound(err)
	}
	if time.Since(d.asked) < askAgain && d.printed["waits for a PodDisruptionBudget"] {
		return nil
	}
	d.asked = time.Now()
	err := d.client.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{})
	if apierrors.IsTooManyRequests(err) {
		d.printOnce("waits for a PodDisruptionBudget")
		return nil
	}
	if err == nil {
		d.printOnce("is evicted")
	}
	return client.IgnoreNotFound(err)
}
