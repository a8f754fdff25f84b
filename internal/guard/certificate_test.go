// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/cert"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// TestKeeper follows the certificate through its life: made, kept, renewed in its last
// third, replaced for another host. At each moment API servers trust what replicas serve,
// and after a renewal also the previous certificate, until that expires.
func TestKeeper(t *testing.T) {
	name := types.NamespacedName{Namespace: "usher-system", Name: "usher-guard"}
	api := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name.Name},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "delete"}, {Name: "evict"}}},
	).Build()
	clock := clocktesting.NewFakePassiveClock(time.Now())
	k := &keeper{client: api, reader: api, clock: clock, object: name, host: "usher-guard.usher-system.svc", served: &certificate{}}
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	k.served.configure(config)
	if _, err := config.GetCertificate(nil); err == nil {
		t.Error("a certificate is served before there is one")
	}
	var chains [][]byte
	// pass reconciles, and then once more for the changed Secret, as if that were somebody
	// else's. It returns the number of CAs that API servers trust.
	pass := func() int {
		t.Helper()
		k.external = false
		_, made := k.Reconcile(t.Context(), ctrl.Request{})
		k.external = true
		_, seen := k.Reconcile(t.Context(), ctrl.Request{})
		var secret corev1.Secret
		var configuration admissionregistrationv1.ValidatingWebhookConfiguration
		read := errors.Join(api.Get(t.Context(), name, &secret), api.Get(t.Context(), client.ObjectKey{Name: name.Name}, &configuration))
		found, served := config.GetCertificate(nil)
		if err := errors.Join(made, seen, read, served); err != nil {
			t.Fatal(err)
		}
		chains = append(chains, secret.Data[corev1.TLSCertKey])
		return trusted(t, &configuration, found.Leaf, k.host)
	}
	same := func() bool { return slices.Equal(chains[len(chains)-1], chains[len(chains)-2]) }
	if n := pass(); n != 1 {
		t.Errorf("%d CAs, want the new one", n)
	}
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
}

// trusted checks that API servers trust the certificate, and returns how many CAs they do.
func trusted(t *testing.T, configuration *admissionregistrationv1.ValidatingWebhookConfiguration, served *x509.Certificate, host string) (n int) {
	t.Helper()
	for _, w := range configuration.Webhooks {
		cas, err := cert.ParseCertsPEM(w.ClientConfig.CABundle)
		if err != nil {
			t.Fatal(err)
		}
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
