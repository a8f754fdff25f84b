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

// heedNotices has the Pods of nodes that go leave their registries, and those of nodes that stay after all come
// back; so do those whose evictions are under way, or are not any more. A Pod that somebody has asked to delete
// leaves for that.
func (ix *index) heedNotices() {
	for _, p := range ix.pods {
		goes, leaves, request := ix.goesUnasked(p)
		if goes == p.goes {
			continue
		}
		p.goes, p.leaves = goes, leaves
		if p.request, p.evicted = readRequest(p.Pod); goes != "" {
			p.request, p.evicted = request, request.Eviction
		}
		p.idle, p.queued = nil, false
		p.hooks = hooksAt(p)
		p.settled = p.isSettled() // by its hooks
	}
}

// goesUnasked is why a Pod leaves its registries that nobody has asked to delete, with the request that this
// stands for; empty if it does not.
func (ix *index) goesUnasked(p *pod) (goes, leaves string, request *usherv1alpha1.DeletionRequest) {
	node, e := ix.Nodes[p.Spec.NodeName], ix.evictions[p.UID]
	if node.Goes == "" && !e.evicts(p) || p.DeletionTimestamp != nil {
		return "", "", nil
	}
	if request, _ := readRequest(p.Pod); request != nil {
		return "", "", nil
	}
	if node.Goes == "" {
		return e.text(), ReasonEvictionRequested, e.requestOf()
	}
	return fmt.Sprintf("its node %s %s", p.Spec.NodeName, node.Goes), ReasonNodeGoes,
		&usherv1alpha1.DeletionRequest{By: "the notice of node " + p.Spec.NodeName}
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
