// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

const (
	// edge is a second Registration, and its service; it selects Pods by their
	// label track, whatever else they are.
	edge = "edge"
	// simDeadline is when updates in place proceed, in some runs.
	simDeadline = 15 * time.Second
)

// registrationOf is the one whose service it is.
func registrationOf(name string) string {
	if name == edge {
		return edge
	}
	return "nginx"
}

// matches says whether a Registration of the simulation selects the Pod.
func (s *simulation) matches(registration string, pod *corev1.Pod) bool {
	if registration == edge {
		return s.features.second && pod.Labels["track"] == edge
	}
	return pod.Labels["app"] == "nginx"
}

// relabel moves a Pod between the two Registrations: to one of them, both or none.
func (s *simulation) relabel(pod *corev1.Pod) {
	s.Helper()
	if s.features.second {
		s.label(pod, []string{"nginx", "nginx", "other"}[s.random.IntN(3)], []string{edge, edge, "stable"}[s.random.IntN(3)])
	}
}

func (s *simulation) label(pod *corev1.Pod, app, track string) {
	s.Helper()
	if pod.Labels["app"] == app && pod.Labels["track"] == track {
		return
	}
	s.change(pod, fmt.Sprintf("is labelled %s, %s", app, track), func(pod *corev1.Pod) {
		pod.Labels["app"], pod.Labels["track"] = app, track
	})
}

// asksThoseThatMatch makes a Pod name only those that select it now.
func asksThoseThatMatch(pod *corev1.Pod) {
	if _, named := pod.Annotations[usherv1alpha1.AnnotationRegistrations]; !named {
		return
	}
	var names []string
	if pod.Labels["app"] == "nginx" {
		names = append(names, "nginx")
	}
	if pod.Labels["track"] == edge {
		names = append(names, edge)
	}
	pod.Annotations[usherv1alpha1.AnnotationRegistrations] = strings.Join(names, ",")
}

// takesDrainsForOne makes a record that of the Pod's present stay at the gate.
func takesDrainsForOne(pod *corev1.Pod) {
	var record map[string]any
	if err := json.Unmarshal([]byte(pod.Annotations[usherv1alpha1.AnnotationDrain]), &record); err != nil {
		return // There is none.
	}
	record["entered"] = pod.Annotations[appsv1alpha1.AnnotationLifecycleTimestamp]
	text, err := json.Marshal(record)
	if err != nil {
		panic(err) // What came from JSON can be encoded again.
	}
	pod.Annotations[usherv1alpha1.AnnotationDrain] = string(text)
}

// overdue says whether a hook may be given up: its Pod has been at the gate for as
// long as the deadline says.
func (s *simulation) overdue(key string, pod *corev1.Pod) bool {
	return s.features.proceed && key == keyInPlace && s.clock.Now().Sub(s.entered[pod.UID]) >= simDeadline
}
