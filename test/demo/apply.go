// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

const (
	fieldManager = "usher-demo"
	// usherUser is Usher's user, with only the rights of config/rbac.
	usherUser = "usher"
	pollEvery = 100 * time.Millisecond
	setupTime = 30 * time.Second
)

func newScheme() (*runtime.Scheme, error) {
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, appsv1alpha1.AddToScheme, usherv1alpha1.AddToScheme} {
		if err := add(all); err != nil {
			return nil, fmt.Errorf("register API types: %w", err)
		}
	}
	return all, nil
}

// kube writes objects as the administrator.
type kube struct{ client client.Client }

func newKube(config *rest.Config) (*kube, error) {
	all, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: all})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return &kube{client: c}, nil
}

// apply creates or changes an object (server-side apply) and returns its generation.
func (k *kube) apply(ctx context.Context, object *unstructured.Unstructured) (int64, error) {
	applied := object.DeepCopy()
	err := k.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied),
		client.FieldOwner(fieldManager), client.ForceOwnership)
	if err != nil {
		return 0, fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return applied.GetGeneration(), nil
}

// openNamespace creates the namespace and waits until Pods can be created there.
func (k *kube) openNamespace(ctx context.Context) error {
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := k.client.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", namespace, err)
	}
	return poll(ctx, "the service account of namespace "+namespace, func() (bool, error) {
		key := client.ObjectKey{Namespace: namespace, Name: "default"}
		err := k.client.Get(ctx, key, &corev1.ServiceAccount{})
		return err == nil, client.IgnoreNotFound(err)
	})
}

// change applies a step to a CloneSet and returns the resulting generation.
func (k *kube) change(ctx context.Context, name string, what step) (int64, error) {
	set := &appsv1alpha1.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if what.Patch != nil {
		data, err := encodePatch(what.Patch)
		if err != nil {
			return 0, err
		}
		if err := k.client.Patch(ctx, set, client.RawPatch(types.JSONPatchType, data)); err != nil {
			return 0, fmt.Errorf("patch CloneSet %s: %w", name, err)
		}
		return set.Generation, nil
	}
	return k.scale(ctx, set, what.Pods)
}

// scale changes the replicas as "kubectl scale" does.
func (k *kube) scale(ctx context.Context, set *appsv1alpha1.CloneSet, pods int) (int64, error) {
	body := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: int32(pods)}} // a handful
	body.Namespace, body.Name = set.Namespace, set.Name
	if err := k.client.SubResource("scale").Update(ctx, set, client.WithSubResourceBody(body)); err != nil {
		return 0, fmt.Errorf("scale CloneSet %s to %d: %w", set.Name, pods, err)
	}
	if err := k.client.Get(ctx, client.ObjectKeyFromObject(set), set); err != nil {
		return 0, fmt.Errorf("read CloneSet %s: %w", set.Name, err)
	}
	return set.Generation, nil
}

// remove deletes an object; it is not an error if it does not exist.
func (k *kube) remove(ctx context.Context, object *unstructured.Unstructured) error {
	if err := k.client.Delete(ctx, object.DeepCopy()); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

// poll waits for a condition that no watch reports.
func poll(ctx context.Context, what string, holds func() (bool, error)) error {
	limit := time.NewTimer(setupTime)
	defer limit.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		done, err := holds()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit.C:
			return &WaitError{What: what, Bound: setupTime}
		case <-tick.C:
		}
	}
}
