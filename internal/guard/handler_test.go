// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// raw encodes an object of a request.
func raw(t *testing.T, object any) runtime.RawExtension {
	t.Helper()
	data := checktest.Must(json.Marshal(object))(t)
	return runtime.RawExtension{Raw: data}
}

func deletion(t *testing.T, p *corev1.Pod) admission.Request {
	t.Helper()
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: p.Namespace, OldObject: raw(t, p)}}
}

// scheme has the types that the guard reads.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(errors.Join(clientgoscheme.AddToScheme(s), appsv1alpha1.AddToScheme(s)))
	return s
}()

// server returns an API server that fails patches and refuses evictions. It records evictions: the Pod,
// whether the request is a dry run, and the eviction's own options.
func server(broken, refusal string, evictions *[]string) client.Client {
	return fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if broken != "" {
				return errors.New(broken)
			}
			return api.Patch(ctx, object, patch, options...)
		},
		SubResourceCreate: func(_ context.Context, _ client.Client, _ string, of, body client.Object, options ...client.SubResourceCreateOption) error {
			o := (&client.SubResourceCreateOptions{}).ApplyOptions(options)
			*evictions = append(*evictions, fmt.Sprintf("%s %v %s", of.GetName(), o.DryRun, encode.JSON(body.(*policyv1.Eviction).DeleteOptions)))
			if refusal != "" {
				return apierrors.NewTooManyRequests(refusal, 0)
			}
			return nil
		},
	}).Build()
}

// TestHandle: the guard's answer, whether it asks for a drain, and the eviction that it tries first. A
// failure of the guard never keeps a Pod.
func TestHandle(t *testing.T) {
	scenariotest.Table(t, "testdata/answers.txt", func(t *testing.T, test struct {
		// Evict are the options of an eviction; a deletion has none.
		Evict                    *metav1.DeleteOptions
		DryRun, Unreadable, Gone bool
		// Broken is the API server's error for a patch, Refusal the one for an eviction.
		Broken, Refusal string
	}) string {
		p, evictions := pod(), []string(nil)
		api := server(test.Broken, test.Refusal, &evictions)
		if !test.Gone {
			checktest.NoError(t, api.Create(t.Context(), p))
		}
		request := deletion(t, p)
		request.DryRun = &test.DryRun
		switch {
		case test.Unreadable:
			request.OldObject.Raw = []byte("{")
		case test.Evict != nil:
			request.Name, request.SubResource, request.Object = p.Name, "eviction", raw(t, policyv1.Eviction{DeleteOptions: test.Evict})
		}
		h := &Handler{Reader: api, Writer: api, Recorder: events.NewFakeRecorder(10), Clock: clocktesting.NewFakePassiveClock(now)}
		var counted []Answer
		h.Answered = func(a Answer) { counted = append(counted, a) }
		got := h.Handle(t.Context(), request)
		want := answerOf(got)
		if test.Unreadable || test.Broken != "" && got.Allowed {
			want = AnswerFailed
		}
		checktest.Same(t, "what is counted", []Answer{want}, counted)
		says := strings.TrimSpace(fmt.Sprintf("%d %s%s", got.Result.Code, got.Result.Message, strings.Join(got.Warnings, ", ")))
		if got.Allowed {
			says = "allowed, " + says
		}
		if details := got.Result.Details; details != nil {
			says += fmt.Sprintf(" Again in %d s.", details.RetryAfterSeconds)
		}
		return says + strings.Join(append([]string{""}, evictions...), "; tries ") + map[bool]string{true: "; asks for a drain"}[asksForDrain(t, api, p)]
	})
}

// asksForDrain reports whether the stored Pod, if there is one, has a deletion request.
func asksForDrain(t *testing.T, api client.Client, p *corev1.Pod) bool {
	t.Helper()
	stored := &corev1.Pod{}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(p), stored); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	_, asked := stored.Annotations[usherv1alpha1.AnnotationDeletionRequest]
	return asked
}

// TestEvictDrained: when the controller of DaemonSets asks for another Pod than before, the drained Pod
// is evicted, unless it has changed; if it stays, the answer says why.
func TestEvictDrained(t *testing.T) {
	for _, refusal := range []string{"", "no budget"} {
		t.Run(refusal, func(t *testing.T) {
			p, drained := pod(), pod()
			drained.Name, drained.UID = "web-2", "uid-2"
			p.Labels["app"], drained.Labels["app"] = "web", "web"
			for of, words := range map[*corev1.Pod][]string{p: {"owner DaemonSet"}, drained: {"owner DaemonSet", "nobodys", "requested 5s 5s", "sealed the path"}} {
				for _, word := range words {
					checktest.NoError(t, scenariotest.Say(podWords, of, word))
				}
			}
			var evictions []string
			api := server("", refusal, &evictions)
			set := &appsv1.DaemonSet{ObjectMeta: named("set"), Spec: appsv1.DaemonSetSpec{Selector: selectsWeb()}}
			checktest.NoError(t, errors.Join(api.Create(t.Context(), set), api.Create(t.Context(), p), api.Create(t.Context(), drained)))
			recorder := events.NewFakeRecorder(10)
			h := &Handler{Reader: api, Writer: api, Recorder: recorder, Clock: clocktesting.NewFakePassiveClock(now), Secret: func() string { return "the path" }}
			request := deletion(t, p)
			request.UserInfo.Username = perNode
			want := strings.TrimSuffix("Pod web-1 leaves its registries when Pod web-2, which is out of them, is replaced: "+refusal, ": ")
			checktest.Same(t, "the answer", want, h.Handle(t.Context(), request).Result.Message)
			checktest.Same(t, "evicted", []string{`web-2 [] {"preconditions":{"uid":"uid-2","resourceVersion":"1"}}`}, evictions)
			checktest.Same(t, "an event tells of the eviction", refusal == "", len(recorder.Events) == 1)
		})
	}
}

func named(uid types.UID) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "demo", Name: "web", UID: uid}
}

func selectsWeb() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

// TestInventedOwners: users who create Pods may give them any owner. The guard believes only in an
// owner that exists, with that UID, and selects the Pod. Any other Pod drains as one without an owner:
// it is not named for deletion, no ReplicaSet chooses it, and the guard evicts no other Pod for a
// DaemonSet.
func TestInventedOwners(t *testing.T) {
	owners := map[string]func(uid types.UID) client.Object{
		"CloneSet": func(uid types.UID) client.Object {
			selector := appsv1alpha1.LabelSelector{MatchLabels: appsv1alpha1.Labels{"app": "web"}}
			return &appsv1alpha1.CloneSet{ObjectMeta: named(uid), Spec: appsv1alpha1.CloneSetSpec{Selector: selector}}
		},
		"ReplicaSet": func(uid types.UID) client.Object {
			return &appsv1.ReplicaSet{ObjectMeta: named(uid), Spec: appsv1.ReplicaSetSpec{Selector: selectsWeb()}}
		},
		"DaemonSet": func(uid types.UID) client.Object {
			return &appsv1.DaemonSet{ObjectMeta: named(uid), Spec: appsv1.DaemonSetSpec{Selector: selectsWeb()}}
		},
	}
	for kind, owner := range owners {
		for name, attempt := range map[string]struct {
			owner  client.Object
			app    string
			proved bool
		}{
			"no such owner":               {app: "web"},
			"one of another UID":          {owner: owner("another"), app: "web"},
			"one that selects other Pods": {owner: owner("set"), app: "other"},
			"the owner":                   {owner: owner("set"), app: "web", proved: true},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				p, drained, evictions := pod(), pod(), []string(nil)
				drained.Name, drained.UID = "web-2", "uid-2"
				for _, one := range []*corev1.Pod{p, drained} {
					ownedBy(t, kind)(one)
					one.Labels["app"] = attempt.app
				}
				for _, word := range []string{"nobodys", "requested 5s 5s", "sealed the path"} {
					checktest.NoError(t, scenariotest.Say(podWords, drained, word))
				}
				api := server("", "", &evictions)
				checktest.NoError(t, errors.Join(api.Create(t.Context(), p), api.Create(t.Context(), drained)))
				if attempt.owner != nil {
					checktest.NoError(t, api.Create(t.Context(), attempt.owner))
				}
				h := &Handler{Reader: api, Writer: api, Recorder: events.NewFakeRecorder(10), Clock: clocktesting.NewFakePassiveClock(now)}
				h.Secret = func() string { return "the path" }
				request := deletion(t, p)
				if kind == "DaemonSet" {
					request.UserInfo.Username = perNode
				}
				checktest.Same(t, "the answer", http.StatusTooManyRequests, h.Handle(t.Context(), request).Result.Code)
				after := &corev1.Pod{}
				checktest.NoError(t, api.Get(t.Context(), client.ObjectKeyFromObject(p), after))
				checktest.Same(t, "named for its deletion", kind == "CloneSet" && attempt.proved, after.Labels[appsv1alpha1.LabelSpecifiedDelete] == "true")
				checktest.Same(t, "has a deletion cost", kind == "ReplicaSet" && attempt.proved, after.Annotations[corev1.PodDeletionCost] != "")
				checktest.Same(t, "another Pod is evicted", kind == "DaemonSet" && attempt.proved, len(evictions) > 0)
				checktest.Same(t, "asks for a drain", len(evictions) == 0, asksForDrain(t, api, p))
			})
		}
	}
}

// TestTurnReadsPages: the guard lists a DaemonSet's Pods a few at a time, so a namespace full of the longest
// Pods does not fill its memory.
func TestTurnReadsPages(t *testing.T) {
	p := pod()
	p.Labels["app"] = "web"
	ownedBy(t, "DaemonSet")(p)
	set := &appsv1.DaemonSet{ObjectMeta: named("set"), Spec: appsv1.DaemonSetSpec{Selector: selectsWeb()}}
	var asked []string
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(p, set).WithInterceptorFuncs(interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, into client.ObjectList, options ...client.ListOption) error {
			o := (&client.ListOptions{}).ApplyOptions(options)
			asked = append(asked, fmt.Sprintf("%d of %s, %s in %s", o.Limit, o.LabelSelector, o.Continue, o.Namespace))
			page := into.(*corev1.PodList)
			if len(asked) < 3 {
				page.Continue = fmt.Sprintf("page %d", len(asked)+1)
				return nil
			}
			drains := p.DeepCopy()
			drains.Name, drains.UID = "web-9", "uid-9"
			page.Items, page.Continue = []corev1.Pod{*drains}, "page 4"
			return scenariotest.Say(podWords, &page.Items[0], "requested 0s 0s")
		},
	}).Build()
	h := &Handler{Reader: api, Writer: api, Recorder: events.NewFakeRecorder(10), Clock: clocktesting.NewFakePassiveClock(now)}
	request := deletion(t, p)
	request.UserInfo.Username = perNode
	answer := h.Handle(t.Context(), request).Result.Message
	checktest.Same(t, "the answer", "Pod web-1 leaves its registries when Pod web-9 is out of them, or in them again", answer)
	want := []string{"8 of app=web,  in demo", "8 of app=web, page 2 in demo", "8 of app=web, page 3 in demo"}
	checktest.Same(t, "what the guard asks for", want, asked)
}

// TestLateAnswersAreDenials: a review that is not answered in time, as in a flood, is denied: the API
// server would let the deletion pass otherwise.
func TestLateAnswersAreDenials(t *testing.T) {
	p := pod()
	ctx, late := context.WithCancel(t.Context())
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(p).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			late()
			return fmt.Errorf("wait: %w", ctx.Err())
		},
	}).Build()
	h := &Handler{Reader: api, Writer: api, Recorder: events.NewFakeRecorder(10), Clock: clocktesting.NewFakePassiveClock(now)}
	answer := h.Handle(ctx, deletion(t, p))
	checktest.Same(t, "the answer", http.StatusTooManyRequests, answer.Result.Code)
	checktest.Same(t, "when to come again", 1, answer.Result.Details.RetryAfterSeconds)
}

// TestUnreadableOwner: if the owner cannot be read, the Pod is not deleted while callers use it.
func TestUnreadableOwner(t *testing.T) {
	p := pod()
	ownedBy(t, "CloneSet")(p)
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(p).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, out client.Object, options ...client.GetOption) error {
			if _, ok := out.(*corev1.Pod); !ok {
				return errors.New("forbidden")
			}
			return api.Get(ctx, key, out, options...)
		},
	}).Build()
	h := &Handler{Reader: api, Writer: api, Recorder: events.NewFakeRecorder(10), Clock: clocktesting.NewFakePassiveClock(now)}
	checktest.Same(t, "the answer", http.StatusTooManyRequests, h.Handle(t.Context(), deletion(t, p)).Result.Code)
	checktest.Same(t, "asks for a drain", true, asksForDrain(t, api, p))
}

func ownedBy(t *testing.T, kind string) func(*corev1.Pod) {
	t.Helper()
	return func(p *corev1.Pod) { checktest.NoError(t, scenariotest.Say(podWords, p, "owner "+kind)) }
}

func skipsDrain(p *corev1.Pod) { p.Annotations[usherv1alpha1.AnnotationSkipDrain] = "true" }

// requested gives a Pod a request for its deletion, of five seconds ago.
func requested(t *testing.T) func(*corev1.Pod) {
	t.Helper()
	return func(p *corev1.Pod) { checktest.NoError(t, scenariotest.Say(podWords, p, "requested 5s 5s")) }
}

// ended makes a Pod one that nothing holds.
func ended(t *testing.T) func(*corev1.Pod) {
	t.Helper()
	return func(p *corev1.Pod) { checktest.NoError(t, scenariotest.Say(podWords, p, "nobodys")) }
}

// TestRepeatedRequestsReadNothing: a controller that repeats a deletion while the Pod drains is answered from what the
// API server sends. The owner is read where it decides: of a CloneSet, and of a DaemonSet.
func TestRepeatedRequestsReadNothing(t *testing.T) {
	const another, old = "another user, whose deletion is a drain of its own", "an old request, which is renewed"
	for name, test := range map[string]struct {
		owner, user, words string
		reads              int
	}{
		"a ReplicaSet":        {owner: "ReplicaSet", user: "replicaset-controller", words: `requested 5s 5s ,"controller":true`},
		"no owner":            {user: "person", words: "requested 5s 5s"},
		another:               {owner: "ReplicaSet", user: "replicaset-controller", words: "requested 5s 5s", reads: 2},
		old:                   {user: "person", words: "requested 30s 30s", reads: 1},
		"the first request":   {owner: "ReplicaSet", user: "replicaset-controller", reads: 2},
		"a CloneSet":          {owner: "CloneSet", user: "person", words: "requested 5s 5s", reads: 2},
		"a DaemonSet":         {owner: "DaemonSet", user: "daemon-set-controller", words: "requested 5s 5s", reads: 2},
		"a DaemonSet, by you": {owner: "DaemonSet", user: "person", words: "requested 5s 5s"},
	} {
		t.Run(name, func(t *testing.T) {
			p, reads := pod(), 0
			if test.owner != "" {
				ownedBy(t, test.owner)(p)
			}
			if test.words != "" {
				checktest.NoError(t, scenariotest.Say(podWords, p, test.words))
			}
			api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(p).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, out client.Object, options ...client.GetOption) error {
					reads++
					return api.Get(ctx, key, out, options...)
				},
			}).Build()
			h := &Handler{Reader: api, Writer: api, Recorder: events.NewFakeRecorder(10), Clock: clocktesting.NewFakePassiveClock(now)}
			request := deletion(t, p)
			request.UserInfo.Username = test.user
			if test.user != "person" {
				request.UserInfo.Username = "system:serviceaccount:kube-system:" + test.user
			}
			checktest.Same(t, "the answer", http.StatusTooManyRequests, h.Handle(t.Context(), request).Result.Code)
			checktest.Same(t, "reads", test.reads, reads)
		})
	}
}

// TestForgedReviews: the guard trusts a request only for the name of the Pod, and reads the Pod from
// the API server. A Pod that the request shows to drain is refused unread.
func TestForgedReviews(t *testing.T) {
	for _, forge := range []struct {
		name   string
		change func(said *corev1.Pod)
		code   int32
		drains bool
	}{
		{"an invented CloneSet as owner", ownedBy(t, "CloneSet"), http.StatusTooManyRequests, true},
		{"an invented ReplicaSet as owner", ownedBy(t, "ReplicaSet"), http.StatusTooManyRequests, true},
		{"another UID", func(p *corev1.Pod) { p.UID = "made-up" }, http.StatusOK, false},
		{"no UID", func(p *corev1.Pod) { p.UID = "" }, http.StatusOK, false},
		{"a Pod that Usher never knew", func(p *corev1.Pod) { p.Name = "plain" }, http.StatusOK, false},
		{"permission to skip the drain", skipsDrain, http.StatusTooManyRequests, true},
		{"a drain of the Pod that nobody has asked for", requested(t), http.StatusTooManyRequests, false},
		{"a drain that has ended", ended(t), http.StatusTooManyRequests, true},
	} {
		t.Run(forge.name, func(t *testing.T) {
			live, plain := pod(), pod()
			plain.Name, plain.UID, plain.Finalizers = "plain", "uid-1", nil
			api := server("", "", new([]string))
			for _, p := range []*corev1.Pod{live, plain} {
				checktest.NoError(t, api.Create(t.Context(), p.DeepCopy()))
			}
			said := live.DeepCopy()
			forge.change(said)
			clock := clocktesting.NewFakePassiveClock(now)
			h := &Handler{Reader: api, Writer: api, Recorder: events.NewFakeRecorder(10), Clock: clock}
			checktest.Same(t, "the answer", forge.code, h.Handle(t.Context(), deletion(t, said)).Result.Code)
			checktest.Same(t, "asks for a drain", forge.drains, asksForDrain(t, api, live))
			for _, p := range []*corev1.Pod{live, plain} {
				var after corev1.Pod
				checktest.NoError(t, api.Get(t.Context(), client.ObjectKeyFromObject(p), &after))
				checktest.Same(t, "labels", 0, len(after.Labels))
				checktest.Same(t, "a deletion cost", "", after.Annotations[corev1.PodDeletionCost])
			}
		})
	}
}
