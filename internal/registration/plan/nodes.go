// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/usher-dev/usher/internal/podread"
)

// Defaults of spec.nodeFailure.
const (
	// DefaultNodeGrace is how long a Pod stays whose node does not answer.
	DefaultNodeGrace = 15 * time.Second
	// DefaultNodePercent is how many of a Registration's Pods may have left for that reason
	// at a time.
	DefaultNodePercent = 50
)

// Silent reports whether the Pod would be ready if its node answered, and since when the
// node does not. The node controller sets only Ready when a node falls silent: containers
// and gates still claim that all is well.
func Silent(pod *corev1.Pod) (since time.Time, yes bool) {
	c := podread.Condition(pod, corev1.PodReady)
	if c == nil || c.Status == corev1.ConditionTrue || c.Reason == reasonGates || unready(pod) != "" {
		return time.Time{}, false
	}
	return c.LastTransitionTime.Time, true
}

// kept is why a Pod stays listed although its node does not answer.
type kept struct {
	// until is when its grace is over; zero if too few Pods would be left without it.
	until time.Time
	// message is empty during the grace.
	message string
}

// keepSilent finds the Pods of the Registration that stay although their nodes do not
// answer: those in their grace, and those without which too few would be left. That many
// silent nodes may be one broken link between them and the API server, and callers may
// still reach the Pods.
func (ix *index) keepSilent(r *registration) {
	grace, percent := DefaultNodeGrace, int32(DefaultNodePercent)
	if f := r.Spec.NodeFailure; f != nil {
		grace, percent = DurationOf(f.Grace, grace), ptr.Deref(f.MaxPercent, percent)
	}
	r.kept = map[*pod]*kept{}
	var lost []*pod
	total := 0
	for _, p := range r.pods {
		if !p.silent && p.unready != "" || p.misplaced(r) != "" {
			continue
		}
		total++
		end := p.silentSince.Add(grace)
		switch {
		case !p.silent:
		case ix.Now.Before(end):
			r.kept[p] = &kept{until: end}
		default:
			lost = append(lost, p)
		}
	}
	slices.SortFunc(lost, func(a, b *pod) int {
		return cmp.Or(a.silentSince.Compare(b.silentSince), strings.Compare(a.Name, b.Name))
	})
	leave := min(total*int(percent)/100, total-1)
	for i, p := range lost {
		if i >= leave {
			r.kept[p] = &kept{message: fmt.Sprintf("its node does not answer, and it stays listed: the nodes of %d of %d Pods "+
				"do not, and spec.nodeFailure.maxPercent is %d; the last one always stays", len(lost), total, percent)}
		}
	}
}
