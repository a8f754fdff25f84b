// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

const (
	port = "8080"
	// fewest and most are the bounds of a workload's replicas.
	fewest, most = 2, 5
	// bound is how long a change may take: as long as a node is lost, and then its drains.
	bound = 4 * time.Minute
)

// workload is a CloneSet or a Deployment with its callers, those of one registry each.
type workload struct {
	name                 string
	about                []string // the changes that it can have
	object, registration *unstructured.Unstructured
	callers              []*traffic.Client
	random               *rand.Rand
	releases             int
	// leaving is held while a Pod is taken out of service: two at once might take all serving Pods.
	leaving sync.Mutex
}

// The changes of workloads. The API server refuses evictions, and deletions of a Deployment's Pods,
// until the Pods are drained: these need the guard.
const (
	image   = "new image"
	release = "new variable"
	scale   = "other scale"
	named   = "Pod named for deletion"
	deleted = "Pod deleted"
	evicted = "Pod evicted"
	drained = "node drained"
)

// change creates a workload, and draws changes of it, each when the one before is done, until the
// requests are through.
func (s *soak) change(ctx context.Context, w *workload) error {
	for _, object := range []*unstructured.Unstructured{w.registration, w.object} {
		if err := s.apply(ctx, object); err != nil {
			return err
		}
	}
	if err := s.settle(ctx, w, nil); err != nil {
		return err
	}
	for {
		what := w.about[w.random.IntN(len(w.about))]
		if s.pause(ctx, within(w.random, 5*time.Second)) {
			return context.Cause(ctx)
		}
		if err := s.act(ctx, w, what); err != nil {
			return fmt.Errorf("%s: %s: %w", w.name, what, err)
		}
	}
}

func (s *soak) act(ctx context.Context, w *workload, what string) error {
	if what == deleted || what == evicted || w.object.GetKind() == "Deployment" {
		s.guarded.RLock()
		defer s.guarded.RUnlock()
	}
	if slices.Contains([]string{named, deleted, evicted}, what) {
		w.leaving.Lock()
		defer w.leaving.Unlock()
	}
	began := time.Now()
	victim, err := s.start(ctx, w, what)
	if err != nil {
		return err
	}
	if err := s.settle(ctx, w, victim); err != nil {
		return err
	}
	s.count(s.changes, what)
	s.say("%s: %s, done in %s", w.name, what, stage.Seconds(time.Since(began)))
	return nil
}

// start makes a change, and returns the Pod that it removes, if there is one.
func (s *soak) start(ctx context.Context, w *workload, what string) (victim *corev1.Pod, err error) {
	switch what {
	case image, release, scale:
		if err := w.edit(what); err != nil {
			return nil, err
		}
		return nil, s.apply(ctx, w.object)
	}
	pods, err := s.pods(ctx, client.MatchingLabels(w.labels()))
	if err != nil || len(pods) == 0 {
		return nil, errors.Join(err, errors.New("there is no Pod"))
	}
	victim = &pods[w.random.IntN(len(pods))]
	return victim, s.try(ctx, func(ctx context.Context) error {
		pod := victim.DeepCopy()
		switch what {
		case deleted:
			return s.Kube.Delete(ctx, pod)
		case evicted:
			return s.Kube.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{})
		}
		return s.Kube.Patch(ctx, pod, client.RawPatch(types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, appsv1alpha1.LabelSpecifiedDelete)))
	})
}

// edit changes the object.
func (w *workload) edit(what string) (err error) {
	if what == scale {
		replicas := fewest + w.random.IntN(most-fewest)
		if int64(replicas) >= w.replicas() { // another one than before
			replicas++
		}
		return unstructured.SetNestedField(w.object.Object, int64(replicas), "spec", "replicas")
	}
	w.releases++ // The manifests begin with v1.
	container := fmt.Sprintf(`env: [{name: RELEASE, value: "%d"}]`, w.releases)
	if what == image {
		container = fmt.Sprintf(`image: "example.com/web:v%d"`, 1+w.releases)
	}
	w.object, err = stage.Merge(w.object, stage.CloneSet{},
		"spec: {template: {spec: {containers: [{name: main, "+container+"}]}}}")
	return err
}

func (w *workload) replicas() int64 {
	n, _, _ := unstructured.NestedInt64(w.object.Object, "spec", "replicas")
	return n
}

func (w *workload) labels() map[string]string {
	labels, _, _ := unstructured.NestedStringMap(w.object.Object, "spec", "selector", "matchLabels")
	return labels
}

// settle waits until a workload is as it should be, and its callers know all its Pods.
func (s *soak) settle(ctx context.Context, w *workload, victim *corev1.Pod) error {
	return stage.Try(ctx, bound, w.name+" to be as it is to be", func(ctx context.Context) error {
		pods, err := s.pods(ctx, client.MatchingLabels(w.labels()))
		if err != nil {
			return err
		}
		return w.lacks(pods, victim)
	})
}

// lacks says what is missing until the workload is as it should be.
func (w *workload) lacks(pods []corev1.Pod, victim *corev1.Pod) error {
	want := w.template()
	var addresses []string
	for i := range pods {
		p := &pods[i]
		state := p.Labels[appsv1alpha1.LabelLifecycleState]
		switch {
		case victim != nil && p.UID == victim.UID, p.DeletionTimestamp != nil:
			return errors.New(p.Name + " is still there")
		case templateOf(p) != want, !strings.HasSuffix(want.image, ":"+stage.Version(p)):
			return errors.New(p.Name + " is not updated")
		case !stage.Ready(p), state != "" && state != string(appsv1alpha1.StateNormal):
			return errors.New(p.Name + " is not ready, or in " + state)
		}
		addresses = append(addresses, net.JoinHostPort(p.Status.PodIP, port))
	}
	slices.Sort(addresses)
	for _, c := range w.callers {
		if known := c.Known(); !slices.Equal(known, addresses) {
			return fmt.Errorf("callers know %v, and there are %v", known, addresses)
		}
	}
	if len(pods) != int(w.replicas()) {
		return fmt.Errorf("there are %d Pods of %d", len(pods), w.replicas())
	}
	return nil
}

// template has the fields of a template that edit changes.
type template struct{ image, release string }

func templateOf(pod *corev1.Pod) template {
	main := pod.Spec.Containers[0]
	if len(main.Env) == 0 {
		return template{image: main.Image}
	}
	return template{main.Image, main.Env[0].Value}
}

func (w *workload) template() template {
	pod := &corev1.Pod{}
	object, _, _ := unstructured.NestedMap(w.object.Object, "spec", "template")
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, pod); err != nil {
		panic(err) // The API server has taken it.
	}
	return templateOf(pod)
}

// pods lists Pods from the cache, or, where that can lag, from the API server.
func (s *soak) pods(ctx context.Context, which ...client.ListOption) ([]corev1.Pod, error) {
	var (
		list corev1.PodList
		from client.Reader = s.objects
	)
	if s.options.HA {
		from = s.Kube
	}
	err := from.List(ctx, &list, append(which, client.InNamespace(namespace))...)
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, err
}

// try repeats a call that fails because the API server is down, or because a Pod may not be deleted
// yet.
func (s *soak) try(ctx context.Context, act func(context.Context) error) error {
	return stage.Try(ctx, bound, "an answer of the API server", func(ctx context.Context) error {
		return client.IgnoreNotFound(act(ctx))
	})
}

func (s *soak) apply(ctx context.Context, object *unstructured.Unstructured) error {
	return s.try(ctx, func(ctx context.Context) error { _, err := stage.Apply(ctx, s.Kube, object); return err })
}

// drain drains nodes as kubectl drain does, one after the other, until the requests are through.
func (s *soak) drain(ctx context.Context) error {
	random := s.random(1)
	for {
		node := fmt.Sprintf("node-%d", 1+random.IntN(nodes))
		if s.pause(ctx, 20*time.Second+within(random, 20*time.Second)) {
			return context.Cause(ctx)
		}
		if err := s.drainNode(ctx, node); err != nil {
			return fmt.Errorf("drain %s: %w", node, err)
		}
	}
}

func (s *soak) drainNode(ctx context.Context, node string) error {
	s.guarded.RLock()
	defer s.guarded.RUnlock()
	cordon := func(yes bool) error {
		return s.try(ctx, func(ctx context.Context) error { return stage.Cordon(ctx, s.Kube, node, yes) })
	}
	began := time.Now()
	if err := cordon(true); err != nil {
		return err
	}
	pods, err := s.pods(ctx)
	if err != nil {
		return err
	}
	for i := range pods {
		if pods[i].Spec.NodeName != node {
			continue
		}
		if err := s.evict(ctx, &pods[i]); err != nil {
			return err
		}
	}
	s.count(s.changes, drained)
	s.say("%s: drained in %s", node, stage.Seconds(time.Since(began)))
	return cordon(false)
}

// evict evicts a Pod, and waits until its workload has another one in its place.
func (s *soak) evict(ctx context.Context, pod *corev1.Pod) error {
	of := func(w *workload) bool { return labels.SelectorFromSet(w.labels()).Matches(labels.Set(pod.Labels)) }
	w := s.workloads[slices.IndexFunc(s.workloads, of)]
	w.leaving.Lock()
	defer w.leaving.Unlock()
	err := s.try(ctx, func(ctx context.Context) error {
		return s.Kube.SubResource("eviction").Create(ctx, pod.DeepCopy(), &policyv1.Eviction{})
	})
	if err != nil {
		return err
	}
	return s.settle(ctx, w, pod)
}
