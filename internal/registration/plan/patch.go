// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// PodPatch is what one pass changes on one Pod. It applies only to the resource version
// that was planned from.
type PodPatch struct {
	// Pod is the one that was planned from; it is never modified.
	Pod *corev1.Pod
	// Labels to set; nil removes the label.
	Labels map[string]*string
	// Drain is the record to write. DropDrain removes it.
	Drain     *Record
	DropDrain bool
	// Registrations is the annotation of those that may have entries; nil leaves it as it
	// is. It goes with Usher's finalizer.
	Registrations *string
	// Due are targets that the Pod is new to. Its condition may be True because of other
	// targets, and then nothing else would make a pass list these.
	Due []Target
	// AddFinalizers and RemoveFinalizers change the list; what else is in it stays.
	AddFinalizers    []string
	RemoveFinalizers []string
	// TakenBack removes the request for the Pod's deletion.
	TakenBack *TakenBack
	// Condition is written through the status subresource.
	Condition *corev1.PodCondition
	// Released are the hooks that this patch lets go or sets.
	Released []Release
}

// Release is a hook that was answered.
type Release struct {
	// Gate and Key say which.
	Gate Gate
	Key  string
	// Forced names the registries that had not confirmed at the deadline.
	Forced []string
	// Waits are how long each registry held the hook.
	Waits []RegistryWait
}

// RegistryWait is how long one registry held a hook.
type RegistryWait struct {
	Registry string
	Wait     time.Duration
}

// forced names the registries that the patch gives up at a deadline; empty if there are none.
func (p *PodPatch) forced() string {
	var names []string
	for _, release := range p.Released {
		names = append(names, release.Forced...)
	}
	return strings.Join(distinct(names), ", ")
}

// setLabel sets a label; nil removes it.
func (p *PodPatch) setLabel(key string, value *string) {
	if p.Labels == nil {
		p.Labels = map[string]*string{}
	}
	p.Labels[key] = value
}

// ChangesMetadata reports whether Metadata has something to send.
func (p *PodPatch) ChangesMetadata() bool {
	return len(p.Labels) > 0 || p.Drain != nil || p.DropDrain || p.TakenBack != nil || p.Registrations != nil ||
		len(p.AddFinalizers) > 0 || len(p.RemoveFinalizers) > 0
}

// Metadata encodes the patch of the Pod itself, a JSON merge patch. It carries
// UID and resource version, so that a Pod that changed since is left alone.
func (p *PodPatch) Metadata() ([]byte, error) {
	annotations, err := p.annotations()
	if err != nil {
		return nil, err
	}
	metadata := podMetadata{UID: p.Pod.UID, ResourceVersion: p.Pod.ResourceVersion, Labels: p.labels(), Annotations: annotations}
	if len(p.AddFinalizers)+len(p.RemoveFinalizers) > 0 {
		finalizers := p.finalizers()
		metadata.Finalizers = &finalizers
	}
	return json.Marshal(map[string]any{"metadata": metadata})
}

// podMetadata is metadata of a merge patch: null removes a label or annotation.
type podMetadata struct {
	UID             types.UID          `json:"uid"`
	ResourceVersion string             `json:"resourceVersion"`
	Labels          map[string]*string `json:"labels,omitempty"`
	Annotations     map[string]*string `json:"annotations,omitempty"`
	Finalizers      *[]string          `json:"finalizers,omitempty"`
}

// labels are those that change; nil removes one. That of the guard goes with the finalizer.
func (p *PodPatch) labels() map[string]*string {
	labels := maps.Clone(p.Labels)
	if labels == nil {
		labels = map[string]*string{}
	}
	switch {
	case slices.Contains(p.AddFinalizers, usherv1alpha1.Finalizer):
		labels[usherv1alpha1.LabelGuarded] = new("true")
	case slices.Contains(p.RemoveFinalizers, usherv1alpha1.Finalizer):
		labels[usherv1alpha1.LabelGuarded] = nil
	}
	return labels
}

// annotations are those that change; nil removes one.
func (p *PodPatch) annotations() (map[string]*string, error) {
	annotations := map[string]*string{}
	if p.TakenBack != nil {
		annotations = undo(p.Pod)
	}
	if p.DropDrain {
		annotations[usherv1alpha1.AnnotationDrain] = nil
	}
	if p.Drain != nil {
		text, err := p.Drain.encode()
		if err != nil {
			return nil, err
		}
		annotations[usherv1alpha1.AnnotationDrain] = &text
	}
	if p.Registrations != nil {
		annotations[usherv1alpha1.AnnotationRegistrations] = p.Registrations
	}
	if _, named := p.Pod.Annotations[usherv1alpha1.AnnotationRegistrations]; named && slices.Contains(p.RemoveFinalizers, usherv1alpha1.Finalizer) {
		annotations[usherv1alpha1.AnnotationRegistrations] = nil
	}
	return annotations, nil
}

func (p *PodPatch) finalizers() []string {
	next := []string{} // not nil, which would be null
	for _, name := range slices.Concat(p.Pod.Finalizers, p.AddFinalizers) {
		kept := slices.Contains(p.AddFinalizers, name) || !slices.Contains(p.RemoveFinalizers, name)
		if kept && !slices.Contains(next, name) {
			next = append(next, name)
		}
	}
	return next
}

// Status encodes the patch of the Pod's conditions, a strategic merge patch. It
// depends on the resource version that pod has now.
func (p *PodPatch) Status(pod *corev1.Pod) ([]byte, error) {
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status":   map[string]any{"conditions": []corev1.PodCondition{*p.Condition}},
	})
}

// Empty reports whether the patch changes nothing.
func (p *PodPatch) Empty() bool { return !p.ChangesMetadata() && p.Condition == nil }
