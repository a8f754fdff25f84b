// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/cert"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

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

// server is an API server that fails patches and refuses evictions, and notes those: the Pod,
// whether the request is a dry run, and its own options.
func server(broken, refusal string, evictions *[]string) client.Client {
	return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
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

// TestHandle: what the guard answers, whether it asks for a drain, and what it tries before. The
// guard's own trouble never keeps a Pod.
func TestHandle(t *testing.T) {
	scenariotest.Table(t, "testdata/answers.txt", func(t *testing.T, test struct {
		// Evict are the options of an eviction; a deletion has none.
		Evict                    *metav1.DeleteOptions
		DryRun, Unreadable, Gone bool
		// Broken is what the API server answers to a patch, Refusal to an eviction.
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
		got := h.Handle(t.Context(), request)
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
	for _, refusal := range []string{"", "no budget"} {
		t.Run(refusal, func(t *testing.T) {
			p, drained := pod(), pod()
			drained.Name, drained.UID = "web-2", "uid-2"
			for of, words := range map[*corev1.Pod][]string{p: {"owner DaemonSet"}, drained: {"owner DaemonSet", "nobodys", "requested 5s 5s"}} {
				for _, word := range words {
					checktest.NoError(t, scenariotest.Say(podWords, of, word))
				}
			}
			var evictions []string
			api := server("", refusal, &evictions)
			checktest.NoError(t, errors.Join(api.Create(t.Context(), p), api.Create(t.Context(), drained)))
			recorder := events.NewFakeRecorder(10)
			h := &Handler{Reader: api, Writer: api, Recorder: recorder, Clock: clocktesting.NewFakePassiveClock(now)}
			request := deletion(t, p)
			request.UserInfo.Username = perNode
			want := strings.TrimSuffix("Pod web-1 leaves its registries when Pod web-2, which is out of them, is replaced: "+refusal, ": ")
			checktest.Same(t, "the answer", want, h.Handle(t.Context(), request).Result.Message)
			checktest.Same(t, "evicted", []string{`web-2 [] {"preconditions":{"uid":"uid-2","resourceVersion":"1"}}`}, evictions)
			checktest.Same(t, "an event tells of the eviction", refusal == "", len(recorder.Events) == 1)
		})
	}
}

// TestKeeper follows the certificate through its life: made, kept, renewed in its last
// third, replaced for another host. At each moment API servers trust what replicas serve,
// and after a renewal also the previous certificate, until that expires.
func TestKeeper(t *testing.T) {
	name := types.NamespacedName{Namespace: "usher-system", Name: "usher-guard"}
	api := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name.Name},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{chartWebhook("delete"), chartWebhook("evict")}},
	).Build()
	clock := clocktesting.NewFakePassiveClock(time.Now())
	k := &keeper{Options: Options{Service: name}, client: api, reader: api, clock: clock, host: "usher-guard.usher-system.svc"}
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	k.serve(config)
	if _, err := config.GetCertificate(nil); err == nil {
		t.Error("a certificate is served before there is one")
	}
	if k.ready(nil) == nil {
		t.Error("a replica is ready before it knows the path")
	}
	var chains [][]byte
	var paths []string
	// pass reconciles, and then once more for the changed Secret, as if that were somebody
	// else's. It returns the number of CAs that API servers trust.
	pass := func() int {
		t.Helper()
		k.ExternalCertificate = false
		_, made := k.Reconcile(t.Context(), ctrl.Request{})
		k.ExternalCertificate = true
		_, seen := k.Reconcile(t.Context(), ctrl.Request{})
		var secret corev1.Secret
		var configuration admissionregistrationv1.ValidatingWebhookConfiguration
		read := errors.Join(api.Get(t.Context(), name, &secret), api.Get(t.Context(), client.ObjectKey{Name: name.Name}, &configuration))
		found, served := config.GetCertificate(nil)
		checktest.NoError(t, errors.Join(made, seen, read, served))
		chains, paths = append(chains, secret.Data[corev1.TLSCertKey]), append(paths, pathOf(&configuration))
		checktest.Same(t, "the path that is served", paths[0], *k.path.Load())
		return trusted(t, &configuration, found.Leaf, k.host)
	}
	same := func() bool { return slices.Equal(chains[len(chains)-1], chains[len(chains)-2]) }
	checktest.Same(t, "CAs", 1, pass())
	clock.SetTime(clock.Now().Add(lifetime - renewal - 2*time.Hour))
	if n := pass(); n != 1 || !same() {
		t.Errorf("two thirds through its life there are %d CAs, the same certificate: %t", n, same())
	}
	clock.SetTime(clock.Now().Add(2 * time.Hour))
	if n := pass(); n != 2 || same() {
		t.Errorf("in its last third there are %d CAs, the same certificate: %t", n, same())
	}
	k.host = "other.usher-system.svc"
	if n := pass(); n != 3 || same() {
		t.Errorf("with another host there are %d CAs, the same certificate: %t", n, same())
	}
	if paths[0] == "" || slices.ContainsFunc(paths, func(path string) bool { return path != paths[0] }) {
		t.Errorf("the path changes with the certificate: %q", paths)
	}
}

// chartWebhook is one as the chart makes it.
func chartWebhook(name string) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{Name: name, ClientConfig: admissionregistrationv1.WebhookClientConfig{
		Service: &admissionregistrationv1.ServiceReference{Namespace: "usher-system", Name: "usher-guard"}}}
}

// TestPathIsMadeAgain: a path that anybody could know is replaced, in all webhooks, also where the
// certificate is somebody else's work. The previous path is not served any more.
func TestPathIsMadeAgain(t *testing.T) {
	first := newPath()
	for _, paths := range [][2]string{
		{"", ""}, {"/guard", "/guard"}, {"/guard/zz", "/guard/zz"},
		{first, ""}, {first, newPath()}, {first + "00", first + "00"}, {strings.ToUpper(first), strings.ToUpper(first)},
	} {
		configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "usher-guard"},
			Webhooks:   []admissionregistrationv1.ValidatingWebhook{chartWebhook("delete"), chartWebhook("evict")},
		}
		for i := range paths {
			configuration.Webhooks[i].ClientConfig.Service.Path = &paths[i]
		}
		name := types.NamespacedName{Namespace: "usher-system", Name: "usher-guard"}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
		api := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(secret, configuration).Build()
		k := &keeper{Options: Options{Service: name, ExternalCertificate: true}, client: api, reader: api}
		k.path.Store(&first)
		_, err := k.Reconcile(t.Context(), ctrl.Request{})
		checktest.NoError(t, errors.Join(err, api.Get(t.Context(), client.ObjectKeyFromObject(configuration), configuration)))
		d := newDoor(&k.path, nil)
		if now := pathOf(configuration); now == "" || now == paths[0] || !d.opens(now) || d.opens(first) {
			t.Errorf("%q becomes %q, and the guard is served there: %t", paths, now, d.opens(now))
		}
	}
}

func ownedBy(t *testing.T, kind string) func(*corev1.Pod) {
	t.Helper()
	return func(p *corev1.Pod) { checktest.NoError(t, scenariotest.Say(podWords, p, "owner "+kind)) }
}

func skipsDrain(p *corev1.Pod) { p.Annotations[usherv1alpha1.AnnotationSkipDrain] = "true" }

// TestForgedReviews: of a request the guard believes only which Pod it is about. What the Pod is, the
// API server says.
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

// trusted checks that API servers trust the certificate, and returns how many CAs they do.
func trusted(t *testing.T, configuration *admissionregistrationv1.ValidatingWebhookConfiguration, served *x509.Certificate, host string) (n int) {
	t.Helper()
	for _, w := range configuration.Webhooks {
		cas := checktest.Must(cert.ParseCertsPEM(w.ClientConfig.CABundle))(t)
		pool := x509.NewCertPool()
		for _, ca := range cas {
			pool.AddCert(ca)
		}
		if _, err := served.Verify(x509.VerifyOptions{Roots: pool, DNSName: host}); err != nil {
			t.Errorf("%s: API servers do not trust what is served: %v", w.Name, err)
		}
		n = len(cas)
	}
	return n
}
