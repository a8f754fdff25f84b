// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/podread"
)

const (
	// metaTags is where the tags of an entry are, for every kind of registry.
	metaTags = "tags"
	// maxValue bounds a value that is taken from a Pod, in bytes: the strictest
	// registry, Consul, takes no more, and one annotation that is too long must not
	// keep its Pod from callers.
	maxValue = podread.LongestValue
	// maxWeight is the largest weight, as for spec.instance.weight.
	maxWeight = 65535
)

// values are the parts of an entry that may come from the Pod itself.
type values struct {
	weight   int32
	metadata map[string]string
	// bad are the values of the Pod that could not be used, and what replaces them.
	bad []string
}

// valuesOf reads the Pod as spec.instance says. No value of a Pod can prevent its
// registration: unusable ones are left out.
func valuesOf(i *usherv1alpha1.Instance, pod *corev1.Pod) *values {
	v := &values{weight: max(i.Weight, 1)}
	if i.WeightFrom != nil {
		v.readWeight(i.WeightFrom.FieldRef.FieldPath, pod)
	}
	v.metadata = make(map[string]string, len(i.Metadata))
	for key, value := range i.Metadata {
		v.metadata[key] = string(value)
	}
	tags := v.readTags(i, pod)
	for _, source := range i.MetadataFrom {
		if value, ok := v.read(source.FieldRef.FieldPath, pod); ok {
			v.metadata[source.Key] = value
		}
	}
	if len(tags) > 0 {
		v.metadata[metaTags] = strings.Join(tags, ",")
	}
	return v
}

func (v *values) readWeight(path string, pod *corev1.Pod) {
	text, ok := v.read(path, pod)
	if !ok || text == "" {
		return
	}
	weight, err := strconv.ParseInt(text, 10, 32)
	if err != nil || weight < 1 || weight > maxWeight {
		v.bad = append(v.bad, fmt.Sprintf("%s is %q and no weight, which is a whole number from 1 to %d: "+
			"spec.instance.weight, %d, is used", path, text, maxWeight, v.weight))
		return
	}
	v.weight = int32(weight)
}

// readTags returns all tags of the Pod's entry, sorted.
func (v *values) readTags(i *usherv1alpha1.Instance, pod *corev1.Pod) []string {
	tags := slices.Clone(i.Tags)
	for _, source := range i.TagsFrom {
		text, _ := v.read(source.FieldRef.FieldPath, pod)
		for tag := range strings.SplitSeq(text, ",") {
			if tag = strings.TrimSpace(tag); tag != "" {
				tags = append(tags, tag)
			}
		}
	}
	return distinct(tags)
}

// read returns a field of the Pod; false if the Pod does not have it, or it cannot be
// used.
func (v *values) read(path string, pod *corev1.Pod) (string, bool) {
	value, ok := podField(pod, path)
	switch {
	case !ok:
		return "", false
	case len(value) > maxValue, podread.IsCut(value):
		v.bad = append(v.bad, fmt.Sprintf("%s has more than %d bytes: it is left out", path, maxValue))
		return "", false
	case !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
		v.bad = append(v.bad, path+" has control characters: it is left out")
		return "", false
	}
	return value, true
}

// podField returns the field that a fieldRef names, as the downward API reads it.
func podField(pod *corev1.Pod, path string) (value string, ok bool) {
	if field, key, isMap := strings.Cut(strings.TrimSuffix(path, "']"), "['"); isMap {
		switch field {
		case "metadata.labels":
			value, ok = pod.Labels[key]
		case "metadata.annotations":
			value, ok = pod.Annotations[key]
		}
		return value, ok
	}
	value = map[string]string{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID),
		"spec.nodeName": pod.Spec.NodeName, "spec.serviceAccountName": pod.Spec.ServiceAccountName,
		"status.podIP": pod.Status.PodIP, "status.hostIP": pod.Status.HostIP,
	}[path]
	return value, value != ""
}

// distinct sorts names, and removes duplicates.
func distinct(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// InvalidValue is a value of a Pod that cannot be used.
type InvalidValue struct {
	// Pod that has it.
	Pod *corev1.Pod
	// Message says what is wrong, and what replaces the value.
	Message string
}

// invalidValues are the values of the Registration's Pods that cannot be used.
func (r *registration) invalidValues() (all []InvalidValue) {
	if r.static != nil {
		return nil
	}
	for _, p := range r.pods {
		for _, message := range p.valuesFor(r).bad {
			all = append(all, InvalidValue{Pod: p.Pod, Message: message})
		}
	}
	return all
}

// Outdated returns the targets of entries that take other values from their Pods than before,
// as far as the snapshot's memory tells. Such a Pod itself says that it is registered, so
// nothing else would make a pass list them.
func Outdated(snapshot Snapshot) []Target {
	ix := newIndex(snapshot)
	outdated := ix.outdated
	for _, r := range ix.registrations {
		if ix.renewed && r.static == nil {
			outdated = append(outdated, r.current...)
		}
	}
	ix.outdated, ix.renewed = nil, false
	return outdated
}

// compareValues notes the targets of entries that take other values from the Pod now.
func (ix *index) compareValues(before, now *pod) {
	if before == nil {
		return
	}
	for _, r := range now.selectedBy {
		was, is := before.values[r], now.valuesFor(r)
		if was != nil && (was.weight != is.weight || !maps.Equal(was.metadata, is.metadata)) {
			ix.outdated = append(ix.outdated, r.current...)
		}
	}
}

// valuesFor returns what the Registration's entries take from the Pod.
func (p *pod) valuesFor(r *registration) *values {
	if r.static != nil {
		return r.static
	}
	if p.values[r] == nil {
		if p.values == nil {
			p.values = map[*registration]*values{}
		}
		p.values[r] = valuesOf(&r.Spec.Instance, p.Pod)
	}
	return p.values[r]
}
