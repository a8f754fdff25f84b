// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
)

// attacked is a namespace in which somebody may write what he likes to his Pods.
type attacked struct {
	testing.TB
	*Reconciler
	clock  *clocktesting.FakePassiveClock
	store  *memory.Registry
	events *events.FakeRecorder
	// scraped has the metrics.
	scraped *prometheus.Registry
	// reads are the requests past the caches; refuses are Pods and Registrations whose writes are refused.
	reads   []string
	refuses map[string]error
	patches map[string]int
}

// attack has a Registry, Registrations web and other, a Pod "good" that goes since the epoch and that web has
// listed, and one that is as somebody has written it.
func attack(t testing.TB, victim *corev1.Pod) *attacked {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, policyv1.AddToScheme, usherv1alpha1.AddToScheme, appsv1alpha1.AddToScheme} {
		checktest.NoError(t, add(scheme))
	}
	a := &attacked{TB: t, clock: clocktesting.NewFakePassiveClock(epoch), store: memory.New(), events: events.NewFakeRecorder(100),
		scraped: prometheus.NewRegistry(),
		refuses: map[string]error{}, patches: map[string]int{}}
	object := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: "discovery", UID: "discovery", Finalizers: []string{usherv1alpha1.Finalizer}}}
	object.Spec.Webhook = &usherv1alpha1.WebhookRegistry{}
	target := usherv1alpha1.Target{Registry: object.Name, Service: "web"}
	objects := []client.Object{object, namespaceNamed(clusterNamespace), namespaceNamed(namespace), victim}
	for _, name := range []string{"web", "other"} {
		r := &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), Generation: 1}}
		r.Finalizers = []string{usherv1alpha1.Finalizer}
		r.Spec.Selector.MatchLabels = map[string]usherv1alpha1.LabelValue{"app": usherv1alpha1.LabelValue(name)}
		r.Spec.Registries, r.Spec.Instance.Service = []string{object.Name}, name
		r.Spec.Drain.Deadline = &metav1.Duration{Duration: time.Minute}
		r.Status.Targets = []usherv1alpha1.Target{{Registry: object.Name, Service: name}}
		object.Status.Users = append(object.Status.Users, usherv1alpha1.RegistryUser{Namespace: namespace, Registration: name, Service: name})
		objects = append(objects, r)
	}
	good := podOf("good", "web", "web")
	good.DeletionTimestamp = &metav1.Time{Time: epoch}
	objects = append(objects, good)
	checktest.NoError(t, a.store.Apply(t.Context(), target.Service, []registry.Change{{Op: registry.Put, Entry: registry.Entry{
		ID: "good", Address: "192.0.2.1", Port: 80, Weight: 1,
		Owner: registry.Owner{Cluster: clusterNamespace, Namespace: namespace, Registration: "web", Pod: "good", PodUID: "good"},
	}}}))
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&usherv1alpha1.Registry{}, &usherv1alpha1.Registration{}).WithObjects(objects...).Build()
	r, err := New(a.writer(api), a.pastCaches(api), a.events, Options{
		Registerer: a.scraped, Clock: a.clock, Workers: 1,
		Connect: func(*usherv1alpha1.Registry, string, map[string][]byte) (registry.Connector, error) {
			return a.store, nil
		},
	})
	checktest.NoError(t, err)
	a.Reconciler = r
	return a
}

// writer refuses what it is to refuse.
func (a *attacked) writer(api client.WithWatch) client.Client {
	return interceptor.NewClient(api, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := a.refused(object); err != nil {
				return err
			}
			return c.Patch(ctx, object, patch, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			if err := a.refused(object); err != nil {
				return err
			}
			if pod, ok := object.(*corev1.Pod); ok { // the fake has no subresource that takes metadata
				return c.Patch(ctx, pod, patch)
			}
			return c.SubResource(sub).Patch(ctx, object, patch, options...)
		},
	})
}

// pastCaches notes what is read.
func (a *attacked) pastCaches(api client.WithWatch) client.Client {
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			a.reads = append(a.reads, "get "+key.Name)
			if strings.ContainsAny(key.Name, "/%") || key.Name == "" {
				return fmt.Errorf("invalid resource name %q", key.Name) // as client-go answers
			}
			return c.Get(ctx, key, object, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			a.reads = append(a.reads, "list")
			return c.List(ctx, list, options...)
		},
	})
}

func (a *attacked) refused(object client.Object) error {
	a.patches[object.GetName()]++
	return a.refuses[object.GetName()]
}

func namespaceNamed(name string) client.Object {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
}

// podOf is a Pod of an app, with Usher's finalizer, whose annotation names Registrations.
func podOf(name, app, names string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(name), Finalizers: []string{usherv1alpha1.Finalizer},
		Labels:      map[string]string{"app": app, usherv1alpha1.LabelGuarded: "true"},
		Annotations: map[string]string{usherv1alpha1.AnnotationRegistrations: names},
	}}
}

// pass makes one pass, and returns what was read past the caches.
func (a *attacked) pass() ([]string, ctrl.Result, error) {
	a.clock.SetTime(a.clock.Now().Add(2 * maxPause))
	a.reads = nil
	result, err := a.Reconcile(a.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}})
	return a.reads, result, err
}

// lists counts the lists among reads.
func lists(reads []string) int {
	return len(reads) - len(slices.DeleteFunc(slices.Clone(reads), func(read string) bool { return read == "list" }))
}

// goes is whether the good Pod is gone after some passes.
func (a *attacked) goes() bool {
	for range 3 {
		_, _, err := a.pass()
		checktest.NoError(a, err)
	}
	err := a.client.Get(a.Context(), types.NamespacedName{Namespace: namespace, Name: "good"}, &corev1.Pod{})
	return apierrors.IsNotFound(err)
}

// reports is whether an event has the reason, and names what it says.
func (a *attacked) reports(reason, says string) bool {
	for {
		select {
		case event := <-a.events.Events:
			if strings.Contains(event, " "+reason+" ") && strings.Contains(event, says) {
				return true
			}
		default:
			return false
		}
	}
}

func manyNames(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("n%d", i)
	}
	return strings.Join(all, ",")
}

// TestNamesThatPodsClaim: whatever a Pod's annotation names, a pass asks the API server for at most one list,
// one with nothing new asks nothing, and another Pod goes.
func TestNamesThatPodsClaim(t *testing.T) {
	for name, test := range map[string]struct {
		names  string
		lists  int
		report string
	}{
		"one that does not exist":    {"nowhere", 1, ""},
		"many that do not exist":     {manyNames(maxNamesOfTest), 1, ""},
		"59,871":                     {manyNames(59871), 0, "32768 bytes"},
		"no name that an object has": {"a/b", 0, `"a/b"`},
		"one of them is none":        {"web,..", 0, `".."`},
		"an empty one":               {"web,,other", 0, `""`},
		"as Usher writes it":         {"other,web", 0, ""},
		"none":                       {"", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := attack(t, podOf("bad", "web", test.names))
			first, _, err := a.pass()
			checktest.NoError(t, err)
			checktest.Same(t, "lists of the first pass", test.lists, lists(first))
			if len(first) > 10 {
				t.Errorf("the first pass reads %d times", len(first))
			}
			second, _, err := a.pass()
			checktest.NoError(t, err)
			checktest.Same(t, "what the second pass reads", []string(nil), second)
			checktest.Same(t, "it is reported", test.report != "", a.reports(eventNamesInvalid, test.report))
			checktest.Same(t, "the other Pod goes", true, a.goes())
		})
	}
}

// TestNamesOfPodsWithoutTheFinalizer: Usher has written nothing to such a Pod.
func TestNamesOfPodsWithoutTheFinalizer(t *testing.T) {
	bad := podOf("bad", "unknown", "nowhere")
	bad.Finalizers, bad.Labels = nil, nil
	a := attack(t, bad)
	reads, _, err := a.pass()
	checktest.NoError(t, err)
	checktest.Same(t, "what is read of it", false, lists(reads) > 0 || slices.Contains(reads, "get nowhere"))
}

// TestDeadlinesHoldBesideInvalidNames: a registry that is away holds a Pod until its deadline, whatever
// other Pods have in their annotations.
func TestDeadlinesHoldBesideInvalidNames(t *testing.T) {
	a := attack(t, podOf("bad", "web", "a/b"))
	a.store.Break(memory.Down)
	checktest.Same(t, "it goes before its deadline", false, a.goes())
	a.clock.SetTime(epoch.Add(time.Minute))
	checktest.Same(t, "it goes at its deadline", true, a.goes())
}

// TestRegistrationsThatTheCacheLacks: a name that the API server knows is found, with one list.
func TestRegistrationsThatTheCacheLacks(t *testing.T) {
	a := attack(t, podOf("bad", "unknown", "other,nowhere"))
	all := a.listRegistrations
	a.listRegistrations = func(ctx context.Context, namespace string) ([]*usherv1alpha1.Registration, error) {
		found, err := all(ctx, namespace)
		return slices.DeleteFunc(found, func(r *usherv1alpha1.Registration) bool { return r.Name == "other" }), err
	}
	for range 2 {
		reads, _, err := a.pass()
		checktest.NoError(t, err)
		checktest.Same(t, "lists", 1, lists(reads))
		checktest.Same(t, "it is read", true, slices.Contains(reads, "get other"))
	}
}

// TestOneRefusalEndsNoPass: what the API server refuses of one Pod or Registration holds that one back, and an
// event names it.
func TestOneRefusalEndsNoPass(t *testing.T) {
	forbidden := apierrors.NewForbidden(corev1.Resource("pods"), "it", errors.New("policy says no"))
	for name, refusal := range map[string]error{
		"forbidden": forbidden, "bad request": apierrors.NewBadRequest("policy says no"),
		"invalid":   apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "policy says no", nil),
		"too large": apierrors.NewRequestEntityTooLargeError("policy says no"),
	} {
		t.Run(name, func(t *testing.T) {
			bad := podOf("bad", "other", "other")
			bad.DeletionTimestamp = &metav1.Time{Time: epoch}
			a := attack(t, bad)
			a.refuses["bad"], a.refuses["other"] = refusal, refusal
			// The first write of the Registration comes with its status, and web is deleted meanwhile.
			checktest.NoError(t, a.reader.(client.Client).Delete(t.Context(), &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}))
			checktest.Same(t, "the other Pod goes", true, a.goes())
			if a.patches["bad"] == 0 || a.patches["other"] == 0 {
				t.Errorf("nothing was refused: %v", a.patches)
			}
			err := a.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "web"}, &usherv1alpha1.Registration{})
			checktest.Same(t, "the other Registration goes", true, apierrors.IsNotFound(err))
			checktest.Same(t, "it is reported", true, a.reports(eventRefused, "policy says no"))
			_, result, err := a.pass()
			checktest.NoError(t, err)
			if result.RequeueAfter == 0 || result.RequeueAfter > refusedRetry {
				t.Errorf("it is tried again after %s", result.RequeueAfter)
			}
		})
	}
}

const maxNamesOfTest = 1000
