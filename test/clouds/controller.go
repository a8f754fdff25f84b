// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// LabelRule is the label of a Service that has a load balancer; its value names the Rule, up to a dot, and the Balancer.
const LabelRule = "example.com/load-balancer"

// checkAgain is how soon the controller looks again whether a target has become healthy.
const checkAgain = 100 * time.Millisecond

// Target is a target of a load balancer.
type Target struct {
	Address string
	Port    int32
}

// State is what a load balancer has of a target.
type State struct {
	// Healthy targets get requests.
	Healthy bool
	// Leaves means that it was deregistered, and that its drain is not over.
	Leaves bool
}

// Balancer is what a controller writes to.
type Balancer interface {
	// Announce makes what has the targets of a Service, and notes in the cluster what that is.
	Announce(ctx context.Context, service types.NamespacedName) error
	// Targets are those of a Service.
	Targets(ctx context.Context, service types.NamespacedName) (map[Target]State, error)
	// Register and Deregister change them.
	Register(ctx context.Context, service types.NamespacedName, t Target) error
	Deregister(ctx context.Context, service types.NamespacedName, t Target) error
}

// Controller follows the Services that have LabelRule. It learns of changes by Services and their slices alone, as the
// clouds' controllers do.
type Controller struct {
	// Balancers are what it writes to, by the values of LabelRule.
	Balancers map[string]Balancer
	// Lag is how long the controller and the cloud's API take for a change. Meanwhile, others wait.
	Lag time.Duration
	// Look sees each Pod of a slice before the controller acts on it; optional.
	Look func(pod *corev1.Pod)

	client client.Client
	// reader reads from the API server, so that Pods are not older than slices.
	reader client.Reader

	mu sync.Mutex
	// turned are the statuses that the controller has given its readiness gates, by the UIDs of Pods.
	turned map[types.UID][]string
}

// SetUp adds the controller to a manager.
func (c *Controller) SetUp(mgr ctrl.Manager) error {
	c.client, c.reader = mgr.GetClient(), mgr.GetAPIReader()
	bySlice := func(_ context.Context, slice client.Object) []reconcile.Request {
		name := types.NamespacedName{Namespace: slice.GetNamespace(), Name: slice.GetLabels()[discoveryv1.LabelServiceName]}
		return []reconcile.Request{{NamespacedName: name}}
	}
	return ctrl.NewControllerManagedBy(mgr).Named("clouds").For(&corev1.Service{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(bySlice)).Complete(c)
}

// Reconcile implements reconcile.Reconciler.
func (c *Controller) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	service := &corev1.Service{}
	if err := c.client.Get(ctx, request.NamespacedName, service); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	name := service.Labels[LabelRule]
	ruleName, _, _ := strings.Cut(name, ".")
	rule, balancer := Rules[ruleName], c.Balancers[name]
	if balancer == nil {
		return ctrl.Result{}, nil
	}
	if err := balancer.Announce(ctx, request.NamespacedName); err != nil {
		return ctrl.Result{}, err
	}
	wanted, err := c.wanted(ctx, service, rule)
	if err != nil {
		return ctrl.Result{}, err
	}
	select {
	case <-ctx.Done():
		return ctrl.Result{}, ctx.Err()
	case <-time.After(c.Lag):
	}
	return c.carryOut(ctx, balancer, request.NamespacedName, rule, wanted)
}

// carryOut registers and deregisters what differs, and turns the controller's own gates.
func (c *Controller) carryOut(
	ctx context.Context, b Balancer, service types.NamespacedName, rule Rule, wanted map[Target]*corev1.Pod,
) (result ctrl.Result, err error) {
	targets, err := b.Targets(ctx, service)
	if err != nil {
		return result, err
	}
	if err := deregister(ctx, b, service, targets, wanted); err != nil {
		return result, err
	}
	for target, pod := range wanted {
		state, there := targets[target]
		if !there || state.Leaves {
			err = b.Register(ctx, service, target)
		}
		healthy := state.Healthy && !state.Leaves
		if !healthy {
			result.RequeueAfter = checkAgain
		}
		if err := errors.Join(err, c.turnGate(ctx, pod, rule.Gate, healthy)); err != nil {
			return ctrl.Result{}, err
		}
	}
	return result, nil
}

// deregister takes out the targets that are not wanted.
func deregister(
	ctx context.Context, b Balancer, service types.NamespacedName, targets map[Target]State, wanted map[Target]*corev1.Pod,
) error {
	for target, state := range targets {
		if wanted[target] != nil || state.Leaves {
			continue
		}
		if err := b.Deregister(ctx, service, target); err != nil {
			return err
		}
	}
	return nil
}

// wanted are the Pods that are to be targets.
func (c *Controller) wanted(ctx context.Context, service *corev1.Service, rule Rule) (map[Target]*corev1.Pod, error) {
	var found discoveryv1.EndpointSliceList
	of := client.MatchingLabels{discoveryv1.LabelServiceName: service.Name}
	if err := c.client.List(ctx, &found, client.InNamespace(service.Namespace), of); err != nil {
		return nil, err
	}
	wanted := map[Target]*corev1.Pod{}
	for i := range found.Items {
		slice := &found.Items[i]
		for j := range slice.Endpoints {
			endpoint := &slice.Endpoints[j]
			pod, err := c.podOf(ctx, service.Namespace, endpoint)
			if err != nil {
				return nil, err
			}
			if pod == nil || len(slice.Ports) == 0 || slice.Ports[0].Port == nil || !rule.Has(endpoint, pod, true) {
				continue // the nodes of the tests are ready
			}
			wanted[Target{endpoint.Addresses[0], *slice.Ports[0].Port}] = pod
		}
	}
	return wanted, nil
}

// podOf is the Pod of an endpoint, nil if it has none.
func (c *Controller) podOf(ctx context.Context, namespace string, e *discoveryv1.Endpoint) (*corev1.Pod, error) {
	if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
		return nil, nil
	}
	pod := &corev1.Pod{}
	err := c.reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: e.TargetRef.Name}, pod)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if c.Look != nil {
		c.Look(pod)
	}
	return pod, nil
}

// turnGate writes the Pod's condition for the controller's own readiness gate, if the Pod has that.
func (c *Controller) turnGate(ctx context.Context, pod *corev1.Pod, prefix string, healthy bool) error {
	for _, gate := range pod.Spec.ReadinessGates {
		if prefix == "" || !strings.HasPrefix(string(gate.ConditionType), prefix) {
			continue
		}
		status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[healthy]
		if has(pod, gate.ConditionType, status) {
			return nil
		}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
			"type": gate.ConditionType, "status": status}}}})
		if err != nil {
			return err
		}
		if err := c.client.Status().Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
			return client.IgnoreNotFound(err)
		}
		c.note(pod.UID, string(status))
	}
	return nil
}

// note keeps a status that a gate got.
func (c *Controller) note(pod types.UID, status string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turned == nil {
		c.turned = map[types.UID][]string{}
	}
	c.turned[pod] = append(c.turned[pod], status)
}

// Turned are the statuses that the controller has given its readiness gate of a Pod, the oldest first.
func (c *Controller) Turned(pod types.UID) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.turned[pod])
}

func has(pod *corev1.Pod, kind corev1.PodConditionType, status corev1.ConditionStatus) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c.Status == status
		}
	}
	return false
}
