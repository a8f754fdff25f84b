// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
	"github.com/usher-dev/usher/test/cluster"
)

// poll is how often a condition is checked.
const poll = 20 * time.Millisecond

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, appsv1alpha1.AddToScheme, usherv1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err) // A group that cannot be registered is a bug in this file.
		}
	}
	return s
}

// env is one story: a namespace, an operator, and a test that acts as the CloneSet
// controller and the kubelet.
type env struct {
	*testing.T
	client.Client
	namespace string
	// xds is the address on which start serves xDS, empty for none.
	xds  string
	stop func()
}

func newEnv(t *testing.T) *env {
	t.Helper()
	api := newAPI(t, shared)
	e := &env{T: t, Client: api, namespace: newNamespace(t, api)}
	e.start()
	t.Cleanup(func() { e.stop() })
	return e
}

// newAPI returns a client of an API server.
func newAPI(t *testing.T, on *cluster.Cluster) client.Client {
	t.Helper()
	c, err := client.New(on.RESTConfig(), client.Options{Scheme: scheme()})
	registrytest.NoError(t, err)
	return c
}

func newNamespace(t *testing.T, api client.Client) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "story-"}}
	registrytest.NoError(t, api.Create(registrytest.Bounded(t), namespace))
	return namespace.Name
}

// newManager returns a manager as Usher makes it.
func newManager(t *testing.T, config *rest.Config, probes string) ctrl.Manager {
	t.Helper()
	log := quiet(t)
	ctrl.SetLogger(log)
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme(), Logger: log, Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: probes,
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&discoveryv1.EndpointSlice{}: xds.Cache()}},
	})
	registrytest.NoError(t, err)
	return mgr
}

// runManager starts a manager and returns what ends it.
func runManager(t *testing.T, mgr ctrl.Manager) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the manager ended with: %v", err)
		}
	})
}

// start runs the operator until stop.
func (e *env) start() {
	e.Helper()
	mgr := newManager(e.T, shared.RESTConfig(), "0")
	options := registration.Options{Registerer: prometheus.NewRegistry()}
	if e.xds != "" {
		var err error
		options.XDS, err = xds.Setup(e.Context(), mgr, xds.ServerOptions{Address: e.xds, Registerer: options.Registerer})
		e.must(err)
	}
	e.must(registration.Setup(mgr, options))
	e.stop = runManager(e.T, mgr)
}

// must ends the test if there is an error.
func (e *env) must(err error) {
	e.Helper()
	registrytest.NoError(e.T, err)
}

// quiet logs to the test only while it runs: a goroutine of the manager may briefly
// outlive it.
func quiet(t *testing.T) logr.Logger {
	if testing.Verbose() && os.Getenv("USHER_TEST_LOG") != "" {
		return testr.New(t)
	}
	return logr.Discard()
}

func (e *env) create(objects ...client.Object) {
	e.Helper()
	for _, object := range objects {
		e.must(e.Create(e.Context(), object))
	}
}

func (e *env) remove(object client.Object) {
	e.Helper()
	e.must(e.Delete(e.Context(), object))
}

// eventually waits until check returns "", or fails with the last answer.
func (e *env) eventually(what string, check func() string) {
	e.Helper()
	registrytest.Eventually(e.T, what, check)
}

// stays checks for some time that check keeps returning "".
func (e *env) stays(what string, during time.Duration, check func() string) {
	e.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); <-time.After(poll) {
		if wrong := check(); wrong != "" {
			e.Fatalf("%s: %s", what, wrong)
		}
	}
}

func (e *env) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: e.namespace, Name: name}
}

func (e *env) pod(name string) *corev1.Pod {
	e.Helper()
	var pod corev1.Pod
	e.must(e.Get(e.Context(), e.key(name), &pod))
	return &pod
}

// patch changes one object as another client would, regardless of versions.
func (e *env) patch(object client.Object, body map[string]any) {
	e.Helper()
	data, err := json.Marshal(body)
	e.must(err)
	e.must(e.Patch(e.Context(), object, client.RawPatch("application/merge-patch+json", data)))
}

// state does what the CloneSet controller does when a Pod enters a state.
func (e *env) state(name string, state appsv1alpha1.LifecycleState) {
	e.Helper()
	e.patch(e.pod(name), map[string]any{"metadata": map[string]any{
		"labels":      map[string]any{appsv1alpha1.LabelLifecycleState: string(state)},
		"annotations": map[string]any{appsv1alpha1.AnnotationLifecycleTimestamp: time.Now().UTC().Format(time.RFC3339)},
	}})
}

// kubelet reports a Pod as ready or not.
func (e *env) kubelet(name, ip string, ready bool) {
	e.Helper()
	pod := e.pod(name)
	e.patchStatus(pod, func() {
		pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
		setConditions(pod, ready, corev1.ContainersReady, corev1.PodReady)
	})
}

func (e *env) patchStatus(pod *corev1.Pod, change func()) {
	e.Helper()
	base := pod.DeepCopy()
	change()
	e.must(e.Status().Patch(e.Context(), pod, client.StrategicMergeFrom(base)))
}

func setConditions(pod *corev1.Pod, holds bool, kinds ...corev1.PodConditionType) {
	status := corev1.ConditionFalse
	if holds {
		status = corev1.ConditionTrue
	}
	for _, kind := range kinds {
		at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
		if at < 0 {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind})
			at = len(pod.Status.Conditions) - 1
		}
		pod.Status.Conditions[at].Status, pod.Status.Conditions[at].LastTransitionTime = status, metav1.Now()
	}
}

// cloneSet creates a CloneSet from YAML; only the test acts on it.
func (e *env) cloneSet(text string) *appsv1alpha1.CloneSet {
	e.Helper()
	var set appsv1alpha1.CloneSet
	e.must(yaml.Unmarshal([]byte(text), &set))
	set.Namespace = e.namespace
	e.create(&set)
	return &set
}

// podOf creates a Pod as the CloneSet controller would.
func (e *env) podOf(set *appsv1alpha1.CloneSet, id string, state appsv1alpha1.LifecycleState) *corev1.Pod {
	e.Helper()
	labels := map[string]string{appsv1alpha1.LabelLifecycleState: string(state)}
	for key, value := range set.Spec.Template.Metadata.Labels {
		labels[key] = string(value)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.namespace, Name: set.Name + "-" + id, Labels: labels,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet", Name: set.Name, UID: set.UID, Controller: new(true),
			}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx:latest"}}},
	}
	e.create(pod)
	return pod
}

// current reads the Registration that newRegistration created.
func (e *env) current() *usherv1alpha1.Registration {
	e.Helper()
	var r usherv1alpha1.Registration
	e.must(e.Get(e.Context(), e.key(registrationName), &r))
	return &r
}

// condition waits for a condition of the Registration.
func (e *env) condition(kind string, status metav1.ConditionStatus, reason string, mentions ...string) {
	e.Helper()
	e.eventually("condition "+kind, func() string {
		c := meta.FindStatusCondition(e.current().Status.Conditions, kind)
		fits := c != nil && c.Status == status && (reason == "" || c.Reason == reason) && containsAll(c.Message, mentions)
		return registrytest.Unless(fits, fmt.Sprintf("is %+v, want %s %s %q", c, status, reason, mentions))
	})
}

// event waits for an event with the reason about the object.
func (e *env) event(object client.Object, reason string, mentions ...string) {
	e.Helper()
	e.eventually("event "+reason, func() string {
		var list eventsv1.EventList
		if err := e.List(e.Context(), &list, client.InNamespace(e.namespace)); err != nil {
			return err.Error()
		}
		for i := range list.Items {
			event := &list.Items[i]
			if event.Regarding.UID == object.GetUID() && event.Reason == reason && containsAll(event.Note, mentions) {
				return ""
			}
		}
		return fmt.Sprintf("not among %d events", len(list.Items))
	})
}

func containsAll(text string, words []string) bool {
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
}
