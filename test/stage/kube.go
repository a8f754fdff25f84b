// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"errors"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

const (
	fieldManager = "usher-stage"
	pollEvery    = 100 * time.Millisecond
	setupTime    = 30 * time.Second
)

// NewClient returns a client that knows Usher's types.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	all := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(all), appsv1alpha1.AddToScheme(all), usherv1alpha1.AddToScheme(all)); err != nil {
		return nil, fmt.Errorf("register API types: %w", err)
	}
	kube, err := client.NewWithWatch(config, client.Options{Scheme: all})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return kube, nil
}

// Apply creates or changes an object as "kubectl apply --server-side" does, and returns
// its generation.
func Apply(ctx context.Context, kube client.Client, object *unstructured.Unstructured) (int64, error) {
	applied := object.DeepCopy()
	err := kube.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(fieldManager), client.ForceOwnership)
	if err != nil {
		return 0, fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return applied.GetGeneration(), nil
}

// Scale scales a workload as "kubectl scale" and autoscalers do, and returns its
// generation.
func Scale(ctx context.Context, kube client.Client, set client.Object, pods int) (int64, error) {
	scale := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: set.GetNamespace(), Name: set.GetName()},
		Spec:       autoscalingv1.ScaleSpec{Replicas: int32(pods)},
	}
	if err := kube.SubResource("scale").Update(ctx, set, client.WithSubResourceBody(scale)); err != nil {
		return 0, fmt.Errorf("scale %s to %d: %w", set.GetName(), pods, err)
	}
	if err := kube.Get(ctx, client.ObjectKeyFromObject(set), set); err != nil {
		return 0, fmt.Errorf("read %s: %w", set.GetName(), err)
	}
	return set.GetGeneration(), nil
}

// OpenNamespace creates a namespace and waits until Pods can be created in it.
func OpenNamespace(ctx context.Context, kube client.Client, name string) error {
	if err := kube.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return Poll(ctx, setupTime, "the service account of namespace "+name, func(ctx context.Context) (bool, error) {
		err := kube.Get(ctx, client.ObjectKey{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
		return err == nil, client.IgnoreNotFound(err)
	})
}

// Pause waits for a time.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// Poll waits until a condition holds that no watch reports.
func Poll(ctx context.Context, limit time.Duration, what string, holds wait.ConditionWithContextFunc) error {
	err := wait.PollUntilContextTimeout(ctx, pollEvery, limit, true, holds)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("wait at most %s for %s: %w", limit, what, err)
	}
	return nil
}
