// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// story is a namespace with a Registration of the Pods with app=web.
type story struct {
	*testing.T
	namespace string
}

func begin(t *testing.T, change ...func(*usherv1alpha1.RegistrationSpec)) *story {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "guard-"}}
	s := &story{T: t}
	s.must(api.Create(t.Context(), namespace))
	s.namespace = namespace.Name
	registration := &usherv1alpha1.Registration{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "web"},
		Spec: usherv1alpha1.RegistrationSpec{
			Selector: metav1.LabelSelector{MatchLabels: labels}, Registries: []string{"memory"},
			Instance: usherv1alpha1.Instance{Service: s.namespace, Port: intstr.FromInt32(80)},
			Drain:    usherv1alpha1.Drain{Propagation: &metav1.Duration{Duration: propagation}},
		},
	}
	for _, do := range change {
		do(&registration.Spec)
	}
	s.must(api.Create(t.Context(), registration))
	t.Cleanup(func() {
		if early := callers.tooEarly(s.namespace); len(early) > 0 {
			t.Errorf("deleted while callers could use them:\n%s", strings.Join(early, "\n"))
		}
	})
	return s
}

// replicaSetWorkers is the controller manager's --concurrent-replicaset-syncs.
const replicaSetWorkers = 5

var labels = map[string]string{"app": "web"}

func (s *story) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}
}

var podSpec = corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "example.test/web:v1"}}}

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec}
}

// eventually waits until check returns "".
func (s *story) eventually(what string, check func() string) {
	s.Helper()
	registrytest.Eventually(s.T, what, check)
}

func (s *story) pods() []corev1.Pod {
	s.Helper()
	var list corev1.PodList
	s.must(api.List(s.Context(), &list, client.InNamespace(s.namespace)))
	return list.Items
}

// inService waits until there are just so many Pods, and the registry lists them.
func (s *story) inService(n int) {
	s.Helper()
	s.eventually(fmt.Sprintf("%d Pods in service", n), func() string {
		listed := map[string]bool{}
		for _, e := range callers.registry.Entries(s.namespace) {
			listed[e.Owner.PodUID] = true
		}
		pods := s.pods()
		for _, pod := range pods {
			if !listed[string(pod.UID)] || pod.DeletionTimestamp != nil {
				return pod.Name + " is not in service"
			}
		}
		if len(pods) != n || len(listed) != n {
			return fmt.Sprintf("there are %d Pods, %d listed", len(pods), len(listed))
		}
		return ""
	})
}

func (s *story) deployment(replicas int32, gates ...corev1.PodReadinessGate) *appsv1.Deployment {
	s.Helper()
	d := &appsv1.Deployment{ObjectMeta: meta(s.namespace, "web"), Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(),
	}}
	d.Spec.Template.Spec.ReadinessGates = gates
	s.must(api.Create(s.Context(), d))
	s.inService(int(replicas))
	return d
}

// merge changes an object as kubectl patch does.
func (s *story) merge(object client.Object, body string) {
	s.Helper()
	s.must(api.Patch(s.Context(), object, client.RawPatch(types.MergePatchType, []byte(body))))
}

func (s *story) get(name string) *corev1.Pod {
	s.Helper()
	pod := &corev1.Pod{}
	s.must(api.Get(s.Context(), types.NamespacedName{Namespace: s.namespace, Name: name}, pod))
	return pod
}

// event waits for an event about a Pod.
func (s *story) event(reason, text string) {
	s.Helper()
	s.eventually("event "+reason, func() string {
		var list corev1.EventList
		s.must(api.List(s.Context(), &list, client.InNamespace(s.namespace)))
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return ""
			}
		}
		return "none"
	})
}

// TestDelete: a client that knows nothing of Usher deletes a Pod, waits as long as the
// drain, and succeeds.
func TestDelete(t *testing.T) {
	s := begin(t)
	pod := &corev1.Pod{ObjectMeta: meta(s.namespace, "web"), Spec: podSpec}
	s.must(api.Create(t.Context(), pod))
	s.inService(1)
	s.must(api.Delete(t.Context(), pod))
	s.inService(0)
	s.event("DeletionRequested", "asks to delete the Pod")
}

// TestDeleteCollection: all at once, each with a drain of its own.
func TestDeleteCollection(t *testing.T) {
	s := begin(t)
	for i := range 3 {
		s.must(api.Create(t.Context(), &corev1.Pod{ObjectMeta: meta(s.namespace, fmt.Sprintf("web-%d", i)), Spec: podSpec}))
	}
	s.inService(3)
	s.must(api.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(s.namespace), client.MatchingLabels(labels)))
	s.inService(0)
}

// TestScaleIn: of twenty Pods the ten that the ReplicaSet chose first leave, and no other.
func TestScaleIn(t *testing.T) {
	s := begin(t)
	d := s.deployment(20)
	s.merge(d, `{"spec":{"replicas":10}}`)
	s.inService(10)
	if left := callers.leavers(s.namespace); len(left) != 10 {
		t.Errorf("%d Pods have left the registry: %v", len(left), left)
	}
}

// TestRollout: a Deployment replaces its Pods, and each leaves its registry first.
func TestRollout(t *testing.T) {
	s := begin(t)
	d := s.deployment(4)
	s.merge(d, `{"spec":{"template":{"metadata":{"labels":{"version":"2"}}}}}`)
	s.eventually("the rollout ends", func() string {
		for _, pod := range s.pods() {
			if pod.Labels["version"] != "2" {
				return pod.Name + " is old"
			}
		}
		return ""
	})
	s.inService(4)
}

// TestOthersGoOn: while all workers of the ReplicaSet controller have a Pod to delete that
// cannot be drained, other Deployments get their Pods.
func TestOthersGoOn(t *testing.T) {
	var held []*story
	for range replicaSetWorkers {
		s := begin(t)
		s.deployment(2)
		held = append(held, s)
	}
	callers.registry.Break(memory.Down)
	defer callers.registry.Break(memory.None)
	for _, s := range held {
		s.merge(&appsv1.Deployment{ObjectMeta: meta(s.namespace, "web")}, `{"spec":{"replicas":1}}`)
	}
	for _, s := range held {
		s.event("DeletionRequested", "replicaset-controller")
	}
	other := &story{T: t, namespace: held[0].namespace}
	replicas := int32(1)
	began := time.Now()
	other.must(api.Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: other.namespace, Name: "other"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "other"}}, Spec: podSpec},
	}}))
	other.eventually("the other Deployment has its Pod", func() string {
		for _, pod := range other.pods() {
			if pod.Labels["app"] == "other" {
				return ""
			}
		}
		return fmt.Sprintf("not after %s", time.Since(began))
	})
	t.Logf("another Deployment had its Pod after %s", time.Since(began))
}

// TestCascade: the owner goes in the background, in the foreground, or with its namespace.
func TestCascade(t *testing.T) {
	for name, remove := range map[string]func(*story, *appsv1.Deployment){
		"background": func(s *story, d *appsv1.Deployment) {
			s.must(api.Delete(s.Context(), d, client.PropagationPolicy(metav1.DeletePropagationBackground)))
		},
		"foreground": func(s *story, d *appsv1.Deployment) {
			s.must(api.Delete(s.Context(), d, client.PropagationPolicy(metav1.DeletePropagationForeground)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			remove(s, s.deployment(3))
			s.inService(0)
		})
	}
}

// evict asks for an eviction once, as a client does that does not come back.
func (s *story) evict(pod *corev1.Pod) error {
	once, err := kubernetes.NewForConfig(plane.RESTConfig())
	s.must(err)
	body, err := json.Marshal(policyv1.Eviction{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"},
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
	})
	s.must(err)
	return once.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		MaxRetries(0).Body(body).SetHeader("Content-Type", "application/json").Do(s.Context()).Error()
}

// TestEviction: a PodDisruptionBudget refuses before the Pod leaves; one that allows lets
// it drain; and an eviction that does not come back is taken back.
func TestEviction(t *testing.T) {
	s := begin(t)
	s.deployment(2)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: meta(s.namespace, "web"), Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr(intstr.FromInt32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
	}}
	s.must(api.Create(t.Context(), budget))
	s.eventually("the budget counts", func() string {
		s.must(api.Get(t.Context(), client.ObjectKeyFromObject(budget), budget))
		if budget.Status.CurrentHealthy != 2 {
			return "not yet"
		}
		return ""
	})
	pod := s.pods()[0]
	if err := s.evict(&pod); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "disruption budget") {
		t.Fatalf("the budget should refuse, but: %v", err)
	}
	if left := callers.leavers(s.namespace); len(left) > 0 {
		t.Fatalf("left although the budget refuses: %v", left)
	}
	s.merge(budget, `{"spec":{"minAvailable":1}}`)
	s.eventually("the guard asks for a drain", func() string {
		if err := s.evict(&pod); err == nil || !strings.Contains(err.Error(), "leaves its registries") {
			return fmt.Sprint(err)
		}
		return ""
	})
	s.eventually("it is drained", func() string {
		if p := s.get(pod.Name); len(p.Finalizers) > 0 {
			return "it has a finalizer"
		}
		return ""
	})
	s.age(pod.Name)
	s.inService(2)
	s.event("DeletionTakenBack", "registered again")
	if p := s.get(pod.Name); p.Annotations[usherv1alpha1.AnnotationDeletionRequest] != "" || p.Annotations[corev1.PodDeletionCost] != "" {
		t.Errorf("the request has left traces: %v", p.Annotations)
	}
	s.must(api.SubResource("eviction").Create(t.Context(), s.get(pod.Name), &policyv1.Eviction{}))
	s.inService(2)
}

// age makes a request two minutes old.
func (s *story) age(name string) {
	s.Helper()
	pod := s.get(name)
	request, err := usherv1alpha1.DeletionRequestOf(pod)
	s.must(err)
	request.At = metav1.NewMicroTime(request.At.Add(-2 * time.Minute))
	text, err := json.Marshal(request)
	s.must(err)
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		usherv1alpha1.AnnotationDeletionRequest: string(text)}}})
	s.must(err)
	s.merge(pod, string(body))
}

// evictAll evicts Pods side by side until all are gone. Like kubectl drain, it comes back
// five seconds after a refusal.
func (s *story) evictAll(pods []corev1.Pod) {
	s.Helper()
	var group errgroup.Group
	for i := range pods {
		group.Go(func() error {
			return wait.PollUntilContextTimeout(s.Context(), 5*time.Second, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
				err := api.SubResource("eviction").Create(ctx, &pods[i], &policyv1.Eviction{})
				if apierrors.IsTooManyRequests(err) {
					return false, nil
				}
				return true, client.IgnoreNotFound(err)
			})
		})
	}
	s.must(group.Wait())
}

// TestBudgetOfEvictions: of Pods that are evicted together, as many drain at a time as the
// budget allows: not more, and not fewer. The Pods are ready when they are registered, so
// that the budget counts what callers have.
func TestBudgetOfEvictions(t *testing.T) {
	for _, test := range []struct{ pods, allowed int }{{3, 1}, {6, 3}} {
		t.Run(fmt.Sprintf("%d of %d", test.allowed, test.pods), func(t *testing.T) {
			s := begin(t)
			s.deployment(int32(test.pods), corev1.PodReadinessGate{ConditionType: usherv1alpha1.ConditionRegistered})
			budget := &policyv1.PodDisruptionBudget{ObjectMeta: meta(s.namespace, "web"), Spec: policyv1.PodDisruptionBudgetSpec{
				MaxUnavailable: ptr(intstr.FromInt(test.allowed)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			}}
			s.must(api.Create(t.Context(), budget))
			s.eventually("the budget counts", func() string {
				s.must(api.Get(t.Context(), client.ObjectKeyFromObject(budget), budget))
				if int(budget.Status.DisruptionsAllowed) != test.allowed {
					return "not yet"
				}
				return ""
			})
			fewest := callers.count(s.namespace)
			s.evictAll(s.pods())
			s.inService(test.pods)
			if got := fewest(); got != test.pods-test.allowed {
				t.Errorf("%d of %d Pods were in service at least, and the budget allows %d to be away", got, test.pods, test.allowed)
			}
		})
	}
}

// TestForce: --force is the user's word, and so is the annotation.
func TestForce(t *testing.T) {
	s := begin(t)
	for _, name := range []string{"forced", "annotated"} {
		s.must(api.Create(t.Context(), &corev1.Pod{ObjectMeta: meta(s.namespace, name), Spec: podSpec}))
	}
	s.inService(2)
	callers.registry.Break(memory.Down)
	defer callers.registry.Break(memory.None)
	s.must(api.Delete(t.Context(), s.get("forced"), client.GracePeriodSeconds(0)))
	s.merge(s.get("annotated"), `{"metadata":{"annotations":{"usher.dev/skip-drain":"true"}}}`)
	s.must(api.Delete(t.Context(), s.get("annotated")))
	for _, name := range []string{"forced", "annotated"} {
		if s.get(name).DeletionTimestamp == nil {
			t.Errorf("%s is not being deleted", name)
		}
	}
	s.event("DrainSkipped", "deletes the Pod without a drain")
	callers.forget(s.namespace)
}

const cloneSet = `
metadata: {namespace: %s, name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  lifecycle:
    preNormal: {labelsHandler: {web.usher.dev/online: "true"}}
    preDelete: {labelsHandler: {web.usher.dev/drained: "true"}}
  template:
    metadata: {labels: {app: web, web.usher.dev/drained: "true"}}
    spec: {containers: [{name: web, image: "example.test/web:v1"}]}
  updateStrategy: %s
`

// cloneSet creates a CloneSet, whose Pods are available when they are registered.
func (s *story) cloneSet(replicas int, strategy string) {
	s.Helper()
	set := &appsv1alpha1.CloneSet{}
	s.must(yaml.UnmarshalStrict(fmt.Appendf(nil, cloneSet, s.namespace, replicas, strategy), set))
	s.must(api.Create(s.Context(), set))
	s.inService(replicas)
}

// TestCloneSetWithoutHook: the Pods that a scale-in deletes drain side by side, and no other
// Pod leaves. The set says what it waits for: its worker is not held in a request.
func TestCloneSetWithoutHook(t *testing.T) {
	s := begin(t)
	set := &appsv1alpha1.CloneSet{}
	s.must(yaml.UnmarshalStrict(fmt.Appendf(nil, cloneSet, s.namespace, 6, "{}"), set))
	set.Spec.Lifecycle = nil
	s.must(api.Create(t.Context(), set))
	s.inService(6)
	s.merge(set, `{"spec":{"replicas":2}}`)
	s.eventually("all four drain", func() string {
		s.must(api.Get(t.Context(), client.ObjectKeyFromObject(set), set))
		for _, c := range set.Status.Conditions {
			if c.Type == appsv1alpha1.ConditionBlocked && c.Reason == "DeletionDeferred" &&
				strings.Contains(c.Message, "leaves its registries before it is deleted") && strings.HasSuffix(c.Message, "; 3 other Pods wait too") {
				return ""
			}
		}
		return fmt.Sprintf("the conditions are %+v", set.Status.Conditions)
	})
	s.inService(2)
	if left := callers.leavers(s.namespace); len(left) != 4 {
		t.Errorf("%d Pods have left the registry: %v", len(left), left)
	}
	for _, c := range set.Status.Conditions {
		if c.Type != appsv1alpha1.ConditionBlocked && c.Status == corev1.ConditionTrue {
			t.Errorf("a wait is reported as %s: %s", c.Type, c.Message)
		}
	}
}

// TestCloneSet: a deletion becomes a named deletion, with the set's hook.
func TestCloneSet(t *testing.T) {
	s := begin(t)
	s.cloneSet(3, "{}")
	pod := s.pods()[0]
	s.must(client.IgnoreNotFound(api.Delete(t.Context(), &pod)))
	s.inService(3)
	if left := callers.leavers(s.namespace); len(left) != 1 || left[0] != s.namespace+"/"+pod.Name {
		t.Errorf("left the registry: %v, want %s alone", left, pod.Name)
	}
}

func ptr[T any](v T) *T { return &v }
