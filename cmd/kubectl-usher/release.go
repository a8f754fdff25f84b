// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
)

// reasonReleased is the reason of the event that a release by hand leaves behind.
const reasonReleased = "HookReleasedByHand"

func releaseCommand(s *session) *cobra.Command {
	var hook, reason string
	var yes bool
	command := s.on(onlyPods, "release", func(ctx context.Context, t target) error {
		if hook == "" || reason == "" {
			return errors.New("--hook and --reason are needed; kubectl usher why pod/NAME names the hook")
		}
		pod := &corev1.Pod{}
		if err := s.get(ctx, t, pod); err != nil {
			return err
		}
		answered, err := s.answered(ctx, pod, hook)
		if err != nil {
			return err
		}
		tell(s.ErrOut, "This answers the hook %s of Pod %s instead of its owner. Registries that still list the Pod are not asked: requests may be lost.\n",
			hook, pod.Name)
		if !yes && !s.dryRun && !s.confirm("Release the hook?") {
			return errors.New("nothing was changed")
		}
		return s.release(ctx, pod, answered, hook, reason)
	})
	command.Flags().StringVar(&hook, "hook", "", "`key` of the label, or the finalizer, that holds the Pod")
	command.Flags().StringVar(&reason, "reason", "", "why; it goes into an event")
	completesFlag(command, "hook", s.keys)
	command.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	command.Flags().BoolVar(&s.dryRun, "dry-run", false, "ask the API server whether it would accept the change, and change nothing")
	return command
}

func (s *session) confirm(question string) bool {
	tell(s.ErrOut, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(s.In).ReadString('\n')
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer)))
}

// answered is the Pod as whoever answers the hook would leave it.
func (s *session) answered(ctx context.Context, pod *corev1.Pod, key string) (*corev1.Pod, error) {
	hook, err := s.hook(ctx, pod, key)
	if err != nil {
		return nil, err
	}
	after := pod.DeepCopy()
	state := apps.LifecycleState(pod.Labels[apps.LabelLifecycleState])
	joins := !hook.Empty() && (state == apps.StatePreparingNormal || state == apps.StateUpdated)
	switch {
	case pod.DeletionTimestamp != nil: // it waits for finalizers alone
		lifecycle.Hook{Finalizers: []string{key}}.Release(after)
	case joins:
		hook.Confirm(after)
	default: // the finalizer may be none of the set's
		lifecycle.Hook{Labels: hook.Labels, Finalizers: []string{key}}.Release(after)
	}
	if equality.Semantic.DeepEqual(pod.ObjectMeta, after.ObjectMeta) {
		return nil, fmt.Errorf("pod/%s does not wait for %q; kubectl usher why pod/%s shows what it waits for", pod.Name, key, pod.Name)
	}
	return after, nil
}

// hook is what the Pod's CloneSet holds it by with the key.
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
		if value, ok := one.Labels[key]; ok {
			hook.Labels = map[string]string{key: value}
		}
		if slices.Contains(one.Finalizers, key) {
			hook.Finalizers = []string{key}
		}
	}
	return hook, nil
}

// release changes a Pod that nobody else has changed meanwhile, and tells who did it.
func (s *session) release(ctx context.Context, pod, answered *corev1.Pod, hook, reason string) error {
	if err := s.client.Patch(ctx, answered, client.MergeFromWithOptions(pod, client.MergeFromWithOptimisticLock{})); err != nil {
		return failed(err, "change pod/%s", pod.Name)
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
		tell(s.ErrOut, "The event that says who did it and why could not be written: %v\n", err)
	}
	return nil
}

// whoAmI is the user as the API server knows them.
func (s *session) whoAmI(ctx context.Context) string {
	review := &authenticationv1.SelfSubjectReview{}
	if err := s.client.Create(ctx, review); err != nil || review.Status.UserInfo.Username == "" {
		return "Somebody"
	}
	return review.Status.UserInfo.Username
}

func restartCommand(s *session) *cobra.Command {
	return s.changes(s.onCloneSet("restart", s.restart))
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
			return failed(err, "change pod/%s, after %d others", pod.Name, named)
		}
		named++
	}
	s.did("clone/%s replaces %d Pods", set.Name, named)
	return s.after(ctx, set)
}

// nameForDeletion asks a CloneSet to replace a Pod, which may be gone.
func (s *session) nameForDeletion(ctx context.Context, pod *corev1.Pod) error {
	label := map[string]any{"labels": map[string]any{apps.LabelSpecifiedDelete: "true"}}
	return client.IgnoreNotFound(s.patchPod(ctx, pod, label))
}
