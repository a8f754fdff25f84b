// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// raw encodes an object of a request.
func raw(t *testing.T, object any) runtime.RawExtension {
	t.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return runtime.RawExtension{Raw: data}
}

func deletion(t *testing.T, p *corev1.Pod) admission.Request {
	t.Helper()
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: p.Namespace, OldObject: raw(t, p)}}
}

// server is an API server that fails patches and refuses evictions, and notes whether the
// last eviction was a dry run.
func server(broken, refusal error, dry *bool) client.Client {
	return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if broken != nil {
				return broken
			}
			return api.Patch(ctx, object, patch, options...)
		},
		SubResourceCreate: func(_ context.Context, _ client.Client, _ string, _, body client.Object, options ...client.SubResourceCreateOption) error {
			o := (&client.SubResourceCreateOptions{}).ApplyOptions(options)
			*dry = len(o.DryRun) > 0 && len(body.(*policyv1.Eviction).DeleteOptions.DryRun) > 0
			return refusal
		},
	}).Build()
}

// TestHandle: what the guard answers, and whether it asks for a drain. The guard's own
// trouble never keeps a Pod.
func TestHandle(t *testing.T) {
	none := int64(0)
	evict := &metav1.DeleteOptions{}
	refusal := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	for name, c := range map[string]handleCase{
		"a deletion":                        {code: http.StatusTooManyRequests, message: "leaves its registries", asked: true},
		"a dry run":                         {dry: true, allowed: true},
		"an eviction":                       {evict: evict, code: http.StatusTooManyRequests, message: "leaves its registries", asked: true},
		"an eviction by force":              {evict: &metav1.DeleteOptions{GracePeriodSeconds: &none}, allowed: true},
		"an eviction's dry run":             {evict: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}, allowed: true},
		"an eviction that a budget refuses": {evict: evict, refusal: refusal, code: http.StatusTooManyRequests, message: "disruption budget"},
		"an eviction of a Pod that is gone": {evict: evict, gone: true, allowed: true},
		"a Pod that goes meanwhile":         {gone: true, code: http.StatusTooManyRequests, message: "leaves its registries"},
		"the API server does not take the request for a drain": {broken: errors.New("no"),
			allowed: true, warnings: "deleted without a drain: ask for a drain: no"},
		"an unreadable Pod": {unreadable: true, allowed: true, warnings: "deleted without a drain"},
	} {
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}

// handleCase is a request, what the API server does meanwhile, and the answer.
type handleCase struct {
	// evict are the options of an eviction; a deletion has none.
	evict           *metav1.DeleteOptions
	dry, unreadable bool
	refusal, broken error
	gone            bool
	allowed         bool
	code            int32
	message         string
	warnings        string
	asked           bool
}

func (c handleCase) request(t *testing.T, p *corev1.Pod) admission.Request {
	t.Helper()
	r := deletion(t, p)
	r.DryRun = &c.dry
	switch {
	case c.unreadable:
		r.OldObject.Raw = []byte("{")
	case c.evict != nil:
		r.Name, r.SubResource, r.Object = p.Name, "eviction", raw(t, policyv1.Eviction{DeleteOptions: c.evict})
	}
	return r
}

func (c handleCase) run(t *testing.T) {
	p, dry := pod(), false
	api := server(c.broken, c.refusal, &dry)
	if !c.gone {
		if err := api.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	h := &handler{reader: api, writer: api, recorder: events.NewFakeRecorder(10), clock: clocktesting.NewFakePassiveClock(now)}
	got := h.Handle(t.Context(), c.request(t, p))
	have := fmt.Sprintf("%t %d %s %q", got.Allowed, got.Result.Code, got.Result.Message, got.Warnings)
	want := regexp.MustCompile(fmt.Sprintf("^%t %d .*%s.*%s", c.allowed, cmp.Or(c.code, http.StatusOK), c.message, c.warnings))
	if !want.MatchString(have) {
		t.Errorf("%s, want %s", have, want)
	}
	if details := got.Result.Details; c.asked && details.RetryAfterSeconds != 1 {
		t.Errorf("retry after %d s", details.RetryAfterSeconds)
	}
	if c.evict != nil && c.asked && !dry {
		t.Error("the eviction was tried for good, not as a dry run")
	}
	if asked := asksForDrain(t, api, p); asked != c.asked {
		t.Errorf("asked for a drain: %t", asked)
	}
}

// asksForDrain reports whether the stored Pod, if it is there, carries a request.
func asksForDrain(t *testing.T, api client.Client, p *corev1.Pod) bool {
	t.Helper()
	stored := &corev1.Pod{}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(p), stored); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	_, asked := stored.Annotations[usherv1alpha1.AnnotationDeletionRequest]
	return asked
}

// TestEvictDrained: the controller of DaemonSets asks for another Pod than before. The one that
// has drained is evicted, unless it has changed; if it stays, the answer says why.
func TestEvictDrained(t *testing.T) {
	refusal := apierrors.NewTooManyRequests("no budget", 0)
	for name, c := range map[string]struct {
		refusal error
		want    string
	}{
		"evicted": {want: "Pod web-1 leaves its registries when Pod web-2, which is out of them, is replaced"},
		"refused": {refusal: refusal, want: "Pod web-1 leaves its registries when Pod web-2, which is out of them, is replaced: no budget"},
	} {
		t.Run(name, func(t *testing.T) {
			p, drained := pod(), pod()
			drained.Name, drained.UID = "web-2", "uid-2"
			for of, words := range map[*corev1.Pod][]string{p: {"owner DaemonSet"}, drained: {"owner DaemonSet", "nobodys", "requested 5s 5s"}} {
				for _, word := range words {
					if err := scenariotest.Say(podWords, of, word); err != nil {
						t.Fatal(err)
					}
				}
			}
			var evicted []string
			api := interceptor.NewClient(fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(p, drained).Build(), interceptor.Funcs{
				SubResourceCreate: func(_ context.Context, _ client.Client, _ string, of, body client.Object, _ ...client.SubResourceCreateOption) error {
					o := body.(*policyv1.Eviction).DeleteOptions
					evicted = append(evicted, fmt.Sprintf("%s %s %s %v", of.GetName(), *o.Preconditions.UID, *o.Preconditions.ResourceVersion, o.DryRun))
					return c.refusal
				},
			})
			recorder := events.NewFakeRecorder(10)
			h := &handler{reader: api, writer: api, recorder: recorder, clock: clocktesting.NewFakePassiveClock(now)}
			request := deletion(t, p)
			request.UserInfo.Username = perNode
			if got := h.Handle(t.Context(), request); got.Result.Message != c.want {
				t.Errorf("%s, want %s", got.Result.Message, c.want)
			}
			if want := []string{"web-2 uid-2 999 []"}; !slices.Equal(evicted, want) {
				t.Errorf("evicted %v, want %v", evicted, want)
			}
			if told := len(recorder.Events) == 1; told != (c.refusal == nil) {
				t.Errorf("an event tells of the eviction: %t", told)
			}
		})
	}
}
