// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
)

// reasonReleased is the reason of the event that a release by hand leaves behind.
const reasonReleased = "HookReleasedByHand"

func releaseCommand(s *session) *cobra.Command {
	var hook, reason string
	var yes, dryRun bool
	command := s.on(onlyPods, &cobra.Command{
		Use: "release pod/NAME --hook=KEY --reason=TEXT", Short: "Break the glass: let a Pod pass a hook that nobody answers",
		Long: `Break the glass: let a Pod pass a hook that nobody answers.

It does to the Pod what the hook's owner would have done: it flips the label, or adds or
removes the finalizer. Registries that still list the Pod are not asked, so requests may be
lost. An event on the Pod says who did it, and why.`,
	}, func(ctx context.Context, t target) error {
		if hook == "" || reason == "" {
			return errors.New("--hook and --reason are needed; kubectl usher why pod/NAME names the hook")
		}
		pod := &corev1.Pod{}
		if err := s.get(ctx, t, pod); err != nil {
			return err
		}
		metadata, does, err := s.releases(ctx, pod, hook)
		if err != nil {
			return err
		}
		tell(s.ErrOut, "This %s Pod %s. Registries that still list the Pod are not asked: requests may be lost.\n", does, pod.Name)
		if !yes && !dryRun && !s.confirm("Release the hook?") {
			return errors.New("nothing was changed")
		}
		return s.release(ctx, pod, hook, reason, metadata, dryRun)
	})
	command.Flags().StringVar(&hook, "hook", "", "`key` of the label, or the finalizer, that holds the Pod")
	command.Flags().StringVar(&reason, "reason", "", "why; it goes into an event")
	completesFlag(command, "hook", s.keys)
	command.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "ask the API server whether it would accept the change, and change nothing")
	return command
}

func (s *session) confirm(question string) bool {
	tell(s.ErrOut, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(s.In).ReadString('\n')
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer)))
}

// releases returns the change of metadata that lets the Pod pass the hook, and what it does.
func (s *session) releases(ctx context.Context, pod *corev1.Pod, key string) (metadata map[string]any, does string, err error) {
	label, finalizer, err := s.hook(ctx, pod, key)
	if err != nil {
		return nil, "", err
	}
	switch apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]) {
	case apps.StatePreparingNormal, apps.StateUpdated:
		metadata, does = complete(pod, key, label, finalizer)
	default:
		metadata, does = free(pod, key, label)
	}
	if metadata == nil || pod.DeletionTimestamp != nil {
		metadata, does = free(pod, key, "") // a terminating Pod waits for finalizers alone
	}
	if metadata == nil {
		return nil, "", fmt.Errorf("pod/%s does not wait for %q; kubectl usher why pod/%s shows what it waits for", pod.Name, key, pod.Name)
	}
	return metadata, does, nil
}

// complete gives the Pod what the hook misses; nil if it misses nothing.
func complete(pod *corev1.Pod, key, label string, finalizer bool) (metadata map[string]any, does string) {
	switch {
	case finalizer && !slices.Contains(pod.Finalizers, key):
		return finalizers(pod, append(slices.Clone(pod.Finalizers), key)), "adds the finalizer " + key + " to"
	case label != "" && pod.Labels[key] != label:
		return map[string]any{"labels": map[string]any{key: label}}, fmt.Sprintf("sets the label %s to %q on", key, label)
	}
	return nil, ""
}

// free takes from the Pod what the hook holds it by; nil if it holds it by nothing.
func free(pod *corev1.Pod, key, label string) (metadata map[string]any, does string) {
	switch {
	case slices.Contains(pod.Finalizers, key):
		rest := slices.DeleteFunc(slices.Clone(pod.Finalizers), func(f string) bool { return f == key })
		return finalizers(pod, rest), "removes the finalizer " + key + " from"
	case label != "" && pod.Labels[key] == label:
		return map[string]any{"labels": map[string]any{key: nil}}, "removes the label " + key + " from"
	}
	return nil, ""
}

// finalizers replaces the list as a whole, so nobody may have changed it meanwhile.
func finalizers(pod *corev1.Pod, list []string) map[string]any {
	return map[string]any{"finalizers": list, "resourceVersion": pod.ResourceVersion}
}

// hook returns the value with which the label of the Pod's CloneSet holds it, and whether
// the key is a finalizer of the set.
func (s *session) hook(ctx context.Context, pod *corev1.Pod, key string) (label string, finalizer bool, err error) {
	owner := cloneSetOf(pod)
	if owner == "" {
		return "", false, nil
	}
	set := &apps.CloneSet{}
	if err := s.get(ctx, target{kindCloneSet, owner}, set); err != nil {
		return "", false, err
	}
	for _, hook := range lifecycle.FromSpec(set.Spec.Lifecycle).All() {
		label = cmp.Or(hook.Labels[key], label)
		finalizer = finalizer || slices.Contains(hook.Finalizers, key)
	}
	return label, finalizer, nil
}

func (s *session) release(ctx context.Context, pod *corev1.Pod, hook, reason string, metadata map[string]any, dryRun bool) error {
	if err := s.patchPod(ctx, pod, dryRun, metadata); err != nil {
		return failed(err, "change pod/%s", pod.Name)
	}
	_, dry := patchOptions(dryRun)
	tell(s.Out, "pod/%s released from %s%s\n", pod.Name, hook, dry)
	if dryRun {
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
	var how change
	command := &cobra.Command{
		Use: "restart clone/NAME", Short: "Replace every Pod, within the budgets of the set",
		Long: `Replace every Pod, within the budgets of the set.

Each Pod is named for deletion (apps.kruise.io/specified-delete): the set drains, deletes
and replaces as many at a time as spec.updateStrategy.maxUnavailable and maxSurge allow.
Kubernetes cannot restart the containers of a running Pod without changing them.`,
	}
	return how.bind(s.onCloneSet(command, func(ctx context.Context, set *apps.CloneSet) error { return s.restart(ctx, set, &how) }))
}

func (s *session) restart(ctx context.Context, set *apps.CloneSet, how *change) error {
	o, err := s.gather(ctx, set, kindPod)
	if err != nil {
		return err
	}
	_, told := patchOptions(how.dryRun)
	named := 0
	for _, pod := range o.Pods {
		if pod.DeletionTimestamp != nil || pod.Labels[apps.LabelSpecifiedDelete] == "true" {
			continue
		}
		label := map[string]any{"labels": map[string]any{apps.LabelSpecifiedDelete: "true"}}
		if err := s.patchPod(ctx, pod, how.dryRun, label); client.IgnoreNotFound(err) != nil {
			return failed(err, "change pod/%s, after %d others", pod.Name, named)
		}
		named++
	}
	tell(s.Out, "clone/%s replaces %d Pods%s\n", set.Name, named, told)
	return s.after(ctx, set, how)
}
