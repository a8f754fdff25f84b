// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
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
	"github.com/usher-dev/usher/internal/registration/registry/xds"
)

const (
	// patience bounds every wait for something that must happen.
	patience = 30 * time.Second
	poll     = 20 * time.Millisecond
)

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, appsv1alpha1.AddToScheme, usherv1alpha1.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err) // A group that cannot be registered is a bug in this file.
		}
	}
	return s
}

// applyCRDs installs the generated CRDs and waits until they are served.
func applyCRDs(config *rest.Config) error {
	c, err := client.New(config, client.Options{Scheme: scheme()})
	if err != nil {
		return err
	}
	files, err := filepath.Glob("../../../config/crd/*.yaml")
	if err != nil || len(files) == 0 {
		return fmt.Errorf("found no CRD in config/crd: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(data, &crd); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := c.Create(ctx, &crd); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := established(ctx, c, &crd); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

func established(ctx context.Context, c client.Client, crd *apiextensionsv1.CustomResourceDefinition) error {
	return wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
			return false, err
		}
		return slices.ContainsFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
		}), nil
	})
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
	c, err := client.New(shared.RESTConfig(), client.Options{Scheme: scheme()})
	if err != nil {
		t.Fatal(err)
	}
	e := &env{T: t, Client: c}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "story-"}}
	e.create(namespace)
	e.namespace = namespace.Name
	e.start()
	t.Cleanup(func() { e.stop() })
	return e
}

// start runs the operator until stop.
func (e *env) start() {
	e.Helper()
	log := quiet(e.T)
	ctrl.SetLogger(log)
	mgr, err := ctrl.NewManager(shared.RESTConfig(), ctrl.Options{
		Scheme: scheme(), Logger: log, Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&discoveryv1.EndpointSlice{}: xds.Cache()}},
	})
	if err != nil {
		e.Fatal(err)
	}
	options := registration.Options{Registerer: prometheus.NewRegistry()}
	if e.xds != "" {
		options.XDS, err = xds.Setup(e.Context(), mgr, xds.ServerOptions{Address: e.xds, Registerer: options.Registerer})
		if err != nil {
			e.Fatal(err)
		}
	}
	if err := registration.Setup(mgr, options); err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	e.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			e.Errorf("the operator ended with: %v", err)
		}
	})
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
		if err := e.Create(e.Context(), object); err != nil {
			e.Fatalf("create %T %s: %v", object, object.GetName(), err)
		}
	}
}

// eventually waits until check returns "", or fails with the last answer.
func (e *env) eventually(what string, check func() string) {
	e.Helper()
	last := "never checked"
	err := wait.PollUntilContextTimeout(e.Context(), poll, patience, true, func(context.Context) (bool, error) {
		last = check()
		return last == "", nil
	})
	if err != nil {
		e.Fatalf("%s: %s", what, last)
	}
}

// never checks for some time that check keeps returning "".
func (e *env) never(what string, during time.Duration, check func() string) {
	e.Helper()
	_ = wait.PollUntilContextTimeout(e.Context(), poll, during, true, func(context.Context) (bool, error) {
		if wrong := check(); wrong != "" {
			e.Fatalf("%s: %s", what, wrong)
		}
		return false, nil
	})
}

func (e *env) pod(name string) *corev1.Pod {
	e.Helper()
	var pod corev1.Pod
	if err := e.Get(e.Context(), client.ObjectKey{Namespace: e.namespace, Name: name}, &pod); err != nil {
		e.Fatal(err)
	}
	return &pod
}

func (e *env) gone(name string) bool {
	e.Helper()
	var pod corev1.Pod
	return apierrors.IsNotFound(e.Get(e.Context(), client.ObjectKey{Namespace: e.namespace, Name: name}, &pod))
}

// patch changes one object as another client would, regardless of versions.
func (e *env) patch(object client.Object, body map[string]any) {
	e.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		e.Fatal(err)
	}
	if err := e.Patch(e.Context(), object, client.RawPatch("application/merge-patch+json", data)); err != nil {
		e.Fatal(err)
	}
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
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	base := pod.DeepCopy()
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, ip
	pod.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	for _, kind := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
		if at < 0 {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind})
			at = len(pod.Status.Conditions) - 1
		}
		pod.Status.Conditions[at].Status = status
		pod.Status.Conditions[at].LastTransitionTime = metav1.Now()
	}
	if err := e.Status().Patch(e.Context(), pod, client.StrategicMergeFrom(base)); err != nil {
		e.Fatal(err)
	}
}

// cloneSet creates a CloneSet from YAML; only the test acts on it.
func (e *env) cloneSet(text string) *appsv1alpha1.CloneSet {
	e.Helper()
	var set appsv1alpha1.CloneSet
	if err := yaml.Unmarshal([]byte(text), &set); err != nil {
		e.Fatal(err)
	}
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
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.namespace, Name: set.Name + "-" + id, Labels: labels,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet", Name: set.Name, UID: set.UID, Controller: &yes,
			}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx:latest"}}},
	}
	e.create(pod)
	return pod
}

// registration reads the Registration that newRegistration created.
func (e *env) registration() *usherv1alpha1.Registration {
	e.Helper()
	var r usherv1alpha1.Registration
	if err := e.Get(e.Context(), client.ObjectKey{Namespace: e.namespace, Name: registrationName}, &r); err != nil {
		e.Fatal(err)
	}
	return &r
}

// condition waits for a condition of the Registration.
func (e *env) condition(kind string, status metav1.ConditionStatus, reason string, mentions ...string) {
	e.Helper()
	e.eventually("condition "+kind, func() string {
		c := meta.FindStatusCondition(e.registration().Status.Conditions, kind)
		if c == nil || c.Status != status || reason != "" && c.Reason != reason {
			return fmt.Sprintf("is %+v, want %s %s", c, status, reason)
		}
		for _, word := range mentions {
			if !strings.Contains(c.Message, word) {
				return fmt.Sprintf("message %q does not mention %q", c.Message, word)
			}
		}
		return ""
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
