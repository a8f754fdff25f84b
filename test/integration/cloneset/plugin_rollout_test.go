// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// `rollout status` finishes when the Pods are there, and not before.
func TestPluginRolloutStatus(t *testing.T) {
	const image = `spec: {template: {spec: {containers: [{name: main, image: "example.test/web:v2"}]}}}`
	for _, test := range []struct {
		name, patch, request string
		lastWord             string
		// updated Pods are ready, with the new image in the case of an update.
		image   string
		updated int
	}{
		{"in place", "{}", image, "successfully rolled out", "web:v2", 3},
		{"recreated", `spec: {updateStrategy: {type: ReCreate}}`, image, "successfully rolled out", "web:v2", 3},
		{"partition", `spec: {updateStrategy: {partition: 1}}`, image, "partitioned roll out complete: 2 new Pods", "web:v2", 2},
		{"partition in percent", `spec: {updateStrategy: {partition: "50%"}}`, image, "partitioned roll out complete: 1 new Pods", "web:v2", 1},
		{"scaled", "{}", `spec: {replicas: 5}`, "successfully rolled out", "web:v1", 5},
		{"stuck", "{}", strings.Replace(strings.Replace(image, "web:v2", "missing:v1", 1), "{", "{progressDeadlineSeconds: 1, ", 1),
			"exceeded its progress deadline", "missing:v1", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := begin(t)
			s.create("plain", test.patch)
			if says := s.rolloutStatus(); !strings.Contains(says, "roll") {
				t.Fatalf("of the new set: %s", says)
			}
			s.patch("%s", test.request)
			if says := s.rolloutStatus(); says != test.lastWord {
				t.Errorf("its last word is %q", says)
			}
			updated := slices.DeleteFunc(s.pods(), func(p corev1.Pod) bool {
				return p.Spec.Containers[0].Image != "example.test/"+test.image || conditionOf(&p, corev1.PodReady).Status != corev1.ConditionTrue
			})
			if len(updated) != test.updated {
				t.Errorf("%d Pods are ready with %s\n%s", len(updated), test.image, s.picture())
			}
		})
	}
}
