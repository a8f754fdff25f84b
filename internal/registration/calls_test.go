// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/elb"
	registryservice "github.com/usher-dev/usher/internal/registration/registry/service"
)

// rollout is a Deployment behind a load balancer that is rolled out in waves, with passes all the time.
type rollout struct {
	testing.TB
	*Reconciler
	clock *clocktesting.FakePassiveClock
	api   client.WithWatch
	elb   *elb.Server
	// calls counts lists of the target group, each of which is one DescribeTargetHealth (awstargetgroup: TestFewCalls).
	calls int
}

const groupName = "web"

// List implements registry.Lister.
func (r *rollout) List(context.Context, string) ([]registry.Entry, error) {
	r.calls++
	return list.Map(r.elb.Targets(elb.ARN(groupName)), func(t elb.Target) registry.Entry {
		e := registry.Entry{ID: t.Address, Address: t.Address, Port: t.Port, Weight: 1, NoMetadata: true, Version: t.State}
		switch t.State {
		case elb.Initial:
			e.Unsettled = t.State
		case elb.Draining:
			e.Weight, e.Unsettled = 0, t.State
		}
		return e
	}), nil
}

// Ping implements registry.Lister.
func (r *rollout) Ping(context.Context) error { return nil }

// Close implements registry.Lister.
func (r *rollout) Close() error { return nil }

func newRollout(t testing.TB) *rollout {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, policyv1.AddToScheme, discoveryv1.AddToScheme, usherv1alpha1.AddToScheme, appsv1alpha1.AddToScheme,
	} {
		checktest.NoError(t, add(scheme))
	}
	r := &rollout{TB: t, clock: clocktesting.NewFakePassiveClock(epoch), elb: elb.New(
		elb.Times{Registration: time.Second, Checks: 4 * time.Second, Delay: 10 * time.Second}, elb.ARN(groupName))}
	t.Cleanup(r.elb.Close)
	label := &usherv1alpha1.ServiceLabel{Key: usherv1alpha1.LabelInService, Value: "true"}
	labels := &usherv1alpha1.Registry{Spec: usherv1alpha1.RegistrySpec{Service: &usherv1alpha1.ServiceRegistry{Label: label}}}
	balancer := &usherv1alpha1.Registry{Spec: usherv1alpha1.RegistrySpec{AWSTargetGroup: &usherv1alpha1.AWSTargetGroupRegistry{}}}
	web := &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", UID: "web", Generation: 1}}
	web.Finalizers = []string{usherv1alpha1.Finalizer}
	web.Spec.Selector.MatchLabels = map[string]usherv1alpha1.LabelValue{"app": "web"}
	web.Spec.Registries, web.Spec.Instance.Service = []string{"labels", "balancer"}, "web"
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	service.Spec.Selector = map[string]string{"app": "web", usherv1alpha1.LabelInService: "true"}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", Labels: map[string]string{
		discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}}}
	for name, object := range map[string]*usherv1alpha1.Registry{"labels": labels, "balancer": balancer} {
		object.Name, object.UID, object.Finalizers = name, types.UID(name), []string{usherv1alpha1.Finalizer}
		object.Status.Users = []usherv1alpha1.RegistryUser{{Namespace: namespace, Registration: "web", Service: "web"}}
		web.Status.Targets = append(web.Status.Targets, usherv1alpha1.Target{Registry: name, Prefix: namespace, Service: "web"})
	}
	r.api = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&usherv1alpha1.Registry{}, &usherv1alpha1.Registration{}).
		WithObjects(namespaceNamed(clusterNamespace), namespaceNamed(namespace), labels, balancer, web, service, slice).Build()
	writer := interceptor.NewClient(r.api, interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			pod, ok := object.(*corev1.Pod)
			if !ok {
				return c.SubResource(sub).Patch(ctx, object, patch, options...)
			}
			// The fake's subresource takes no metadata, and its objects no status.
			if err := c.Patch(ctx, pod, patch); err != nil {
				return err
			}
			status, err := withoutMetadata(patch, pod)
			if err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, pod, status, options...)
		},
	})
	operator, err := New(writer, r.api, events.NewFakeRecorder(10000), Options{
		Registerer: prometheus.NewRegistry(), Clock: r.clock, Workers: 1,
		Connect: func(object *usherv1alpha1.Registry, root string, _ map[string][]byte) (registry.Connector, error) {
			if object.Spec.Service != nil {
				return registryservice.New(r.api, root), nil
			}
			return registry.Follower(r), nil
		},
	})
	checktest.NoError(t, err)
	r.Reconciler = operator
	return r
}

// withoutMetadata is a patch without its metadata.
func withoutMetadata(patch client.Patch, pod *corev1.Pod) (client.Patch, error) {
	data, err := patch.Data(pod)
	if err != nil {
		return nil, err
	}
	fields := map[string]any{}
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	delete(fields, "metadata")
	return client.RawPatch(patch.Type(), encode.JSON(fields)), nil
}

// pods are all Pods.
func (r *rollout) pods() []corev1.Pod {
	r.Helper()
	var all corev1.PodList
	checktest.NoError(r, r.api.List(r.Context(), &all, client.InNamespace(namespace)))
	return all.Items
}

// create creates a Pod that is ready.
func (r *rollout) create(n int) {
	address := fmt.Sprintf("10.0.%d.%d", n/250, n%250+1)
	pod := podOf(fmt.Sprintf("web-%d", n), "web", "")
	pod.Finalizers, pod.Annotations = nil, nil
	delete(pod.Labels, usherv1alpha1.LabelGuarded)
	pod.Labels[usherv1alpha1.LabelInService] = "true"
	pod.Spec.NodeName = "node-1"
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}, Conditions: []corev1.PodCondition{
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	checktest.NoError(r, r.api.Create(r.Context(), pod))
}

// step lets a second pass: whoever follows the Service follows, those who delete Pods ask again, and there is a pass.
func (r *rollout) step() {
	const span = time.Second
	r.clock.SetTime(r.clock.Now().Add(span))
	r.elb.Pass(span)
	slice := &discoveryv1.EndpointSlice{}
	checktest.NoError(r, r.api.Get(r.Context(), types.NamespacedName{Namespace: namespace, Name: "web"}, slice))
	slice.Endpoints = nil
	targets := map[string]string{}
	for _, t := range r.elb.Targets(elb.ARN(groupName)) {
		targets[t.Address] = t.State
	}
	for _, pod := range r.pods() {
		address := pod.Status.PodIP
		in := pod.Labels[usherv1alpha1.LabelInService] == "true"
		if in {
			ref := &corev1.ObjectReference{Kind: "Pod", Name: pod.Name, Namespace: namespace, UID: pod.UID}
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, TargetRef: ref,
				Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
		}
		switch {
		case in && targets[address] == "":
			r.elb.Register(elb.ARN(groupName), address, 80)
		case !in && targets[address] != "":
			r.elb.Deregister(elb.ARN(groupName), address)
		}
	}
	checktest.NoError(r, r.api.Update(r.Context(), slice))
	_, err := r.Reconcile(r.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}})
	checktest.NoError(r, err)
}

// deletes asks for the deletion of Pods, as the guard notes it. Those that have drained go. It reports whether all have.
func (r *rollout) deletes(names map[string]bool) (gone bool) {
	left := 0
	for _, pod := range r.pods() {
		if !names[pod.Name] {
			continue
		}
		left++
		request, err := usherv1alpha1.DeletionRequestOf(&pod)
		checktest.NoError(r, err)
		switch {
		case request == nil:
			now := metav1.NewMicroTime(r.clock.Now())
			text := encode.JSON(usherv1alpha1.DeletionRequest{Since: now, At: now, By: "somebody", Controller: true})
			pod.Annotations[usherv1alpha1.AnnotationDeletionRequest] = string(text)
			checktest.NoError(r, r.api.Update(r.Context(), &pod))
		case request.Drained != nil:
			checktest.NoError(r, r.api.Delete(r.Context(), &pod))
		}
	}
	return left == 0
}

// until takes steps until something holds.
func (r *rollout) until(what string, holds func() bool) {
	r.Helper()
	for range 300 {
		if r.step(); holds() {
			return
		}
	}
	web := &usherv1alpha1.Registration{}
	checktest.NoError(r, r.api.Get(r.Context(), types.NamespacedName{Namespace: namespace, Name: "web"}, web))
	r.Fatalf("%s: not within 300 s: %s\n%s", what, encode.JSON(web.Status), encode.JSON(r.pods()[0]))
}

// registered reports whether all Pods are.
func (r *rollout) registered() bool {
	return len(list.Only(r.pods(), func(pod corev1.Pod) bool {
		for _, c := range pod.Status.Conditions {
			if c.Type == usherv1alpha1.ConditionRegistered {
				return c.Status != corev1.ConditionTrue
			}
		}
		return true
	})) == 0
}

// roll replaces so many Pods in two waves, and returns how often the target group was listed, and how long it took.
func (r *rollout) roll(pods int) (calls int, took time.Duration) {
	for n := range pods {
		r.create(n)
	}
	r.until("the first Pods", r.registered)
	began, before := r.clock.Now(), r.calls
	wave := pods / 2
	for first := 0; first < pods; first += wave {
		for n := range wave {
			r.create(pods + first + n)
		}
		r.until("new Pods", r.registered)
		left := map[string]bool{}
		for n := range wave {
			left[fmt.Sprintf("web-%d", first+n)] = true
		}
		r.until("the end of old Pods", func() bool { return r.deletes(left) })
	}
	return r.calls - before, r.clock.Now().Sub(began)
}

// crowd is how many Pods the large rollout has. With 200, the race detector needs minutes.
var crowd = flag.Int("crowd", 40, "`Pods` of the large rollout in TestCallsOfARollout")

// TestCallsOfARollout: a rollout asks for the targets every two seconds at most, however many Pods there are, and however
// often there are passes.
func TestCallsOfARollout(t *testing.T) {
	calls := map[int]int{}
	for _, pods := range []int{8, *crowd} {
		n, took := newRollout(t).roll(pods)
		t.Logf("%d Pods: %d calls of DescribeTargetHealth in %s", pods, n, took)
		if most := int(took/(2*time.Second)) + 1; n > most || n < 8 {
			t.Errorf("%d Pods: %d calls in %s, want %d at most", pods, n, took, most)
		}
		calls[pods] = n
	}
	if calls[*crowd] > calls[8]+calls[8]/4 {
		t.Errorf("%d calls for %d Pods, %d for 8: they grow with the Pods", calls[*crowd], *crowd, calls[8])
	}
}
