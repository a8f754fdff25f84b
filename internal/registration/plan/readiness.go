// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/podread"
)

// reasonGates is the kubelet's reason for a Pod that waits for readiness gates
// alone, of which ours may be the last.
const reasonGates = "ReadinessGatesNotReady"

// Ready reports whether callers can use the Pod, and if not, why.
func Ready(pod *corev1.Pod) (bool, string) {
	if why := unready(pod); why != "" {
		return false, why
	}
	if _, yes := Silent(pod); yes {
		return false, "it is not Ready; its node may not answer"
	}
	return true, ""
}

// unready is why callers could not use the Pod even if its node answers; empty if they
// could. Usher's own readiness gate does not count: it waits for Usher.
func unready(pod *corev1.Pod) string {
	switch {
	case pod.DeletionTimestamp != nil:
		return "the Pod is terminating"
	case pod.Status.PodIP == "":
		return "the Pod has no address yet"
	case podread.Status(pod, corev1.ContainersReady) != corev1.ConditionTrue:
		return "its containers are not ready"
	}
	for _, gate := range pod.Spec.ReadinessGates {
		if gate.ConditionType == usherv1alpha1.ConditionRegistered {
			continue
		}
		if podread.Status(pod, gate.ConditionType) != corev1.ConditionTrue {
			return fmt.Sprintf("its readiness gate %s is not True", gate.ConditionType)
		}
	}
	return ""
}

// addressOf is the Pod's address of a family, or its first one if the family is empty; empty if it has
// none.
func addressOf(pod *corev1.Pod, family corev1.IPFamily) string {
	if family == "" {
		return pod.Status.PodIP
	}
	for _, one := range slices.Concat([]corev1.PodIP{{IP: pod.Status.PodIP}}, pod.Status.PodIPs) {
		if ip, err := netip.ParseAddr(one.IP); err == nil && ip.Is4() == (family == corev1.IPv4Protocol) {
			return one.IP
		}
	}
	return ""
}

// portOf resolves the name of a container port; 0 if there is none.
func portOf(pod *corev1.Pod, port intstr.IntOrString) int32 {
	if port.Type == intstr.Int {
		return port.IntVal
	}
	for named := range namedPorts(pod) {
		if named.Name == port.StrVal {
			return named.ContainerPort
		}
	}
	return 0
}

// HasPort reports whether a container or native sidecar of the Pod has a port of that name. Every Pod has every number.
func HasPort(pod *corev1.Pod, port intstr.IntOrString) bool {
	return port.Type == intstr.Int || portOf(pod, port) != 0
}

// namedPorts yields the ports with a name: of containers first and then of native sidecars, in the
// order in which Services look for one. Other init containers have ended when the Pod is ready.
func namedPorts(pod *corev1.Pod) iter.Seq[*corev1.ContainerPort] {
	return func(yield func(*corev1.ContainerPort) bool) {
		for i := range len(pod.Spec.Containers) + len(pod.Spec.InitContainers) {
			ports := listening(pod, i)
			for j := range ports {
				if ports[j].Name != "" && !yield(&ports[j]) {
					return
				}
			}
		}
	}
}

// listening are the ports of the Pod's container i, counted on from containers to init containers.
func listening(pod *corev1.Pod, i int) []corev1.ContainerPort {
	if n := len(pod.Spec.Containers); i >= n {
		c := &pod.Spec.InitContainers[i-n]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			return nil
		}
		return c.Ports
	}
	return pod.Spec.Containers[i].Ports
}

// Matters reports whether a change of a Pod may change the plan.
func Matters(a, b *corev1.Pod) bool {
	if a.UID != b.UID || a.Status.PodIP != b.Status.PodIP || !slices.Equal(a.Status.PodIPs, b.Status.PodIPs) ||
		(a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) ||
		a.Status.HostIP != b.Status.HostIP || a.Spec.NodeName != b.Spec.NodeName ||
		!maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations) ||
		!slices.Equal(a.Finalizers, b.Finalizers) {
		return true
	}
	return answered(a, b) || differ(a, b)
}

// differ reports whether the Pod became ready for callers or stopped being so, or whether its
// own condition has changed.
func differ(a, b *corev1.Pod) bool {
	aReady, _ := Ready(a)
	bReady, _ := Ready(b)
	registered := usherv1alpha1.ConditionRegistered
	return aReady != bReady || podread.Status(a, registered) != podread.Status(b, registered)
}

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

// outAnyway reports whether the Pod is not to be in service, whether its node answers or not.
func outAnyway(r *registration, p *pod) bool {
	return !p.remains(r) && (!p.silent && p.unready != "" || p.misplaced(r) != "")
}

// hasLeft reports whether a registry lists the Pod no more, or not yet. If no registry's list is known, the Pod's
// condition says so.
func (ix *index) hasLeft(r *registration, p *pod) bool {
	known := false
	for _, t := range r.current {
		found := ix.presence(r, t, p)
		switch {
		case ix.gated(t) || found.err != nil:
		case !found.listed:
			return true
		default:
			known = true
		}
	}
	return !known && podread.Status(p.Pod, usherv1alpha1.ConditionRegistered) != corev1.ConditionTrue
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
	for _, p := range r.pods {
		switch end := p.silentSince.Add(grace); {
		case !p.silent || outAnyway(r, p):
		case ix.Now.Before(end):
			r.kept[p] = &kept{until: end}
		default:
			lost = append(lost, p)
		}
	}
	if len(lost) == 0 {
		return
	}
	lost, total := ix.whoLeaves(r, lost)
	leave := max(min(total*int(percent)/100, total-1, len(lost)), 0)
	for _, p := range lost[leave:] {
		r.kept[p] = &kept{message: fmt.Sprintf("its node does not answer, and it stays listed: the nodes of %d of %d Pods "+
			"do not, and spec.nodeFailure.maxPercent is %d; the last one always stays", len(lost), total, percent)}
	}
}

// whoLeaves sorts the Pods that may leave because their nodes do not answer, and counts them with the others that are
// in service. Pods that have left come first, since they do not come back: if another Pod took the place of one that
// has left, both would be gone.
func (ix *index) whoLeaves(r *registration, lost []*pod) (sorted []*pod, total int) {
	total = len(lost)
	rank := map[*pod]int{}
	for _, p := range r.pods {
		if ix.hasLeft(r, p) {
			continue
		}
		rank[p] = 1
		if counted := p.silent && r.kept[p] == nil; !counted && !outAnyway(r, p) {
			total++
		}
	}
	return slices.SortedFunc(slices.Values(lost), func(a, b *pod) int {
		return cmp.Or(cmp.Compare(rank[a], rank[b]), a.silentSince.Compare(b.silentSince), strings.Compare(a.Name, b.Name))
	}), total
}
