// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

func pullOn(nodes ...string) *plan.Plan {
	var out plan.Plan
	for _, node := range nodes {
		out.Pulls = append(out.Pulls, plan.Pull{ImageOnNode: plan.ImageOnNode{Node: node, Image: "app:2"}, Policy: corev1.PullAlways, Timeout: time.Minute})
	}
	return &out
}

func hasNone(t *testing.T, r *Reconciler, set *apps.CloneSet, owner string) {
	t.Helper()
	if pods, err := r.ListPods(t.Context(), set.Namespace, owner); len(pods) > 0 || err != nil {
		t.Errorf("%s has %d pull Pods, %v", owner, len(pods), err)
	}
}

// TestPullPods: a pull Pod pulls as the set's Pods do, is neither the set's nor an orphan, and
// there is one per node and image.
func TestPullPods(t *testing.T) {
	set := web()
	set.Spec.Template = apps.NewPodTemplate(corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			ServiceAccountName: "puller", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "login"}}, RuntimeClassName: new("gvisor"),
			Tolerations: []corev1.Toleration{{Key: "gpu"}}, Containers: []corev1.Container{{Name: "main", Image: "app:2"}},
		},
	})
	c := server(t, set)
	r, _ := reconcilerOn(c)
	r.Options.PullImage = "usher:1"
	for range 2 { // the cache may not show the first ones yet
		checktest.NoError(t, r.pullImages(t.Context(), set, pullOn("n1", "n2")))
	}
	pods, err := r.ListPods(t.Context(), set.Namespace, pullsKey(string(set.UID)))
	if err != nil || len(pods) != 2 {
		t.Fatalf("%d pull Pods, %v", len(pods), err)
	}
	hasNone(t, r, set, orphanKey)
	hasNone(t, r, set, string(set.UID))
	pod := pods[0]
	spec, container := &pod.Spec, &pod.Spec.Containers[0]
	got := []any{
		len(pod.OwnerReferences), pod.OwnerReferences[0].UID, metav1.GetControllerOf(pod), len(pod.Labels),
		plan.PulledBy(pod), spec.Volumes[0].Image.PullPolicy, container.VolumeMounts[0].Name,
		spec.ServiceAccountName, spec.ImagePullSecrets[0].Name, *spec.AutomountServiceAccountToken, spec.Tolerations[0].Key, *spec.RuntimeClassName,
		*spec.ActiveDeadlineSeconds, spec.RestartPolicy, container.Image,
		*spec.SecurityContext.RunAsNonRoot, *container.SecurityContext.AllowPrivilegeEscalation, *container.SecurityContext.ReadOnlyRootFilesystem,
	}
	want := []any{
		1, set.UID, (*metav1.OwnerReference)(nil), 1,
		plan.ImageOnNode{Node: spec.NodeName, Image: "app:2"}, corev1.PullAlways, spec.Volumes[0].Name,
		"puller", "login", false, "gpu", "gvisor",
		int64(60), corev1.RestartPolicyNever, "usher:1",
		true, false, true,
	}
	if diff := cmp.Diff(want, got); diff != "" || pod.Spec.NodeName == pods[1].Spec.NodeName {
		t.Errorf("a pull Pod on %s (-want +got):\n%s", spec.NodeName, diff)
	}
	if err := r.pullImages(t.Context(), set, &plan.Plan{EndPulls: pods}); err != nil || exists(t, c, pods[0]) || exists(t, c, pods[1]) {
		t.Errorf("pull Pods are left, %v", err)
	}
}

// TestRefusedPulls: a refusal is told once, and the update goes on; without an answer it waits.
func TestRefusedPulls(t *testing.T) {
	answer := apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
	c := interceptor.NewClient(server(t), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return answer },
	})
	r, events := reconcilerOn(c)
	for range 2 {
		decided := pullOn("n1")
		if err := r.pullImages(t.Context(), web(), decided); err != nil || !decided.More {
			t.Errorf("again: %t, %v", decided.More, err)
		}
	}
	if m := r.memory(keyOf(web())); !m.pullsRefused.Equal(now.Add(refusedFor)) {
		t.Errorf("refused until %s", m.pullsRefused)
	}
	checktest.Same(t, "events", []string{"Normal ImagePullSkipped"}, events.reasons)
	answer = apierrors.NewInternalError(errors.New("etcd"))
	if err := r.pullImages(t.Context(), anotherSet(), pullOn("n1")); !apierrors.IsInternalError(err) {
		t.Errorf("error = %v", err)
	}
}

// TestPullEvents: a pull Pod that gets further causes a pass of its set, and nothing else does.
func TestPullEvents(t *testing.T) {
	r, _ := reconcilerOn(server(t, web()))
	checktest.NoError(t, r.pullImages(t.Context(), web(), pullOn("n1")))
	pods := checktest.Must(r.ListPods(t.Context(), "default", pullsKey("set")))(t)
	pulling := pods[0].DeepCopy()
	pulling.Status.PodIP = "10.0.0.1"
	pulled := pulling.DeepCopy()
	pulled.Status.Phase = corev1.PodSucceeded
	for name, test := range map[string]struct {
		before, after *corev1.Pod
		want          int
	}{
		"an address": {pods[0], pulling, 0}, "the image": {pulling, pulled, 1},
	} {
		q := &queued{}
		r.PodEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.after}, q)
		checktest.Same(t, name+": passes", test.want, len(q.after))
	}
}
