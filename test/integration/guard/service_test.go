// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// policies means that the API server puts the readiness gate on Pods, in namespaces that ask
// for it. Before Kubernetes 1.36 templates have to.
var policies bool

// installPolicy creates the policy that the chart makes for the readiness gate.
func installPolicy(ctx context.Context, manifests string) error {
	for _, document := range strings.Split(manifests, "\n---\n") {
		object := &unstructured.Unstructured{}
		if !strings.Contains(document, "\nkind: MutatingAdmissionPolicy") {
			continue
		}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			return err
		}
		err := api.Create(ctx, object)
		if apimeta.IsNoMatchError(err) {
			return nil
		}
		if err != nil {
			return err
		}
		policies = true
	}
	return nil
}

// listed is what callers of Services see the whole time.
var listed = &endpoints{ready: map[types.NamespacedName][]types.UID{}, left: map[types.UID]time.Time{}}

// endpoints are the ready endpoints of Services, as those see them who watch EndpointSlices.
type endpoints struct {
	mu sync.Mutex
	// ready are the Pods that each slice lists as ready; left is when a Pod was last among
	// them and is not any more.
	ready map[types.NamespacedName][]types.UID
	left  map[types.UID]time.Time
}

func (e *endpoints) follow(ctx context.Context, api client.WithWatch) error {
	changes, err := api.Watch(ctx, &discoveryv1.EndpointSliceList{})
	if err != nil {
		return err
	}
	pods, err := api.Watch(ctx, &corev1.PodList{})
	if err != nil {
		return err
	}
	go func() {
		for event := range changes.ResultChan() {
			if slice, ok := event.Object.(*discoveryv1.EndpointSlice); ok {
				e.saw(slice)
			}
		}
	}()
	go func() {
		for event := range pods.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				e.check(pod)
			}
		}
	}()
	return nil
}

func (e *endpoints) saw(slice *discoveryv1.EndpointSlice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var now []types.UID
	for _, endpoint := range slice.Endpoints {
		if endpoint.TargetRef != nil && (endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready) {
			now = append(now, endpoint.TargetRef.UID)
			delete(e.left, endpoint.TargetRef.UID)
		}
	}
	key := client.ObjectKeyFromObject(slice)
	for _, uid := range e.ready[key] {
		if !slices.Contains(now, uid) {
			e.left[uid] = time.Now()
		}
	}
	e.ready[key] = now
}

// check notes a Pod whose containers end while callers may use it: since it is being deleted,
// or updated in place.
func (e *endpoints) check(pod *corev1.Pod) {
	updating := pod.Labels[appsv1alpha1.LabelLifecycleState] == string(appsv1alpha1.StateUpdating)
	if pod.DeletionTimestamp == nil && !updating {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	name := pod.Namespace + "/" + pod.Name
	early := ""
	for _, uids := range e.ready {
		if slices.Contains(uids, pod.UID) {
			early = name + ": its Service lists it"
		}
	}
	// What a watch shows may be a moment old.
	if at, left := e.left[pod.UID]; left && time.Since(at) < propagation-poll {
		early = fmt.Sprintf("%s: callers of its Service have had %s", name, time.Since(at))
	}
	// A deleted Pod is seen again and again.
	delete(e.left, pod.UID)
	if early != "" {
		callers.mu.Lock()
		defer callers.mu.Unlock()
		callers.early = append(callers.early, early)
	}
}

// all are the Pods of a namespace that its Services list as ready, sorted.
func (e *endpoints) all(namespace string) (found []types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for slice, uids := range e.ready {
		if slice.Namespace == namespace {
			found = append(found, uids...)
		}
	}
	return found
}

// beginService is a story whose Registration is one of Service web.
func beginService(t *testing.T) *story {
	t.Helper()
	s := begin(t, func(spec *usherv1alpha1.RegistrationSpec) {
		spec.Registries, spec.Instance = []string{"service"}, usherv1alpha1.Instance{Service: "web"}
	})
	s.merge(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}, `{"metadata":{"labels":{"usher.dev/readiness-gate":"enabled"}}}`)
	s.eventually("the policy knows of the namespace and the Registration", func() string {
		probe := &corev1.Pod{ObjectMeta: meta(s.namespace, "probe"), Spec: gated().Spec}
		s.must(api.Create(t.Context(), probe, client.DryRunAll))
		return map[bool]string{true: "it adds no gate"}[len(probe.Spec.ReadinessGates) == 0]
	})
	return s
}

// service creates Service web.
func (s *story) service() {
	s.Helper()
	s.must(api.Create(s.Context(), &corev1.Service{ObjectMeta: meta(s.namespace, "web"), Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, Selector: labels, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}},
	}}))
}

// gated is a template with the readiness gate, which the API server adds if it can.
func gated() corev1.PodTemplateSpec {
	t := template()
	if !policies {
		t.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: usherv1alpha1.ConditionRegistered}}
	}
	return t
}

// served waits until there are just so many Pods, all with the gate, and the Service lists
// them.
func (s *story) served(n int) {
	s.Helper()
	s.eventually(fmt.Sprintf("%d Pods in the Service", n), func() string {
		ready, pods := listed.all(s.namespace), s.pods()
		for i := range pods {
			ours := corev1.PodReadinessGate{ConditionType: usherv1alpha1.ConditionRegistered}
			if gates := pods[i].Spec.ReadinessGates; !slices.Contains(gates, ours) {
				s.Fatalf("Pod %s has the gates %v", pods[i].Name, gates)
			}
			if !slices.Contains(ready, pods[i].UID) || pods[i].DeletionTimestamp != nil {
				return pods[i].Name + " is not in the Service"
			}
		}
		if len(pods) != n || len(ready) != n {
			return fmt.Sprintf("there are %d Pods, %d listed", len(pods), len(ready))
		}
		return ""
	})
}

// TestServiceDeployment: a Deployment with a Service and no preStop sleep is rolled out, scaled
// in and deleted. No Pod is deleted while callers may use it.
func TestServiceDeployment(t *testing.T) {
	s := beginService(t)
	s.service()
	d := &appsv1.Deployment{ObjectMeta: meta(s.namespace, "web"), Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(6)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: gated(),
	}}
	s.must(api.Create(t.Context(), d))
	s.served(6)
	s.merge(d, `{"spec":{"template":{"metadata":{"labels":{"version":"2"}}}}}`)
	s.replaced()
	s.served(6)
	s.merge(d, `{"spec":{"replicas":3}}`)
	s.served(3)
	s.must(api.Delete(t.Context(), d, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	s.served(0)
}

// TestServiceStatefulSet: a StatefulSet replaces its Pods in order. Its controller does nothing
// while a Pod is not Ready, so it waits for the drain in its request.
func TestServiceStatefulSet(t *testing.T) {
	s := beginService(t)
	s.service()
	set := &appsv1.StatefulSet{ObjectMeta: meta(s.namespace, "web"), Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(2)), ServiceName: "web", Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: gated(),
	}}
	s.must(api.Create(t.Context(), set))
	s.served(2)
	s.merge(set, `{"spec":{"template":{"metadata":{"labels":{"version":"2"}}}}}`)
	s.replaced()
	s.served(2)
	s.merge(set, `{"spec":{"replicas":1}}`)
	s.served(1)
}

// replaced waits until every Pod is of the second version.
func (s *story) replaced() {
	s.Helper()
	s.eventually("the rollout ends", func() string {
		for _, pod := range s.pods() {
			if pod.Labels["version"] != "2" {
				return pod.Name + " is old"
			}
		}
		return ""
	})
}

// TestServiceTakenBack: a Pod whose eviction does not come back is in the Service again.
func TestServiceTakenBack(t *testing.T) {
	s := beginService(t)
	s.service()
	pod := &corev1.Pod{ObjectMeta: meta(s.namespace, "web"), Spec: gated().Spec}
	s.must(api.Create(t.Context(), pod))
	s.served(1)
	if err := s.evict(pod); err == nil {
		t.Fatal("evicted without a drain")
	}
	s.eventually("it is drained", func() string {
		if p := s.get("web"); len(p.Finalizers) > 0 || len(listed.all(s.namespace)) > 0 {
			return "it is held, or listed"
		}
		return ""
	})
	s.age("web")
	s.served(1)
	s.must(api.Delete(t.Context(), s.get("web")))
	s.served(0)
}

// TestServiceMissing: the Registration says what is wrong with its Service; Pods do not wait
// for it, and drains do.
func TestServiceMissing(t *testing.T) {
	s := beginService(t)
	pod := &corev1.Pod{ObjectMeta: meta(s.namespace, "web"), Spec: gated().Spec}
	s.must(api.Create(t.Context(), pod))
	s.says("Ready", "there is no Service web")
	s.eventually("the Pod is Ready", func() string {
		for _, c := range s.get("web").Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return ""
			}
		}
		return "not yet"
	})
	if err := s.evict(pod); err == nil {
		t.Fatal("evicted without a drain")
	}
	s.says("Waiting", "there is no Service web")
	s.service()
	s.must(api.Delete(t.Context(), pod))
	s.served(0)
}

// says waits for the message of a condition of the Registration.
func (s *story) says(condition, text string) {
	s.Helper()
	s.eventually("condition "+condition, func() string {
		var r usherv1alpha1.Registration
		s.must(api.Get(s.Context(), types.NamespacedName{Namespace: s.namespace, Name: "web"}, &r))
		c := apimeta.FindStatusCondition(r.Status.Conditions, condition)
		if c == nil || !strings.Contains(c.Message, text) {
			return fmt.Sprintf("is %+v", c)
		}
		return ""
	})
}

// TestServiceWithoutGate: a Pod without the gate keeps working, says what to add, and its
// deletion waits for nobody. When the Registration goes, those with the gate keep working too.
func TestServiceWithoutGate(t *testing.T) {
	s := beginService(t)
	s.service()
	with := &corev1.Pod{ObjectMeta: meta(s.namespace, "with"), Spec: gated().Spec}
	s.must(api.Create(t.Context(), with))
	s.served(1)
	s.merge(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}, `{"metadata":{"labels":{"usher.dev/readiness-gate":"disabled"}}}`)
	without := &corev1.Pod{ObjectMeta: meta(s.namespace, "without"), Spec: podSpec}
	s.eventually("a Pod without the gate", func() string {
		without.ResourceVersion, without.Spec = "", podSpec
		s.must(api.Create(t.Context(), without))
		if len(without.Spec.ReadinessGates) == 0 {
			return ""
		}
		s.must(client.IgnoreNotFound(api.Delete(t.Context(), without, client.GracePeriodSeconds(0))))
		return "the policy's binding still has the namespace"
	})
	s.says("Waiting", "add spec.readinessGates: [{conditionType: usher.dev/registered}] to its Pod template")
	s.eventually("both are listed", func() string {
		return map[bool]string{false: "not yet"}[len(listed.all(s.namespace)) == 2]
	})
	s.must(api.Delete(t.Context(), &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "web"}}))
	s.eventually("the Registration is gone", func() string {
		if p := s.get("with"); len(p.Finalizers) > 0 {
			return "the Pod is held"
		}
		err := api.Get(t.Context(), types.NamespacedName{Namespace: s.namespace, Name: "web"}, &usherv1alpha1.Registration{})
		return map[bool]string{false: "not yet"}[client.IgnoreNotFound(err) == nil && err != nil]
	})
	if ready := listed.all(s.namespace); len(ready) != 2 {
		t.Errorf("%d of 2 Pods are in the Service", len(ready))
	}
	s.must(api.Delete(t.Context(), without))
	callers.forget(s.namespace)
}

const updatedCloneSet = `
metadata: {namespace: %s, name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  updateStrategy: {type: InPlaceIfPossible}
  lifecycle:
    inPlaceUpdate: {labelsHandler: {web.usher.dev/serving: "true"}}
    preDelete: {labelsHandler: {web.usher.dev/serving: "true"}}
  template:
    metadata: {labels: {app: web, web.usher.dev/serving: "true"}}
    spec: {%s containers: [{name: web, image: "example.test/web:v1"}]}
`

// TestServiceCloneSet: Pods are updated in place, and a set is scaled in, out of the Service.
func TestServiceCloneSet(t *testing.T) {
	s := beginService(t)
	s.service()
	set := &appsv1alpha1.CloneSet{}
	gates := map[bool]string{false: "readinessGates: [{conditionType: usher.dev/registered}],"}[policies]
	s.must(yaml.UnmarshalStrict([]byte(fmt.Sprintf(updatedCloneSet, s.namespace, gates)), set))
	s.must(api.Create(t.Context(), set))
	s.served(3)
	before := listed.all(s.namespace)
	s.merge(set, `{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"example.test/web:v2"}]}}}}`)
	s.eventually("the update ends", func() string {
		for _, pod := range s.pods() {
			if pod.Spec.Containers[0].Image != "example.test/web:v2" || pod.Labels[appsv1alpha1.LabelLifecycleState] != "Normal" {
				return pod.Name + " is not updated"
			}
		}
		return ""
	})
	s.served(3)
	for _, uid := range listed.all(s.namespace) {
		if !slices.Contains(before, uid) {
			t.Error("a Pod was created anew")
		}
	}
	s.merge(set, `{"spec":{"replicas":1}}`)
	s.served(1)
}
