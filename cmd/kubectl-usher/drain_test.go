// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

// TestDrainGivesUp drains a Pod that is never deleted, because its registry is down, until the
// command's time is over or the user presses Ctrl-C: before and after the deletion was asked for again.
// In each case the error names the Pod and says how to find what it waits for.
func TestDrainGivesUp(t *testing.T) {
	for _, after := range []time.Duration{askAgain / 2, askAgain + askAgain/2, 3*askAgain + askAgain/2} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, pod := heldPod(t, interceptor.Funcs{})
				ctx, cancel := context.WithTimeout(t.Context(), after)
				defer cancel()
				err := s.drain(ctx, pod, false)
				if err == nil || !strings.Contains(err.Error(), "kubectl usher why pod/cart-1 -n shop") {
					t.Errorf("%v, wanted an error that says how to find what the Pod waits for", err)
				}
			})
		})
	}
}

// TestDrainOutlivesItsWatch ends every watch at once, as a restarting API server does. The deletion is
// asked for a few times a minute, and not as fast as the API server answers.
func TestDrainOutlivesItsWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const minute, most = 12 * askAgain, 50
		ctx, cancel := context.WithTimeout(t.Context(), minute)
		defer cancel()
		asked := 0
		s, pod := heldPod(t, interceptor.Funcs{
			Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
				return watch.NewEmptyWatch(), nil
			},
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
				if asked++; asked > most {
					cancel()
				}
				return c.Get(ctx, key, o, options...)
			},
		})
		if err := s.drain(ctx, pod, false); err == nil {
			t.Error("a Pod that is still there counts as drained")
		}
		if asked < 3 || asked > most {
			t.Errorf("asked for the Pod %d times in a minute", asked)
		}
	})
}

// TestDrainPrintsInOrder: the API server is ahead of the watch. Lines are printed in the order of
// events, and none twice.
func TestDrainPrintsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now().UTC()
		leaves := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart-1", UID: "1", Labels: map[string]string{"app": "cart"}, Finalizers: []string{usherv1alpha1.Finalizer},
			Annotations: map[string]string{usherv1alpha1.AnnotationDeletionRequest: string(encode.JSON(usherv1alpha1.DeletionRequest{
				Since: metav1.NewMicroTime(began), At: metav1.NewMicroTime(began), By: "alice",
			}))},
		}}
		left := leaves.DeepCopy()
		left.Annotations[usherv1alpha1.AnnotationDrain] = string(encode.JSON(regplan.Record{
			Gate: regplan.GateRequested, Began: began, Gone: map[string]time.Time{"cart@discovery//cart": began}, Until: began.Add(5 * time.Second),
		}))
		registration := &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"}, Spec: usherv1alpha1.RegistrationSpec{
			Selector: usherv1alpha1.LabelSelector{MatchLabels: map[string]usherv1alpha1.LabelValue{"app": "cart"}}, Registries: []string{"discovery"},
		}}
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(left, registration).Build()
		var out bytes.Buffer
		s := &session{IOStreams: genericiooptions.IOStreams{Out: &out}, namespace: "shop", client: c, reader: c}
		d := &draining{session: s, pod: leaves, began: began, printed: map[string]bool{}}
		for _, pod := range []*corev1.Pod{leaves, left} {
			d.report(pod)
			d.why(t.Context())
		}
		const want = "   0.0s  pod/cart-1 leaves discovery before it is deleted, as alice asked\n" +
			"   0.0s  pod/cart-1 has left discovery\n   0.0s  pod/cart-1 may still be used by callers, 5s to go\n"
		checktest.Same(t, "output", want, out.String())
	})
}

// TestDrainWithoutRights: the plugin does not report an eviction that the API server has refused.
func TestDrainWithoutRights(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"a registered Pod": func(pod *corev1.Pod) { pod.Finalizers = []string{usherv1alpha1.Finalizer} },
		"a Pod of a CloneSet": func(pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apps.GroupVersion.String(), Kind: apps.KindCloneSet.Kind, Name: "cart", Controller: new(true)}}
		},
		"a plain Pod": func(*corev1.Pod) {},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-1", UID: "1"}}
		change(pod)
		no := apierrors.NewForbidden(corev1.Resource("pods"), pod.Name, nil)
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pod).WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return no
			},
			Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return no },
		}).Build()
		var out bytes.Buffer
		s := &session{IOStreams: genericiooptions.IOStreams{Out: &out}, namespace: "shop", client: c, reader: c}
		d := &draining{session: s, pod: pod, printed: map[string]bool{}}
		if _, err := d.step(t.Context(), pod); !apierrors.IsForbidden(err) || out.Len() > 0 {
			t.Errorf("%s: %v, after it printed\n%s", name, err, out.String())
		}
	}
}

// heldPod returns a terminating Pod that Usher's finalizer holds and that does not change, and a
// session that can drain it.
func heldPod(t *testing.T, funcs interceptor.Funcs) (*session, *corev1.Pod) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-1", UID: "1", DeletionTimestamp: new(metav1.Now()), Finalizers: []string{usherv1alpha1.Finalizer}}}
	made := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(funcs).WithObjects(pod).
		WithIndex(&corev1.Pod{}, "metadata.name", func(o client.Object) []string { return []string{o.GetName()} }).Build()
	return &session{IOStreams: genericiooptions.IOStreams{Out: &bytes.Buffer{}}, namespace: "shop", client: made, reader: made}, pod
}
