// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
)

const (
	// unknownTakes stands for what no Pod shows. Only the order of events depends on it.
	unknownTakes = 10 * time.Second
	// stopTakes is how long a Pod takes to end. Nothing waits for that but its claims.
	stopTakes = time.Second
	// answerTakes is how long it takes to answer a hook, apart from propagation.
	answerTakes = time.Second
	// mostTakes is more than a Pod takes that nobody had to mend.
	mostTakes = time.Hour
)

// pace is how long things take.
type pace struct {
	// start is a new Pod's way until it is ready, restart that of one updated in place.
	start, restart measure
}

// measure is what earlier cases took.
type measure struct {
	all  []time.Duration
	used bool
}

// takes is the median.
func (m *measure) takes() time.Duration {
	m.used = true
	if len(m.all) == 0 {
		return unknownTakes
	}
	return m.all[len(m.all)/2]
}

func (m *measure) add(from, to time.Time) {
	if took := to.Sub(from); !from.IsZero() && took >= 0 && took < mostTakes {
		m.all = append(m.all, took)
		slices.Sort(m.all)
	}
}

// paceOf measures how long the set's Pods took to get ready.
func paceOf(pods []*corev1.Pod) pace {
	var p pace
	for _, pod := range pods {
		if !inplace.IsTrue(pod, corev1.PodReady) {
			continue
		}
		ready := inplace.ConditionOf(pod, corev1.PodReady).LastTransitionTime.Time
		record, err := inplace.ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
		switch {
		case err != nil:
		case !record.UpdateTimestamp.IsZero():
			p.restart.add(record.UpdateTimestamp.Time, ready)
		default:
			p.start.add(pod.CreationTimestamp.Time, ready)
		}
	}
	return p
}
