// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

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

// asGolden compares a pull Pod with testdata/pull.yaml.
func asGolden(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	got, want := pod.DeepCopy(), &corev1.Pod{}
	got.ResourceVersion, got.TypeMeta = "", metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	text, err := os.ReadFile("testdata/pull.yaml")
	checktest.NoError(t, errors.Join(err, yaml.UnmarshalStrict(text, want)))
	checktest.Same(t, "a pull Pod", want, got)
}

// TestPullPods: a pull Pod pulls like the set's Pods, counts neither as the set's nor as an orphan, and
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
		checktest.NoError(t, pull(t, r, set, pullOn("n1", "n2")).err)
	}
	pods, err := r.ListPods(t.Context(), set.Namespace, pullsKey(string(set.UID)))
	if err != nil || len(pods) != 2 {
		t.Fatalf("%d pull Pods, %v", len(pods), err)
	}
	hasNone(t, r, set, orphanKey)
	hasNone(t, r, set, string(set.UID))
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Spec.NodeName, b.Spec.NodeName) })
	asGolden(t, pods[0])
	checktest.Same(t, "the node of the other pull Pod", "n2", pods[1].Spec.NodeName)
	if err := pull(t, r, set, &plan.Plan{EndPulls: pods}).err; err != nil || exists(t, c, pods[0]) || exists(t, c, pods[1]) {
		t.Errorf("pull Pods are left, %v", err)
	}
}

// pull does what a pass does with the pull Pods of a plan.
func pull(t *testing.T, r *Reconciler, set *apps.CloneSet, decided *plan.Plan) pullResults {
	return r.pullImages(t.Context(), &observation{set: set, snapshot: &plan.Snapshot{}}, decided)
}

// TestRefusedPulls: a refusal is reported once, and the update goes on; without an answer it waits.
func TestRefusedPulls(t *testing.T) {
	var answer error
	c := interceptor.NewClient(server(t), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return answer },
	})
	for _, answer = range []error{
		apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota")),
		apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "", nil),
		apierrors.NewBadRequest("image volumes are unknown"),
	} {
		r, events := reconcilerOn(c)
		for range 2 {
			done := &results{pulls: pull(t, r, web(), pullOn("n1"))}
			if done.pulls.err != nil || !done.more() {
				t.Errorf("%v: again: %t, %v", answer, done.more(), done.pulls.err)
			}
			checktest.Same(t, answer.Error()+": refused until", now.Add(refusedFor), done.pulls.refusedUntil)
			r.reportPulls(web(), &done.pulls)
		}
		checktest.Same(t, answer.Error()+": events", []string{"Normal ImagePullSkipped"}, events.reasons)
	}
	r, events := reconcilerOn(c)
	for _, answer = range []error{apierrors.NewInternalError(errors.New("etcd")), apierrors.NewTooManyRequests("later", 1)} {
		done := &results{pulls: pull(t, r, web(), pullOn("n1"))}
		r.reportPulls(web(), &done.pulls)
		if !errors.Is(done.pulls.err, answer) || done.more() || len(events.reasons) > 0 {
			t.Errorf("%v: error = %v, again: %t, events %q", answer, done.pulls.err, done.more(), events.reasons)
		}
	}
}

// TestPullEvents: only progress of a pull Pod causes a pass of its set.
func TestPullEvents(t *testing.T) {
	r, _ := reconcilerOn(server(t, web()))
	checktest.NoError(t, pull(t, r, web(), pullOn("n1")).err)
	pods := checktest.Must(r.ListPods(t.Context(), "default", pullsKey("set")))(t)
	pulling := pods[0].DeepCopy()
	pulling.Status.PodIP = "10.0.0.1"
	pulled := pulling.DeepCopy()
	pulled.Status.Phase = corev1.PodRunning
	pulled.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: plan.PullContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	started := pulled.DeepCopy()
	started.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	passes := []reconcile.Request{{NamespacedName: keyOf(web())}}
	for name, test := range map[string]struct {
		before, after client.Object
		want          []reconcile.Request
	}{
		"an address":   {pods[0], pulling, nil},
		"its start":    {pulled, started, nil},
		"the image":    {pulling, pulled, passes},
		"its creation": {nil, pods[0], passes},
		"its end":      {pulled, nil, passes},
	} {
		checktest.Same(t, name+": passes", test.want, queuedBy(t, r.PodEvents(), test.before, test.after).requests)
	}
}
