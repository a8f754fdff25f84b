// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/e2e"
	"github.com/usher-dev/usher/test/stage"
)

// both are the registries of guarded stories: callers that choose a Pod themselves, and
// callers behind a load balancer.
var both = []e2e.Registry{e2e.Etcd, e2e.HAProxy}

const (
	// awayLimit is how long a deletion may take while Usher is away, and frozenLimit while
	// it does not answer: the webhook's timeout and a second.
	awayLimit, frozenLimit = 2 * time.Second, 4 * time.Second
	// laterLimit is how much later than its drain a Pod's deletion may be accepted: clients
	// come back in whole seconds. The other second is for a busy machine.
	laterLimit = 2 * time.Second
	// refusal is how long Pods are watched whose eviction was refused.
	refusal = 3 * time.Second
)

// onBothNodes spreads Pods over two nodes.
var onBothNodes = fmt.Sprintf(`spec: {template: {spec: {tolerations: [{key: %s, operator: Exists}],
	topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway,
		labelSelector: {matchLabels: {app: web}}}]}}}`, realnode.SecondTaint)

// gated gives Pods the gate through which they leave a plain Service.
const gated = `spec: {template: {spec: {readinessGates: [{conditionType: usher.dev/registered}]}}}`

var guarded = []e2e.Story{
	{
		Name:       "guard-pod",
		About:      "kubectl delete pod, an eviction, and an eviction that a PodDisruptionBudget refuses: then no Pod leaves its registries",
		Registries: both,
		Takes:      30 * time.Second,
		Play: func(s *e2e.Scene) {
			s.Open()
			pods := s.State().Pods
			s.Kubectl("delete", "pod", pods[0].Name)
			s.Settle()
			s.Evict(pods[1].Name)
			awaitGone(s, pods[1].Name)
			s.Settle()
			s.Budget("minAvailable: 3")
			refuse(s, pods[2].Name)
		},
	},
	{
		Name:       "guard-pods",
		About:      "kubectl delete pod of all six Pods of a set at once: each is drained, and replaced",
		Registries: both,
		Takes:      60 * time.Second,
		Play: func(s *e2e.Scene) {
			s.Open(`spec: {replicas: 6}`)
			before := s.State()
			s.Kubectl("delete", "pod", "--selector=app=web")
			wantOthers(s, before, s.Settle())
		},
	},
	{
		Name:       "guard-deployment",
		About:      "a Deployment that knows nothing of Usher is rolled out, loses a Pod to kubectl delete pod, is scaled in, and is deleted",
		Registries: both,
		Ends:       true,
		Takes:      45 * time.Second,
		Play:       func(s *e2e.Scene) { deployment(s, "in etcd and HAProxy") },
	},
	{
		Name:       "guard-service",
		About:      "the same with nothing but a Kubernetes Service, whose EndpointSlices callers follow as gateways do",
		Registries: []e2e.Registry{e2e.Service},
		Ends:       true,
		Takes:      45 * time.Second,
		Play: func(s *e2e.Scene) {
			deployment(s, "in a Service", gated)
		},
	},
	{
		Name:       "guard-kube-proxy",
		About:      "a Deployment in a Service is rolled out, loses a Pod and is scaled in; callers use the Service's address, a new connection each time, and kube-proxy chooses the Pod",
		Registries: []e2e.Registry{e2e.KubeProxy},
		// kube-proxy writes its rules at most once a second, and a request takes up to half of
		// this time.
		Propagation: 3 * time.Second,
		Takes:       45 * time.Second,
		Play: func(s *e2e.Scene) {
			s.OpenWorkload("Deployment", gated, `spec: {replicas: 4}`)
			update(s, "v2")
			s.Kubectl("delete", "pod", s.State().Pods[0].Name)
			s.Settle()
			settleAt(s, 2)
		},
	},
	{
		Name:       "guard-statefulset",
		About:      "a StatefulSet's rolling update, scaled in, and deleted",
		Registries: both,
		Ends:       true,
		Takes:      50 * time.Second,
		Play: func(s *e2e.Scene) {
			s.OpenWorkload("StatefulSet", `spec: {replicas: 3, serviceName: web}`)
			update(s, "v2")
			settleAt(s, 2)
			s.EndService(func() { s.Kubectl("delete", "statefulset", e2e.SetName) })
		},
	},
	{
		Name:       "guard-daemonset",
		About:      "a DaemonSet's rolling update on two nodes, and its deletion",
		Registries: both,
		SecondNode: true,
		Ends:       true,
		Play: func(s *e2e.Scene) {
			s.OpenWorkload("DaemonSet", onBothNodes)
			want(s, len(s.State().Pods) == 2, "a Pod on each of two nodes")
			update(s, "v2")
			s.EndService(func() { s.Kubectl("delete", "daemonset", e2e.SetName) })
		},
	},
	{
		Name:       "guard-owner",
		About:      "a CloneSet is deleted in the background, in the foreground, and with its namespace",
		Registries: both,
		Ends:       true,
		Takes:      50 * time.Second,
		Play: func(s *e2e.Scene) {
			for _, cascade := range []string{"background", "foreground"} {
				s.Open()
				s.EndService(func() { s.Kubectl("delete", "cloneset", e2e.SetName, "--cascade="+cascade) })
			}
			s.Open()
			s.EndService(func() { s.Kubectl("delete", "namespace", s.Namespace()) })
		},
	},
	{
		Name:       "guard-drain",
		About:      "kubectl drain of one node of two, with a CloneSet's Pods and then with a Deployment's, and a PodDisruptionBudget",
		Registries: both,
		SecondNode: true,
		Ends:       true,
		Takes:      80 * time.Second,
		Play: func(s *e2e.Scene) {
			s.Open(`spec: {replicas: 4}`, onBothNodes)
			s.Budget("maxUnavailable: 1")
			drainSecondNode(s)
			s.EndService(func() { s.Kubectl("delete", "cloneset", e2e.SetName) })
			s.OpenWorkload("Deployment", `spec: {replicas: 4}`, onBothNodes)
			drainSecondNode(s)
		},
	},
	{
		Name:       "guard-upgraded",
		About:      "Usher's replicas are replaced while a Deployment is rolled out: one that guards is always there",
		Registries: both,
		Alone:      true,
		Play: func(s *e2e.Scene) {
			s.OpenWorkload("Deployment", `spec: {replicas: 4}`)
			asked := time.Now()
			s.RestartUsher()
			update(s, "v2")
			s.AwaitUsher(asked)
		},
	},
	{
		Name:       "guard-away",
		About:      "kubectl delete pod while Usher does not run, and while it does not answer: nobody waits for it, and requests are lost",
		Registries: both,
		Alone:      true,
		MayLose:    true,
		Play: func(s *e2e.Scene) {
			s.Open()
			pods := s.State().Pods
			asked := time.Now()
			s.StopUsher()
			inTime(s, "that does not run", pods[0].Name, awayLimit)
			s.StartUsher()
			s.AwaitUsher(asked)
			s.Settle()
			s.SignalUsher(syscall.SIGSTOP)
			inTime(s, "that does not answer", pods[1].Name, frozenLimit)
			s.SignalUsher(syscall.SIGCONT)
			s.Settle()
		},
	},
}

// deployment plays the life of a Deployment.
func deployment(s *e2e.Scene, where string, documents ...string) {
	s.OpenWorkload("Deployment", append(documents, `spec: {replicas: 4}`)...)
	update(s, "v2")
	drain, later := s.TimeDelete(s.State().Pods[0].Name)
	s.Found("`kubectl delete pod` of a Pod "+where, stage.Seconds(later),
		fmt.Sprintf("from the end of its drain, which took %s with `propagation: 2s`, until the deletion is accepted", stage.Seconds(drain)))
	want(s, later < laterLimit, "the deletion accepted within %s of the drain, not %s", laterLimit, later)
	s.Settle()
	settleAt(s, 2)
	s.EndService(func() { s.Kubectl("delete", "deployment", e2e.SetName) })
}

// refuse asks for an eviction that the budget refuses, and checks that no Pod leaves.
func refuse(s *e2e.Scene, name string) {
	err := s.TryEvict(name)
	want(s, apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), "disruption budget"), "the budget to refuse, not %v", err)
	s.Hold("no Pod leaves", refusal, func(now e2e.State) string {
		if n := now.Registration.Status.Registered; n != 3 || now.Pod(name).Annotations[usherv1alpha1.AnnotationDeletionRequest] != "" {
			return fmt.Sprintf("%d are registered, and the eviction is asked for: %v", n, now.Pod(name).Annotations)
		}
		return ""
	})
}

// wantOthers ends the story if a Pod is still there.
func wantOthers(s *e2e.Scene, before, after e2e.State) {
	for _, pod := range before.Pods {
		want(s, after.Pod(pod.Name) == nil, "%s to be gone", pod.Name)
	}
}

// drainSecondNode drains the second node, checks that its Pods alone were replaced, and
// makes it schedulable again.
func drainSecondNode(s *e2e.Scene) {
	before := s.State()
	s.Kubectl("drain", realnode.SecondNode, "--ignore-daemonsets", "--pod-selector=app=web")
	after := s.Settle()
	moved := 0
	for _, pod := range before.Pods {
		if pod.Spec.NodeName == realnode.SecondNode {
			moved++
			want(s, after.Pod(pod.Name) == nil, "%s to be gone", pod.Name)
		} else {
			want(s, after.Pod(pod.Name) != nil, "%s of the other node to stay", pod.Name)
		}
	}
	want(s, moved > 0 && moved < len(before.Pods), "Pods on both nodes, not %d of %d on the second", moved, len(before.Pods))
	s.Kubectl("uncordon", realnode.SecondNode)
}

// inTime deletes a Pod while Usher cannot help.
func inTime(s *e2e.Scene, what, name string, limit time.Duration) {
	began := time.Now()
	s.Kubectl("delete", "pod", name, "--wait=false")
	took := time.Since(began)
	s.Found("`kubectl delete pod` with an Usher "+what, stage.Seconds(took), "until the deletion is accepted")
	want(s, took < limit, "the deletion accepted within %s, not %s", limit, took)
}
