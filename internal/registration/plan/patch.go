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

// Encode encodes the patch, a strategic merge patch of the Pod's subresource status: it takes
// labels, annotations and finalizers too, and changes no spec, whoever sends it. So all that a
// pass changes on a Pod is one write. It carries UID and resource version, so that a Pod that
// changed since is left alone.
func (p *PodPatch) Encode() ([]byte, error) {
	annotations, err := p.annotations()
	if err != nil {
		return nil, err
	}
	patch := map[string]any{"metadata": podMetadata{
		UID: p.Pod.UID, ResourceVersion: p.Pod.ResourceVersion, Labels: p.labels(), Annotations: annotations,
		AddFinalizers: p.AddFinalizers, RemoveFinalizers: p.RemoveFinalizers,
	}}
	if p.Condition != nil {
		patch["status"] = map[string]any{"conditions": []*corev1.PodCondition{p.Condition}}
	}
	return json.Marshal(patch)
}

// podMetadata is metadata of a strategic merge patch: null removes a label or annotation.
type podMetadata struct {
	UID              types.UID          `json:"uid"`
	ResourceVersion  string             `json:"resourceVersion"`
	Labels           map[string]*string `json:"labels,omitempty"`
	Annotations      map[string]*string `json:"annotations,omitempty"`
	AddFinalizers    []string           `json:"finalizers,omitempty"`
	RemoveFinalizers []string           `json:"$deleteFromPrimitiveList/finalizers,omitempty"`
}

// labels are those that change; nil removes one. That of the guard goes with the finalizer.
func (p *PodPatch) labels() map[string]*string {
	labels := map[string]*string{}
	maps.Copy(labels, p.Labels)
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
		record, err := json.Marshal(p.Drain)
		if err != nil {
			return nil, err
		}
		annotations[usherv1alpha1.AnnotationDrain] = new(string(record))
	}
	if p.Registrations != nil {
		annotations[usherv1alpha1.AnnotationRegistrations] = p.Registrations
	}
	if _, named := p.Pod.Annotations[usherv1alpha1.AnnotationRegistrations]; named && slices.Contains(p.RemoveFinalizers, usherv1alpha1.Finalizer) {
		annotations[usherv1alpha1.AnnotationRegistrations] = nil
	}
	return annotations, nil
}

// Empty reports whether the patch changes nothing.
func (p *PodPatch) Empty() bool {
	return len(p.Labels)+len(p.AddFinalizers)+len(p.RemoveFinalizers) == 0 &&
		p.Drain == nil && !p.DropDrain && p.TakenBack == nil && p.Registrations == nil && p.Condition == nil
}
