// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"crypto/tls"
	"errors"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/cert"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/guard/endpoint"
)

// TestReadyWhenCalled: a replica serves the certificate and the path as they change, and is ready exactly
// while API servers can call it. It writes neither.
func TestReadyWhenCalled(t *testing.T) {
	service := endpoint.Service{Namespace: "usher-system", Name: "usher-guard"}
	first, second := issue(t, service.Host()), issue(t, service.Host())
	foreign := issue(t, "other.usher-system.svc")
	path, other := endpoint.NewPath(), endpoint.NewPath()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: service.Name}}
	api := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(secret, configuration).Build()
	clock := clocktesting.NewFakePassiveClock(time.Now())
	k := &known{service: service, reader: api, clock: clock}
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	k.serve(config)
	d := newDoor(&k.path, nil)
	says(t, "before it has looked", k.ready(nil), "does not know yet")
	for _, step := range []struct {
		name string
		// pair is the certificate in the Secret; bundles and paths are those of the webhooks.
		pair    issued
		bundles []issued
		paths   [2]string
		after   time.Duration
		// serves and at are the certificate and the path that are served then, and wrong is the reason
		// why it is not ready.
		serves *issued
		at     string
		wrong  string
	}{
		{"installed", issued{}, nil, [2]string{}, 0, nil, "", "no path"},
		{"a path", issued{}, nil, [2]string{path, path}, 0, nil, path, "no certificate yet"},
		{"a certificate that nobody trusts", first, nil, [2]string{path, path}, 0, &first, path, "do not trust"},
		{"trusted", first, []issued{first}, [2]string{path, path}, 0, &first, path, ""},
		{"trusted with another path", first, []issued{first}, [2]string{other, other}, 0, &first, other, ""},
		{"paths that differ", first, []issued{first}, [2]string{path, other}, 0, &first, "", "no path"},
		{"a path that anybody knows", first, []issued{first}, [2]string{"/guard", "/guard"}, 0, &first, "", "no path"},
		{"a renewal is prepared", first, []issued{first, second}, [2]string{path, path}, 0, &first, path, ""},
		{"and done", second, []issued{first, second}, [2]string{path, path}, 0, &second, path, ""},
		{"the wrong CA", second, []issued{first}, [2]string{path, path}, 0, &second, path, "do not trust"},
		{"another host", foreign, []issued{foreign}, [2]string{path, path}, 0, &foreign, path, "do not trust"},
		{"no certificate", issued{chain: []byte("none")}, []issued{second}, [2]string{path, path}, 0, &foreign, path, "read the certificate"},
		{"whole again", second, []issued{second}, [2]string{path, path}, 0, &second, path, ""},
		{"expired", second, []issued{second}, [2]string{path, path}, 366 * 24 * time.Hour, &second, path, "expired"},
	} {
		secret.Data = map[string][]byte{corev1.TLSCertKey: step.pair.chain, corev1.TLSPrivateKeyKey: step.pair.key}
		configuration.Webhooks = nil
		for i := range step.paths {
			call := admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Path: &step.paths[i]}}
			for _, ca := range step.bundles {
				call.CABundle = append(call.CABundle, ca.chain...)
			}
			configuration.Webhooks = append(configuration.Webhooks, admissionregistrationv1.ValidatingWebhook{Name: "guard", ClientConfig: call})
		}
		checktest.NoError(t, errors.Join(api.Update(t.Context(), secret), api.Update(t.Context(), configuration)))
		clock.SetTime(clock.Now().Add(step.after))
		_, err := k.Reconcile(t.Context(), ctrl.Request{})
		checktest.NoError(t, err)
		says(t, step.name+": what is wrong", k.ready(nil), step.wrong)
		found, err := config.GetCertificate(nil)
		if (err == nil) != (step.serves != nil) || err == nil && !found.Leaf.Equal(checktest.Must(cert.ParseCertsPEM(step.serves.chain))(t)[0]) {
			t.Errorf("%s: serves %v, %v", step.name, found, err)
		}
		for _, guess := range []string{path, other, "/guard"} {
			checktest.Same(t, step.name+": is served at "+guess, guess == step.at, d.opens(guess))
		}
	}
	checktest.NoError(t, api.Delete(t.Context(), configuration))
	_, err := k.Reconcile(t.Context(), ctrl.Request{})
	says(t, "without a configuration", errors.Join(err, k.ready(nil)), "install the chart again")
	checktest.Same(t, "is served without a configuration", false, d.opens(path))
	checktest.NoError(t, client.IgnoreNotFound(err))
}

// issued is a certificate with its CA, and its key.
type issued struct{ chain, key []byte }

func issue(t *testing.T, host string) issued {
	t.Helper()
	chain, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	checktest.NoError(t, err)
	return issued{chain, key}
}

// says checks that an error contains a text; with "", that there is no error.
func says(t *testing.T, what string, err error, text string) {
	t.Helper()
	if text == "" {
		checktest.NoError(t, err)
		return
	}
	if err == nil {
		t.Errorf("%s: nothing, want %q", what, text)
		return
	}
	checktest.Says(t, what, err.Error(), text)
}
