// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
	"github.com/usher-dev/usher/test/integration/scene"
)

// story is a namespace with a Registration of the Pods with app=web.
type story struct{ *scene.Scene }

func begin(t *testing.T, registration ...string) *story {
	t.Helper()
	s := &story{plane.Begin(t)}
	s.Make(s.Object(`{apiVersion: usher.dev/v1alpha1, kind: Registration, metadata: {name: web},
		spec: {selector: {matchLabels: {app: web}}, registries: [memory], instance: {service: `+s.Namespace+`, port: 80}, drain: {propagation: 1s}}}`, registration...))
	t.Cleanup(func() {
		if early := callers.tooEarly(s.Namespace); len(early) > 0 {
			t.Errorf("deleted while callers could use them:\n%s", strings.Join(early, "\n"))
		}
	})
	return s
}

// replicaSetWorkers is the controller manager's --concurrent-replicaset-syncs.
const replicaSetWorkers = 5

const podSpec = `spec: {containers: [{name: web, image: "example.test/web:v1"}]}`

// bare creates a Pod without an owner.
func (s *story) bare(name string, patches ...string) *corev1.Pod {
	s.Helper()
	s.Make(s.Object("{apiVersion: v1, kind: Pod, metadata: {name: "+name+", labels: {app: web}}, "+podSpec+"}", patches...))
	return s.Pod(name)
}

// workload is a workload of Kubernetes' own kinds.
func (s *story) workload(kind string, replicas int, patches ...string) *unstructured.Unstructured {
	s.Helper()
	w := s.Object(fmt.Sprintf(`{apiVersion: apps/v1, kind: %s, metadata: {name: web}, spec: {replicas: %d, selector: {matchLabels: {app: web}},
		template: {metadata: {labels: {app: web}}, %s}}}`, kind, replicas, podSpec), patches...)
	s.Make(w)
	return w
}

// inService waits until there are just so many Pods, and the registry lists them.
func (s *story) inService(n int) {
	s.Helper()
	s.listed(n, func() (listed []types.UID) {
		for _, e := range callers.registry.Entries(s.Namespace) {
			listed = append(listed, types.UID(e.Owner.PodUID))
		}
		return listed
	})
}

// listed waits until there are just so many Pods, and they are those listed.
func (s *story) listed(n int, listed func() []types.UID) {
	s.Helper()
	s.Until(fmt.Sprintf("%d Pods in service", n), func() string {
		listed, pods := listed(), s.Pods()
		for _, pod := range pods {
			if !slices.Contains(listed, pod.UID) || pod.DeletionTimestamp != nil {
				return pod.Name + " is not in service"
			}
		}
		return registrytest.Unless(len(pods) == n && len(listed) == n, fmt.Sprintf("there are %d Pods, %d listed", len(pods), len(listed)))
	})
}

func (s *story) deployment(replicas int, patches ...string) *unstructured.Unstructured {
	s.Helper()
	d := s.workload("Deployment", replicas, patches...)
	s.inService(replicas)
	return d
}

// rollOut changes a workload's template, and waits until every Pod has it.
func (s *story) rollOut(workload client.Object) {
	s.Helper()
	s.Change(workload, `spec: {template: {metadata: {labels: {version: "2"}}}}`)
	s.Until("the rollout ends", func() string {
		for _, pod := range s.Pods() {
			if pod.Labels["version"] != "2" {
				return pod.Name + " is old"
			}
		}
		return ""
	})
}

// left checks how many Pods have left the registry at least once.
func (s *story) left(want int) {
	s.Helper()
	if left := callers.leavers(s.Namespace); len(left) != want {
		s.Errorf("%d Pods have left the registry, want %d: %v", len(left), want, left)
	}
}

// TestDelete: a client that knows nothing of Usher deletes a Pod, waits as long as the
// drain, and succeeds.
func TestDelete(t *testing.T) {
	s := begin(t)
	pod := s.bare("web")
	s.inService(1)
	s.Must(s.Delete(t.Context(), pod))
	s.inService(0)
	s.Event(nil, "DeletionRequested", "asks to delete the Pod")
}

// TestLabel: API servers ask the guard about Pods with its label. Usher puts the label back when
// somebody has removed it.
func TestLabel(t *testing.T) {
	s := begin(t)
	pod := s.bare("web")
	s.inService(1)
	s.Change(pod, `metadata: {labels: {usher.dev/guarded: null}}`)
	s.Until("the label is back", func() string {
		_, labelled := s.Pod(pod.Name).Labels[usherv1alpha1.LabelGuarded]
		return registrytest.Unless(labelled, "it is not there")
	})
	s.Must(s.Delete(t.Context(), pod))
	s.inService(0)
	s.Event(nil, "DeletionRequested", "asks to delete the Pod")
}

// TestDeleteCollection: all at once, each with a drain of its own.
func TestDeleteCollection(t *testing.T) {
	s := begin(t)
	for i := range 3 {
		s.bare(fmt.Sprintf("web-%d", i))
	}
	s.inService(3)
	s.Must(s.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(s.Namespace), client.MatchingLabels{"app": "web"}))
	s.inService(0)
}

// TestScaleIn: of twenty Pods the ten that the ReplicaSet chose first leave, and no other.
func TestScaleIn(t *testing.T) {
	s := begin(t)
	d := s.deployment(20)
	s.Change(d, `spec: {replicas: 10}`)
	s.inService(10)
	s.left(10)
}

// TestRollout: a Deployment replaces its Pods, and each leaves its registry first.
func TestRollout(t *testing.T) {
	s := begin(t)
	s.rollOut(s.deployment(4))
	s.inService(4)
}

// TestDaemonSet: its controller chooses one of eight Pods at random at each attempt. Those that
// have drained go all the same, none is registered again, and the rollout comes to its end.
func TestDaemonSet(t *testing.T) {
	s := begin(t)
	set := s.workload("DaemonSet", 0, `spec: {replicas: null, updateStrategy: {rollingUpdate: {maxUnavailable: 1}}}`)
	s.inService(8)
	s.rollOut(set)
	s.inService(8)
	s.left(8)
	s.Event(nil, "EvictedAfterDrain", "has drained for its DaemonSet")
}

// TestOthersGoOn: while all workers of the ReplicaSet controller have a Pod to delete that
// cannot be drained, other Deployments get their Pods.
func TestOthersGoOn(t *testing.T) {
	var held []*story
	var deployments []*unstructured.Unstructured
	for range replicaSetWorkers {
		s := begin(t)
		held, deployments = append(held, s), append(deployments, s.deployment(2))
	}
	callers.registry.Break(memory.Down)
	defer callers.registry.Break(memory.None)
	for i, s := range held {
		s.Change(deployments[i], `spec: {replicas: 1}`)
	}
	for _, s := range held {
		s.Event(nil, "DeletionRequested", "replicaset-controller")
	}
	began := time.Now()
	s := held[0]
	s.workload("Deployment", 1, `{metadata: {name: other}, spec: {selector: {matchLabels: {app: other}}, template: {metadata: {labels: {app: other}}}}}`)
	s.Until("the other Deployment has its Pod", func() string {
		if slices.ContainsFunc(s.Pods(), func(pod corev1.Pod) bool { return pod.Labels["app"] == "other" }) {
			return ""
		}
		return fmt.Sprintf("not after %s", time.Since(began))
	})
	t.Logf("another Deployment had its Pod after %s", time.Since(began))
}

// TestCascade: the owner goes in the background, in the foreground, or with its namespace.
func TestCascade(t *testing.T) {
	for _, how := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
		t.Run(string(how), func(t *testing.T) {
			s := begin(t)
			s.Must(s.Delete(t.Context(), s.deployment(3), client.PropagationPolicy(how)))
			s.inService(0)
		})
	}
}

// budget creates a PodDisruptionBudget, and waits until it counts.
func (s *story) budget(spec string, counts func(policyv1.PodDisruptionBudgetStatus) bool) *policyv1.PodDisruptionBudget {
	s.Helper()
	s.Make(s.Object("{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}, " + spec + "}}"))
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "web"}}
	s.Until("the budget counts", func() string {
		s.Read(budget)
		return registrytest.Unless(counts(budget.Status), fmt.Sprintf("its status is %+v", budget.Status))
	})
	return budget
}

// evict asks for an eviction once, as a client does that does not come back.
func (s *story) evict(pod *corev1.Pod) error {
	once, err := kubernetes.NewForConfig(plane.RESTConfig())
	s.Must(err)
	body, err := json.Marshal(policyv1.Eviction{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"},
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
	})
	s.Must(err)
	return once.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		MaxRetries(0).Body(body).SetHeader("Content-Type", "application/json").Do(s.Context()).Error()
}

// TestEviction: a PodDisruptionBudget refuses before the Pod leaves; one that allows lets
// it drain; and an eviction that does not come back is taken back.
func TestEviction(t *testing.T) {
	s := begin(t)
	s.deployment(2)
	budget := s.budget("minAvailable: 2", func(now policyv1.PodDisruptionBudgetStatus) bool { return now.CurrentHealthy == 2 })
	pod := s.Pods()[0]
	if err := s.evict(&pod); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "disruption budget") {
		t.Fatalf("the budget should refuse, but: %v", err)
	}
	s.left(0)
	s.Change(budget, `spec: {minAvailable: 1}`)
	s.Until("the guard asks for a drain", func() string {
		if err := s.evict(&pod); err == nil || !strings.Contains(err.Error(), "leaves its registries") {
			return fmt.Sprint(err)
		}
		return ""
	})
	s.Until("it is drained", func() string {
		if p := s.Pod(pod.Name); len(p.Finalizers) > 0 {
			return "it has a finalizer"
		}
		return ""
	})
	s.age(pod.Name)
	s.inService(2)
	s.Event(nil, "DeletionTakenBack", "registered again")
	if p := s.Pod(pod.Name); p.Annotations[usherv1alpha1.AnnotationDeletionRequest] != "" || p.Annotations[corev1.PodDeletionCost] != "" {
		t.Errorf("the request has left traces: %v", p.Annotations)
	}
	s.Must(s.SubResource("eviction").Create(t.Context(), s.Pod(pod.Name), &policyv1.Eviction{}))
	s.inService(2)
}

// age makes a request two minutes old.
func (s *story) age(name string) {
	s.Helper()
	pod := s.Pod(name)
	request, err := usherv1alpha1.DeletionRequestOf(pod)
	s.Must(err)
	request.At = metav1.NewMicroTime(request.At.Add(-2 * time.Minute))
	text, err := json.Marshal(request)
	s.Must(err)
	s.Change(pod, `metadata: {annotations: {%s: %q}}`, usherv1alpha1.AnnotationDeletionRequest, text)
}

// evictAll evicts Pods side by side until all are gone. Like kubectl drain, it comes back
// five seconds after a refusal.
func (s *story) evictAll(pods []corev1.Pod) {
	s.Helper()
	var group errgroup.Group
	for i := range pods {
		group.Go(func() error {
			return wait.PollUntilContextTimeout(s.Context(), 5*time.Second, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
				err := s.SubResource("eviction").Create(ctx, &pods[i], &policyv1.Eviction{})
				if apierrors.IsTooManyRequests(err) {
					return false, nil
				}
				return true, client.IgnoreNotFound(err)
			})
		})
	}
	s.Must(group.Wait())
}

// TestBudgetOfEvictions: of Pods that are evicted together, as many drain at a time as the
// budget allows: not more, and not fewer. The Pods are ready when they are registered, so
// that the budget counts what callers have.
func TestBudgetOfEvictions(t *testing.T) {
	for _, test := range []struct{ pods, allowed int }{{3, 1}, {6, 3}} {
		t.Run(fmt.Sprintf("%d of %d", test.allowed, test.pods), func(t *testing.T) {
			s := begin(t)
			s.deployment(test.pods, readinessGate)
			s.budget(fmt.Sprintf("maxUnavailable: %d", test.allowed),
				func(now policyv1.PodDisruptionBudgetStatus) bool { return int(now.DisruptionsAllowed) == test.allowed })
			fewest := callers.count(s.Namespace)
			s.evictAll(s.Pods())
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
		s.bare(name)
	}
	s.inService(2)
	callers.registry.Break(memory.Down)
	defer callers.registry.Break(memory.None)
	s.Must(s.Delete(t.Context(), s.Pod("forced"), client.GracePeriodSeconds(0)))
	s.Change(s.Pod("annotated"), `metadata: {annotations: {usher.dev/skip-drain: "true"}}`)
	s.Must(s.Delete(t.Context(), s.Pod("annotated")))
	for _, name := range []string{"forced", "annotated"} {
		if s.Pod(name).DeletionTimestamp == nil {
			t.Errorf("%s is not being deleted", name)
		}
	}
	s.Event(nil, "DrainSkipped", "deletes the Pod without a drain")
	callers.forget(s.Namespace)
}

const cloneSet = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  updateStrategy: {type: InPlaceIfPossible}
  lifecycle:
    inPlaceUpdate: {labelsHandler: {web.usher.dev/drained: "true"}}
    preDelete: {labelsHandler: {web.usher.dev/drained: "true"}}
  template:
    metadata: {labels: {app: web, web.usher.dev/drained: "true"}}
    spec: {containers: [{name: web, image: "example.test/web:v1"}]}
`

// cloneSet creates a CloneSet, whose Pods are available when they are registered.
func (s *story) cloneSet(replicas int, patch string) client.Object {
	s.Helper()
	const online = `spec: {replicas: %d, lifecycle: {preNormal: {labelsHandler: {web.usher.dev/online: "true"}}}}`
	set := s.Object(cloneSet, fmt.Sprintf(online, replicas), patch)
	s.Make(set)
	s.inService(replicas)
	return set
}

// TestCloneSetWithoutHook: the Pods that a scale-in deletes drain side by side, and no other
// Pod leaves. The set says what it waits for: its worker is not held in a request.
func TestCloneSetWithoutHook(t *testing.T) {
	s := begin(t)
	set := s.cloneSet(6, "spec: {lifecycle: null}")
	s.Change(set, `spec: {replicas: 2}`)
	s.Condition(set, string(appsv1alpha1.ConditionBlocked), "", "DeletionDeferred: ", "leaves its registries before it is deleted", "; 3 other Pods wait too")
	for _, c := range s.Conditions(set) {
		if c.Type != string(appsv1alpha1.ConditionBlocked) && c.Status == metav1.ConditionTrue {
			t.Errorf("a wait is reported as %s: %s", c.Type, c.Message)
		}
	}
	s.inService(2)
	s.left(4)
}

// TestCloneSet: a deletion becomes a named deletion, with the set's hook.
func TestCloneSet(t *testing.T) {
	s := begin(t)
	s.cloneSet(3, "{}")
	pod := s.Pods()[0]
	s.Must(client.IgnoreNotFound(s.Delete(t.Context(), &pod)))
	s.inService(3)
	if left := callers.leavers(s.Namespace); len(left) != 1 || left[0] != pod.Name {
		t.Errorf("left the registry: %v, want %s alone", left, pod.Name)
	}
}
