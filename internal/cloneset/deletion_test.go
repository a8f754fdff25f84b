// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/scenariotest"
)

const drainKey = "example.com/drain"

// hookedSet returns a set with a preDelete hook.
func hookedSet(finalizers ...string) *apps.CloneSet {
	set := web()
	set.Spec.Replicas, set.Finalizers = new(int32), finalizers
	set.Spec.Lifecycle = &apps.Lifecycle{PreDelete: &apps.LifecycleHook{FinalizersHandler: []string{drainKey}}}
	return set
}

// held gives a Pod the hook's finalizer.
func held(pod *corev1.Pod) { pod.Finalizers = []string{drainKey} }

// passes makes passes over a set until one has nothing more to do at once.
func passes(t *testing.T, r *Reconciler, set *apps.CloneSet) {
	t.Helper()
	for range 10 {
		result := checktest.Must(r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}))(t)
		if result.RequeueAfter == 0 || result.RequeueAfter >= longWait {
			return
		}
	}
	t.Fatal("ten passes, and still something to do")
}

// TestFinalizer: a set has the finalizer exactly while it has the hook.
func TestFinalizer(t *testing.T) {
	const other = "example.com/other"
	set := hookedSet(other)
	c := server(t, set)
	r, _ := reconcilerOn(c)
	passes(t, r, set)
	checktest.Same(t, "with the hook", []string{other, apps.FinalizerPreDelete}, read(t, c, set).Finalizers)
	set = read(t, c, set)
	set.Spec.Lifecycle = nil
	checktest.NoError(t, c.Update(t.Context(), set))
	passes(t, r, set)
	checktest.Same(t, "without the hook", []string{other}, read(t, c, set).Finalizers)
}

// TestDeletedSet: a deleted set moves its Pods to the gate and is gone when they have passed it,
// whatever is wrong with its spec, and does nothing else. It does not wait for Pods that are orphaned,
// or whose hook is gone.
func TestDeletedSet(t *testing.T) {
	scenariotest.Table(t, "testdata/deleted-set.txt", func(t *testing.T, fields json.RawMessage) string {
		set := hookedSet(apps.FinalizerPreDelete)
		set.DeletionTimestamp, set.Spec.Replicas = deletedNow(), new(int32(9))
		checktest.NoError(t, json.Unmarshal(fields, set))
		pod, orphan := podOf(set, "web-a", held), podOf(nil, "web-b")
		c := server(t, set, pod, orphan)
		r, _ := reconcilerOn(c)
		r.passState(keyOf(set)).stale = true // it asks the API server for its Pods, too
		passes(t, r, set)
		comes := heldBy(t, c, set)
		var pods corev1.PodList
		if err := c.List(t.Context(), &pods); err != nil || len(pods.Items) != 2 || metav1.GetControllerOf(read(t, c, orphan)) != nil {
			t.Errorf("%d Pods, or an adopted one: %v", len(pods.Items), err)
		}
		if read(t, c, pod).Labels[apps.LabelLifecycleState] != string(apps.StatePreparingDelete) {
			return comes
		}
		change(t, c, pod, func(pod *corev1.Pod) { pod.Finalizers = nil })
		passes(t, r, set)
		return comes + "; when its Pod has passed the gate, " + heldBy(t, c, set)
	})
}

// heldBy returns the finalizers that hold a deleted set, as text. A set with the preDelete finalizer
// must have the condition Blocked.
func heldBy(t *testing.T, c client.Client, set *apps.CloneSet) string {
	t.Helper()
	if !exists(t, c, set) {
		return "it is gone"
	}
	live := read(t, c, set)
	if slices.Contains(live.Finalizers, apps.FinalizerPreDelete) && !holdsFinding(&live.Status, apps.ConditionBlocked, findBlocked([]plan.Blocked{{
		Pod: "web-a", State: apps.StatePreparingDelete, Gate: "preDelete", Keys: []string{drainKey}, Since: now, SetDeleted: true}})) {
		t.Errorf("nobody knows what it waits for: %+v", live.Status.Conditions)
	}
	return "held by " + strings.Join(live.Finalizers, " and ")
}

// change changes a Pod.
func change(t *testing.T, c client.Client, pod *corev1.Pod, edit func(*corev1.Pod)) {
	t.Helper()
	live := read(t, c, pod)
	edit(live)
	checktest.NoError(t, c.Update(t.Context(), live))
}

// TestUnseenPodOfADeletedSet: a deleted set keeps its finalizer while it has a Pod that only the API
// server knows.
func TestUnseenPodOfADeletedSet(t *testing.T) {
	set := hookedSet(apps.FinalizerPreDelete)
	set.DeletionTimestamp = deletedNow()
	pod := podOf(set, "web-a", held)
	live := server(t, set, pod)
	r, _ := reconcilerOn(live)
	r.ListPods = byClient[*corev1.Pod](server(t), &corev1.PodList{})
	passes(t, r, set)
	if got := read(t, live, pod).Labels[apps.LabelLifecycleState]; got != string(apps.StatePreparingDelete) || !exists(t, live, set) {
		t.Errorf("the Pod is in %q, and the set exists: %t", got, exists(t, live, set))
	}
}

// deferring returns an API server that defers the deletion of Pods without the label drained, and
// counts how often it is asked.
func deferring(c client.WithWatch) (client.Client, map[string]int) {
	asked := map[string]int{}
	var mu sync.Mutex // deletions run in parallel
	return interceptor.NewClient(c, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			pod := &corev1.Pod{}
			if err := c.Get(ctx, client.ObjectKeyFromObject(object), pod); err != nil {
				return err
			}
			if pod.Labels["drained"] == "" {
				mu.Lock()
				defer mu.Unlock()
				asked[object.GetName()]++
				return apierrors.NewTooManyRequests("it drains", 7)
			}
			return c.Delete(ctx, object, options...)
		},
	}), asked
}

// TestDeferral: a deletion that the API server defers is a wait and not a failure. The
// condition shows it, and the API server is asked again when its time has come or the Pod
// has changed.
func TestDeferral(t *testing.T) {
	set := web()
	set.Spec.Replicas = new(int32)
	pod, other := podOf(set, "web-a"), podOf(set, "web-b")
	c := server(t, set, pod, other)
	waits, asked := deferring(c)
	r, events := reconcilerOn(waits)
	for range 3 {
		result := checktest.Must(r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}))(t)
		checktest.Same(t, "when the next pass comes", 7*time.Second, result.RequeueAfter)
	}
	checktest.Same(t, "asked", map[string]int{"web-a": 1, "web-b": 1}, asked)
	status := read(t, c, set).Status
	if len(status.Conditions) != 1 || !holdsFinding(&status, apps.ConditionBlocked, plan.Problem{Reason: ReasonDeletionDeferred, Message: "" +
		"Pod web-a is to be deleted, and the API server asks to wait since 2026-01-02T03:04:05Z: it drains; 1 other Pod waits too"}) {
		t.Errorf("conditions %+v", status.Conditions)
	}
	if text := strings.Join(events.reasons, ", "); strings.Contains(text, "Warning") {
		t.Errorf("events %s", text)
	}
	change(t, c, pod, func(pod *corev1.Pod) { pod.Labels["drained"] = "yes" })
	checktest.Must(r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)}))(t)
	if exists(t, c, pod) {
		t.Error("the Pod is drained and still there")
	}
}

// TestDeferralsOfAPass: a deferral counts from the first answer. It is forgotten when its time is over
// and the deletion was not deferred again.
func TestDeferralsOfAPass(t *testing.T) {
	pod := podOf(nil, "web-a", at("1"))
	refused := []outcome{{action: plan.Action{Verb: plan.Delete, Pod: pod}, err: deferral(apierrors.NewTooManyRequests("", 0))}}
	d := deferralsAfter(&plan.Snapshot{Now: now}, refused, now)
	if got := d[pod.UID]; !got.Since.Equal(now) || !got.Until.Equal(now.Add(time.Second)) {
		t.Fatalf("first %+v", got)
	}
	later := now.Add(time.Second)
	s := &plan.Snapshot{Now: later}
	s.Deferred = d.observed([]*corev1.Pod{pod})
	if again := deferralsAfter(s, refused, later)[pod.UID]; !again.Since.Equal(now) || !again.Until.After(later) {
		t.Errorf("again %+v", again)
	}
	if remaining := deferralsAfter(s, nil, later); len(remaining) > 0 {
		t.Errorf("not asked again: %v", remaining)
	}
	changed := pod.DeepCopy()
	changed.Finalizers = []string{"example.com/f"}
	if got := d.observed([]*corev1.Pod{changed})[pod.UID]; !got.Until.IsZero() || !got.Since.Equal(now) {
		t.Errorf("a changed Pod has to wait: %+v", got)
	}
}

// TestPromptDeletes: a deletion of a Pod returns with the first answer.
func TestPromptDeletes(t *testing.T) {
	requests := 0
	answers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429,"details":{"retryAfterSeconds":7}}`))
	}))
	defer answers.Close()
	mapper := apimeta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), apimeta.RESTScopeNamespace)
	mgr, err := ctrl.NewManager(&rest.Config{Host: answers.URL}, ctrl.Options{
		Scheme:         scheme.Scheme,
		MapperProvider: func(*rest.Config, *http.Client) (apimeta.RESTMapper, error) { return mapper, nil },
	})
	checktest.NoError(t, err)
	c, err := withPromptDeletes(mgr)
	checktest.NoError(t, err)
	err = deferral(c.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-a"}}))
	if wait := (outcome{err: err}).deferred(); requests != 1 || wait == nil || wait.after != 7*time.Second {
		t.Errorf("%d requests, then %v", requests, err)
	}
}
