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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/view"
)

// load reads a workload and what belongs to it. A Pod comes with its CloneSet, which says what
// holds it.
func (s *session) load(ctx context.Context, t target) (view.Workload, error) {
	object, err := scheme.New(t.kind)
	if err != nil {
		return view.Workload{}, err
	}
	workload := object.(client.Object)
	if err := s.get(ctx, t, workload); err != nil {
		return view.Workload{}, err
	}
	pod, _ := workload.(*corev1.Pod)
	if owner := cloneSetOf(workload); pod != nil && owner != "" {
		workload = &apps.CloneSet{}
		if err := s.get(ctx, target{kindCloneSet, owner}, workload); err != nil {
			return view.Workload{}, err
		}
	}
	o, err := s.gather(ctx, workload, append(kindsBelow(workload), kindRegistration)...)
	if err != nil {
		return view.Workload{}, err
	}
	if pod != nil {
		o.Pods = slices.DeleteFunc(o.Pods, func(other *corev1.Pod) bool { return other.UID != pod.UID })
	}
	return view.Of(o), nil
}

// kindsBelow are the kinds of what a workload controls.
func kindsBelow(workload client.Object) []schema.GroupVersionKind {
	switch workload.(type) {
	case *apps.CloneSet:
		return []schema.GroupVersionKind{kindRevision, kindPod}
	case *appsv1.Deployment:
		return []schema.GroupVersionKind{kindReplicaSet, kindPod}
	case *corev1.Pod:
		return nil
	}
	return onlyPods
}

// cloneSetOf is the name of the CloneSet that controls an object; "" if none does.
func cloneSetOf(object client.Object) string {
	if owner := metav1.GetControllerOf(object); owner != nil && owner.Kind == apps.KindCloneSet.Kind {
		return owner.Name
	}
	return ""
}

// gather reads the objects of those kinds, and chooses what belongs to a workload.
func (s *session) gather(ctx context.Context, workload client.Object, kinds ...schema.GroupVersionKind) (view.Objects, error) {
	all, err := s.read(ctx, kinds...)
	return view.Gather(time.Now(), workload, all), err
}

// revisions are the CloneSet's ControllerRevisions, the oldest first.
func (s *session) revisions(ctx context.Context, set *apps.CloneSet) ([]*appsv1.ControllerRevision, error) {
	o, err := s.gather(ctx, set, kindRevision)
	return o.Revisions, err
}

// read lists the namespace's objects of those kinds. A cluster may have no such kind, as one
// without the hook operator.
func (s *session) read(ctx context.Context, kinds ...schema.GroupVersionKind) (all []metav1.Object, err error) {
	for _, kind := range kinds {
		some, err := s.list(ctx, kind, client.InNamespace(s.namespace))
		if err != nil && !meta.IsNoMatchError(err) {
			return nil, failed(err, "list %s", plural(kind))
		}
		all = append(all, some...)
	}
	return all, nil
}

// list lists objects of a kind, in all namespaces unless the options name one.
func (s *session) list(ctx context.Context, kind schema.GroupVersionKind, options ...client.ListOption) (all []metav1.Object, err error) {
	made, err := scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err != nil {
		return nil, err
	}
	if err := s.reader.List(ctx, made.(client.ObjectList), options...); err != nil {
		return nil, err
	}
	err = meta.EachListItem(made, func(item runtime.Object) error {
		all = append(all, item.(metav1.Object))
		return nil
	})
	return all, err
}
