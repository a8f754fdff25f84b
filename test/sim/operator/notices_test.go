// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
	"github.com/usher-dev/usher/test/model"
)

const (
	// steady is the node of most Pods; spot is one that says now and then that it goes.
	steady, spot = "node", "spot"
	// spotNotice and goneNotice are by which taints, and goneShare how soon the second has drains end.
	spotNotice = "aws-node-termination-handler/spot-itn"
	goneNotice = "cloud.google.com/impending-node-termination"
	goneShare  = 15 * time.Second
)

// nodeFor is the node that the scheduler finds for a Pod.
func (s *simulation) nodeFor(pod *corev1.Pod) string {
	if s.features.notices && (pod.Name[len(pod.Name)-1]-'0')%2 == 0 {
		return spot
	}
	return steady
}

// notify has the node say that it goes, once more for another reason, or no longer.
func (s *simulation) notify() {
	key := pick(s, spotNotice, goneNotice)
	model.Change(s.server, "agent", types.NamespacedName{Name: spot}, "", func(node *corev1.Node) {
		has := func(t corev1.Taint) bool { return t.Key == key }
		if slices.ContainsFunc(node.Spec.Taints, has) {
			node.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), has)
		} else {
			node.Spec.Taints = append(slices.Clone(node.Spec.Taints), corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
			s.noticed = true
		}
		s.log("node %s has the taints %v", spot, node.Spec.Taints)
	})
}

// stay has the node stay after all.
func (s *simulation) stay() {
	model.Change(s.server, "agent", types.NamespacedName{Name: spot}, "", func(node *corev1.Node) { node.Spec.Taints = nil })
}

// goes reports whether a Pod is on a node that has said that it goes, as the operator may see it.
func (s *simulation) goes(pod *corev1.Pod) bool { return s.noticed && pod.Spec.NodeName == spot }

// outOfTime reports whether the operator may let a Pod go although a registry lists it: its node goes soon.
func (s *simulation) outOfTime(pod *corev1.Pod) bool {
	record := plan.ReadRecord(pod)
	return s.goes(pod) && record != nil && s.clock.Now().Sub(record.Began) >= goneShare-2*s.features.ahead()
}

// checkNotice has the node say that it goes while all is well, and checks that all its Pods leave, and no others.
func (s *simulation) checkNotice() {
	s.log("node %s goes", spot)
	for _, name := range registries {
		s.breaks(name, memory.None)
	}
	s.stay()
	s.notify()
	for range 5 {
		s.refresh()
		s.probe()
		s.process.left = unlimited
		s.pass()
		s.wait(2 * time.Second)
	}
	for _, pod := range s.pods() {
		if _, serving := s.listed(pod.UID); serving && pod.Spec.NodeName == spot {
			s.fail("%s is in service although its node goes", pod.Name)
		}
	}
	s.stay()
}
