// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// A node that goes within a short time, whoever objects, takes its Pods with it: nobody can wait for them any more
// when somebody deletes them. So they leave their registries at the notice, all of them side by side, as if somebody
// had asked to delete each. Nobody has, so nothing is written that says so: the node says it, in each pass anew. When
// it no longer does, they come back. Budgets have no say: the Pods end in any case.

// noticeShare is the part of a notice's time that a drain may take; the rest is for whoever deletes the Pods, and for
// their containers.
const noticeShare = 2

// heedNotices has the Pods of nodes that go leave their registries, and those of nodes that stay after all come back. A
// Pod that somebody has asked to delete leaves for that.
func (ix *index) heedNotices() {
	for _, p := range ix.pods {
		goes := ix.goesWithNode(p)
		if goes == p.goes {
			continue
		}
		if p.goes = goes; goes != "" {
			p.request = &usherv1alpha1.DeletionRequest{By: "the notice of node " + p.Spec.NodeName}
		} else {
			p.request, _ = readRequest(p.Pod)
		}
		p.idle, p.queued = nil, false
		p.hooks = hooksAt(p)
		p.settled = p.isSettled() // by its hooks
	}
}

// goesWithNode is why a Pod leaves its registries that nobody has asked to delete; empty if it does not.
func (ix *index) goesWithNode(p *pod) string {
	node := ix.Nodes[p.Spec.NodeName]
	if node.Goes == "" || p.DeletionTimestamp != nil {
		return ""
	}
	if request, _ := readRequest(p.Pod); request != nil {
		return ""
	}
	return fmt.Sprintf("its node %s %s", p.Spec.NodeName, node.Goes)
}

// outOfTime has a drain end when half of the time is over that the Pod's node has: whatever the Pod waits for then, it
// ends soon. It returns the verdict that remains.
func (ix *index) outOfTime(p *pod, h hook, record *Record, v verdict) verdict {
	node := ix.Nodes[p.Spec.NodeName]
	if h.gate != GateRequested || node.Goes == "" || v.passes() {
		return v
	}
	end := record.Began.Add(node.Within / noticeShare)
	if ix.Now.Before(end) {
		v.next = list.Earliest(v.next, end)
		return v
	}
	for _, w := range v.waiting {
		if w.Registry != "" {
			v.forced = append(v.forced, w.Registry)
		} else {
			v.busy = append(v.busy, busyPod{w.Registration, w.Message})
		}
	}
	v.waiting, v.next = nil, time.Time{}
	return v
}
