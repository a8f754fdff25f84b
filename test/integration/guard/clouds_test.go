// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/elb"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/neg"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/clouds"
)

// cloud has a load balancer, and a controller that follows Services by the rule that their label names.
var cloud struct {
	aws        *elb.Server
	gcp        *neg.Server
	balancers  map[string]clouds.Balancer
	controller *clouds.Controller
}

// times are those of the load balancer: short, and each long enough to be seen.
var times = elb.Times{Registration: 100 * time.Millisecond, Checks: 200 * time.Millisecond, Delay: time.Second}

// startCloud starts the load balancer and its controller.
func startCloud(ctx context.Context) error {
	if err := clouds.InstallCRDs(plane.RESTConfig()); err != nil {
		return err
	}
	cloud.aws, cloud.gcp = elb.Start(times), neg.Start(neg.Times{Attach: times.Registration, Checks: times.Checks, Drain: times.Delay})
	context.AfterFunc(ctx, func() { cloud.aws.Close(); cloud.gcp.Close() })
	aws := clouds.ELB{Server: cloud.aws, Client: plane}
	cloud.balancers = map[string]clouds.Balancer{"aws": aws, "gke": clouds.NEG{Server: cloud.gcp, Client: plane}, "ccm": aws}
	cloud.controller = &clouds.Controller{Balancers: cloud.balancers, Look: callers.lookAt}
	_, err := plane.Manage(ctx, plane.RESTConfig(), ctrl.Options{}, func(_ context.Context, mgr ctrl.Manager) error {
		return cloud.controller.SetUp(mgr)
	})
	return err
}

// targetsIn are the targets of a namespace's Service, in all clouds.
func targetsIn(ctx context.Context, namespace string) (map[clouds.Target]clouds.State, error) {
	all := map[clouds.Target]clouds.State{}
	for _, balancer := range cloud.balancers {
		targets, err := balancer.Targets(ctx, types.NamespacedName{Namespace: namespace, Name: "web"})
		if err != nil {
			return nil, err
		}
		maps.Copy(all, targets)
	}
	return all, nil
}

// lookAt looks at a Pod before the controller deregisters it.
func (w *witness) lookAt(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sawTarget(context.Background(), pod)
}

// sawTarget notes a Pod whose containers end, or are replaced, while the load balancer has its address, even if it
// drains.
func (w *witness) sawTarget(ctx context.Context, pod *corev1.Pod) {
	if pod.DeletionTimestamp == nil && !updating(pod) || pod.Status.PodIP == "" {
		return
	}
	targets, err := targetsIn(ctx, pod.Namespace)
	if err != nil && ctx.Err() == nil {
		panic(err) // it is in memory
	}
	for target, state := range targets {
		if target.Address != pod.Status.PodIP {
			continue
		}
		if w.inUse[pod.Namespace] == nil {
			w.inUse[pod.Namespace] = map[types.UID]string{}
		}
		w.inUse[pod.Namespace][pod.UID] = fmt.Sprintf("%s: %+v", pod.Name, state)
	}
}

// endedInUse are the Pods of a namespace that ended in use.
func (w *witness) endedInUse(namespace string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Values(w.inUse[namespace]))
}

// targets waits until the load balancer has that many targets, which are the Pods, and the guard holds them: a Pod that
// carries the Service's label from its birth can be a target a moment before that.
func (s *story) targets(count string) {
	n := scenariotest.Number(count)
	s.Until(count+" targets", func() string {
		targets, pods := checktest.Must(targetsIn(s.Context(), s.Namespace))(s), s.Pods()
		addresses := map[string]bool{}
		for target, state := range targets {
			addresses[target.Address] = state.Healthy
		}
		for _, pod := range pods {
			if !addresses[pod.Status.PodIP] {
				return pod.Name + " is no healthy target"
			}
			if !controllerutil.ContainsFinalizer(&pod, usherv1alpha1.Finalizer) {
				return pod.Name + " has no finalizer"
			}
		}
		return registrytest.Unless(len(pods) == n && len(targets) == n, fmt.Sprintf("there are %d Pods and the targets %v", len(pods), targets))
	})
}

// endedInUse checks how many Pods ended in use, and forgets them.
func (s *story) endedInUse(count string) {
	used := callers.endedInUse(s.Namespace)
	s.Same(fmt.Sprintf("Pods that ended in use, %q", used), len(used), count)
	callers.mu.Lock()
	defer callers.mu.Unlock()
	delete(callers.inUse, s.Namespace)
}

// cloudGates waits until the controller has turned its gate of each Pod in this order.
func (s *story) cloudGates(want string) {
	s.Until("the gates of the cloud's controller", func() string {
		for _, pod := range s.Pods() {
			if turned := strings.Join(cloud.controller.Turned(pod.UID), " "); turned != want {
				return fmt.Sprintf("that of %s was %q, want %q", pod.Name, turned, want)
			}
		}
		return ""
	})
}

// clock stops the load balancer's clock until the end of the story, or has it run.
func (s *story) clock(how string) {
	cloud.aws.Run(how == "runs")
	s.Cleanup(func() { cloud.aws.Run(true) })
}
