// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

func cpu(amount string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}}
}

// resizing is a drained Pod whose record asks for cpu 200m, and whose spec has 100m.
func resizing() *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "a", UID: "uid-a", Generation: 3, Annotations: map[string]string{},
			Labels: map[string]string{apps.LabelLifecycleState: string(apps.StateUpdating)},
		},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "log"}, {Name: "main", Resources: cpu("100m")}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
			Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionFalse,
		}}},
	}
	change := &inplace.Change{Resources: map[string]corev1.ResourceRequirements{"main": cpu("200m")}}
	pod.Annotations[apps.AnnotationInPlaceUpdateState] = inplace.Begin(pod, change, "web-r2", time.Unix(0, 0)).State.String()
	return pod
}

// TestResizePatch: the patch sets the resources of the right container, and depends on
// the Pod being drained, in the update, and unchanged since it was observed.
func TestResizePatch(t *testing.T) {
	pod := resizing()
	data, err := resizePatch(pod, &plan.Action{Verb: plan.Continue, Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(data)
	if err != nil {
		t.Fatal(err)
	}
	apply := func(edit func(*corev1.Pod)) (string, error) {
		live := resizing()
		edit(live)
		document, err := encode(live)
		if err != nil {
			t.Fatal(err)
		}
		after, err := patch.Apply(document)
		return string(after), err
	}
	after, err := apply(func(*corev1.Pod) {})
	if err != nil || !strings.Contains(after, `"name":"main","resources":{"requests":{"cpu":"200m"}}`) {
		t.Errorf("patched: %s, %v", after, err)
	}
	for name, edit := range map[string]func(*corev1.Pod){
		"in service again": func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue },
		"drained anew since": func(p *corev1.Pod) {
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Unix(100, 0))
		},
		"another spec":   func(p *corev1.Pod) { p.Generation++ },
		"another record": func(p *corev1.Pod) { p.Annotations[apps.AnnotationInPlaceUpdateState] = "{}" },
		"another Pod":    func(p *corev1.Pod) { p.UID = "uid-b" },
		"another state":  func(p *corev1.Pod) { p.Labels[apps.LabelLifecycleState] = "Normal" },
	} {
		if _, err := apply(edit); err == nil {
			t.Errorf("%s: the patch applies", name)
		}
	}
}

// TestResizePatchIsOnlyWhereItIsDue: nothing is written twice, or over someone else's
// change.
func TestResizePatchIsOnlyWhereItIsDue(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Pod){
		"written":   func(p *corev1.Pod) { p.Spec.Containers[1].Resources = cpu("0.2") },
		"no record": func(p *corev1.Pod) { p.Annotations = nil },
		"long done": func(p *corev1.Pod) { p.Labels[apps.LabelLifecycleState] = "Normal" }, // whoever changed it since did so on purpose
	} {
		pod := resizing()
		edit(pod)
		if data, err := resizePatch(pod, &plan.Action{Pod: pod}); err != nil || data != nil {
			t.Errorf("%s: patch %s, %v", name, data, err)
		}
	}
}

// answeringClient answers a resize with an error.
type answeringClient struct {
	client.Client
	err error
}

// SubResource returns a client of any subresource.
func (c answeringClient) SubResource(string) client.SubResourceClient {
	return resizeClient{err: c.err}
}

type resizeClient struct {
	client.SubResourceClient
	err error
}

// Patch answers.
func (c resizeClient) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return c.err
}

// podReader has one Pod, or none.
type podReader struct {
	client.Reader
	live *corev1.Pod
}

// Get reads the Pod.
func (r podReader) Get(_ context.Context, _ client.ObjectKey, out client.Object, _ ...client.GetOption) error {
	if r.live == nil {
		return apierrors.NewNotFound(corev1.Resource("pods"), "a")
	}
	r.live.DeepCopyInto(out.(*corev1.Pod))
	return nil
}

// TestResizeAnswers: a refusal is reported as one, and never taken for a deleted Pod, a
// lost answer or a conflict.
func TestResizeAnswers(t *testing.T) {
	gone := apierrors.NewNotFound(corev1.Resource("pods"), "a")
	other := resizing()
	other.UID = "uid-b"
	tests := []struct {
		name    string
		err     error
		live    *corev1.Pod
		refused bool
		is      func(error) bool
	}{
		{"forbidden", apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("policy")), resizing(), true, apierrors.IsForbidden},
		{"invalid", apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "a", nil), resizing(), false, failedTest},
		{"no such subresource", gone, resizing(), true, apierrors.IsForbidden},
		{"not supported", apierrors.NewMethodNotSupported(corev1.Resource("pods/resize"), "patch"), resizing(), true, apierrors.IsForbidden},
		{"the Pod is gone", gone, nil, false, apierrors.IsNotFound},
		{"another Pod of that name", gone, other, false, apierrors.IsNotFound},
		{"timed out", apierrors.NewTimeoutError("slow", 1), resizing(), false, unanswered},
		{"conflict", apierrors.NewConflict(corev1.Resource("pods"), "a", errors.New("newer")), resizing(), false, apierrors.IsConflict},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := &Reconciler{Client: answeringClient{err: test.err}, Reader: podReader{live: test.live}, Clock: clock.RealClock{}, pods: newOverlay[*corev1.Pod]()}
			pod := resizing()
			_, err := r.patchResize(t.Context(), &apps.CloneSet{}, pod, plan.Action{Verb: plan.Continue, Pod: pod})
			var refusal *resizeRefusal
			if errors.As(err, &refusal) != test.refused || !test.is(err) {
				t.Fatalf("err = %v", err)
			}
			if !test.refused {
				return
			}
			f := find(&plan.Plan{}, nil, []outcome{{action: plan.Action{Verb: plan.Continue}, err: err}})
			if f.failedUpdate.reason != plan.ProblemResize || !strings.Contains(f.failedUpdate.message, "containers main of Pod a") {
				t.Errorf("reported: %+v", f.failedUpdate)
			}
		})
	}
}
