// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/view"
)

// workloads are the kinds that a view can be made of.
var workloads = []schema.GroupKind{kindCloneSet, kindDeployment, kindStatefulSet, kindDaemonSet, kindReplicaSet, kindPod}

// What some commands are for.
var (
	onlyCloneSets = []schema.GroupKind{kindCloneSet}
	onlyPods      = []schema.GroupKind{kindPod}
	drainable     = []schema.GroupKind{kindPod, kindNode}
)

// load reads a workload and what belongs to it.
func (s *session) load(ctx context.Context, t target) (view.Workload, error) {
	o, err := s.registrations(ctx)
	if err != nil {
		return view.Workload{}, err
	}
	switch t.kind {
	case kindCloneSet:
		err = s.loadCloneSet(ctx, t, &o)
	case kindPod:
		err = s.loadPod(ctx, t, &o)
	default:
		err = s.loadOther(ctx, t, &o)
	}
	if err != nil {
		return view.Workload{}, err
	}
	return view.Of(o), nil
}

// registrations begins to read a workload.
func (s *session) registrations(ctx context.Context) (view.Objects, error) {
	o := view.Objects{Now: time.Now()}
	var registrations usherv1alpha1.RegistrationList
	// Without the hook operator there are none.
	if err := s.reader.List(ctx, &registrations, client.InNamespace(s.namespace)); err != nil && !meta.IsNoMatchError(err) {
		return o, failed(err, "list Registrations")
	}
	o.Registrations = pointers(registrations.Items)
	return o, nil
}

func (s *session) loadCloneSet(ctx context.Context, t target, o *view.Objects) error {
	o.Set = &apps.CloneSet{}
	if err := s.get(ctx, t, o.Set); err != nil {
		return err
	}
	return s.loadOwned(ctx, o)
}

// loadOwned reads what a CloneSet owns.
func (s *session) loadOwned(ctx context.Context, o *view.Objects) (err error) {
	if o.Revisions, err = s.revisions(ctx, o.Set); err != nil {
		return err
	}
	o.Pods, err = s.podsOf(ctx, o.Set)
	return err
}

// revisions are the CloneSet's ControllerRevisions, the oldest first.
func (s *session) revisions(ctx context.Context, set *apps.CloneSet) ([]*appsv1.ControllerRevision, error) {
	var all appsv1.ControllerRevisionList
	if err := s.reader.List(ctx, &all, client.InNamespace(s.namespace)); err != nil {
		return nil, failed(err, "list ControllerRevisions")
	}
	found := owned(pointers(all.Items), client.Object(set))
	slices.SortFunc(found, func(a, b *appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	return found, nil
}

// loadPod reads a Pod together with its CloneSet, which says what holds it.
func (s *session) loadPod(ctx context.Context, t target, o *view.Objects) error {
	pod := &corev1.Pod{}
	if err := s.get(ctx, t, pod); err != nil {
		return err
	}
	o.Pods = []*corev1.Pod{pod}
	owner := metav1.GetControllerOf(pod)
	if owner != nil && owner.Kind == apps.KindCloneSet.Kind {
		if err := s.loadCloneSet(ctx, target{kindCloneSet, owner.Name}, o); err != nil {
			return err
		}
		o.Pods = slices.DeleteFunc(o.Pods, func(other *corev1.Pod) bool { return other.UID != pod.UID })
		return nil
	}
	o.Other = view.Summary{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, Desired: 1, Pods: 1}
	return nil
}

// loadOther reads a workload of Kubernetes' own kinds.
func (s *session) loadOther(ctx context.Context, t target, o *view.Objects) error {
	object := t.object()
	if err := s.get(ctx, t, object); err != nil {
		return err
	}
	o.Other = view.SummaryOf(object)
	var err error
	o.Pods, err = s.podsBelow(ctx, t, object)
	return err
}

// podsBelow are the workload's Pods; those of a Deployment belong to its ReplicaSets.
func (s *session) podsBelow(ctx context.Context, t target, object client.Object) ([]*corev1.Pod, error) {
	if t.kind != kindDeployment {
		return s.podsOf(ctx, object)
	}
	var sets appsv1.ReplicaSetList
	if err := s.reader.List(ctx, &sets, client.InNamespace(s.namespace)); err != nil {
		return nil, failed(err, "list ReplicaSets")
	}
	var pods corev1.PodList
	if err := s.reader.List(ctx, &pods, client.InNamespace(s.namespace)); err != nil {
		return nil, failed(err, "list Pods")
	}
	return byOwner(pointers(pods.Items), controllers(sets.Items))[object.GetUID()], nil
}
