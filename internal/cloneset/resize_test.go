// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

func cpu(amount string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}}
}

// resizing is a drained Pod whose record asks for cpu 200m, and whose spec has 100m.
func resizing(edits ...func(*corev1.Pod)) *corev1.Pod {
	pod := podOf(web(), "web-a", inUpdate(corev1.ConditionFalse, time.Unix(0, 0)))
	pod.Generation, pod.Spec.NodeName = 3, "n1"
	pod.Labels[apps.LabelLifecycleState] = string(apps.StateUpdating)
	pod.Spec.Containers = []corev1.Container{{Name: "log"}, {Name: "main", Resources: cpu("100m")}}
	change := &inplace.Change{Resources: map[string]corev1.ResourceRequirements{"main": cpu("200m")}}
	pod.Annotations = map[string]string{apps.AnnotationInPlaceUpdateState: inplace.Begin(pod, change, "web-r2", time.Unix(0, 0)).State.String()}
	for _, edit := range edits {
		edit(pod)
	}
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
	after, err := patched(t, pod, data)
	if err != nil {
		t.Fatal(err)
	}
	if got := after.Spec.Containers[1].Resources.Requests.Cpu(); got.String() != "200m" || len(after.Spec.Containers[0].Resources.Requests) > 0 {
		t.Errorf("patched: %v", after.Spec.Containers)
	}
	stops(t, pod, data, map[string]func(*corev1.Pod){
		"service":        func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue },
		"another drain":  func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Unix(100, 0)) },
		"another spec":   func(p *corev1.Pod) { p.Generation++ },
		"another record": func(p *corev1.Pod) { p.Annotations[apps.AnnotationInPlaceUpdateState] = "{}" },
		"another Pod":    func(p *corev1.Pod) { p.UID = "uid-b" },
		"another state":  func(p *corev1.Pod) { p.Labels[apps.LabelLifecycleState] = "Normal" },
	})
	// Nothing is written twice, or over someone else's change.
	for name, edit := range map[string]func(*corev1.Pod){
		"written":   func(p *corev1.Pod) { p.Spec.Containers[1].Resources = cpu("0.2") },
		"no record": func(p *corev1.Pod) { p.Annotations = nil },
		"long done": func(p *corev1.Pod) { p.Labels[apps.LabelLifecycleState] = "Normal" }, // whoever changed it since did so on purpose
	} {
		pod := resizing(edit)
		if data, err := resizePatch(pod, &plan.Action{Pod: pod}); err != nil || data != nil {
			t.Errorf("%s: patch %s, %v", name, data, err)
		}
	}
}

// TestResizeAnswers: a refusal is reported as one, and never taken for a deleted Pod, a
// lost answer or a conflict.
func TestResizeAnswers(t *testing.T) {
	pods := corev1.Resource("pods")
	gone, same := apierrors.NewNotFound(pods, "web-a"), []client.Object{resizing()}
	for name, test := range map[string]struct {
		answer  error
		live    []client.Object
		refused bool
		is      func(error) bool
	}{
		"forbidden":                {apierrors.NewForbidden(pods, "web-a", errors.New("policy")), same, true, apierrors.IsForbidden},
		"invalid":                  {apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "web-a", nil), same, false, failedTest},
		"no such subresource":      {gone, same, true, apierrors.IsForbidden},
		"not supported":            {apierrors.NewMethodNotSupported(corev1.Resource("pods/resize"), "patch"), same, true, apierrors.IsForbidden},
		"the Pod is gone":          {gone, nil, false, apierrors.IsNotFound},
		"another Pod of that name": {gone, []client.Object{resizing(func(p *corev1.Pod) { p.UID = "uid-b" })}, false, apierrors.IsNotFound},
		"timed out":                {apierrors.NewTimeoutError("slow", 1), same, false, unanswered},
		"conflict":                 {apierrors.NewConflict(pods, "web-a", errors.New("newer")), same, false, apierrors.IsConflict},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reconcilerOn(interceptor.NewClient(server(t, test.live...), interceptor.Funcs{
				SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
					return test.answer
				},
			}))
			pod := resizing()
			_, err := r.patchResize(t.Context(), web(), pod, plan.Action{Verb: plan.Continue, Pod: pod})
			var refusal *resizeRefusal
			if errors.As(err, &refusal) != test.refused || !test.is(err) {
				t.Fatalf("err = %v", err)
			}
			if !test.refused {
				return
			}
			f := find(&plan.Plan{}, nil, []outcome{{action: plan.Action{Verb: plan.Continue}, err: err}})
			if f.failedUpdate.reason != plan.ProblemResize || !strings.Contains(f.failedUpdate.message, "containers main of Pod web-a") {
				t.Errorf("reported: %+v", f.failedUpdate)
			}
		})
	}
}
