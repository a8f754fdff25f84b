// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"bytes"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
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

var service = endpoint.Service{Namespace: "usher-system", Name: "usher-guard"}

// kept is a keeper with the API server on which it keeps its objects.
type kept struct {
	*testing.T
	keeper
	clock *clocktesting.FakePassiveClock
}

// keep returns a keeper whose Secret has the given data, and whose two webhooks have the given paths.
func keep(t *testing.T, data map[string][]byte, paths ...string) *kept {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}, Data: data}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: service.Name}}
	for i := range paths {
		configuration.Webhooks = append(configuration.Webhooks, admissionregistrationv1.ValidatingWebhook{
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Path: &paths[i]}},
		})
	}
	api := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(secret, configuration).Build()
	now := clocktesting.NewFakePassiveClock(time.Now())
	return &kept{T: t, clock: now, keeper: keeper{service: service, client: api, reader: api, clock: now}}
}

// pass reconciles. It returns the certificate, the path, and the number of CAs that API servers trust.
// It checks that they trust the certificate at each webhook.
func (k *kept) pass() (chain []byte, path string, cas int) {
	k.Helper()
	_, err := k.Reconcile(k.Context(), ctrl.Request{})
	var secret corev1.Secret
	var configuration admissionregistrationv1.ValidatingWebhookConfiguration
	checktest.NoError(k.T, errors.Join(err, k.reader.Get(k.Context(), service.Secret(), &secret),
		k.reader.Get(k.Context(), service.Configuration(), &configuration)))
	pair := checktest.Must(endpoint.Pair(&secret))(k.T)
	for _, w := range configuration.Webhooks {
		known := checktest.Must(cert.ParseCertsPEM(w.ClientConfig.CABundle))(k.T)
		pool := x509.NewCertPool()
		for _, ca := range known {
			pool.AddCert(ca)
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: k.service.Host(), CurrentTime: k.clock.Now()}); err != nil {
			k.Errorf("API servers do not trust what is served: %v", err)
		}
		cas = len(known)
	}
	return secret.Data[corev1.TLSCertKey], endpoint.PathOf(&configuration), cas
}

// TestKeeper follows the certificate through its life: made, kept, renewed in its last third. API servers
// trust it, and after a renewal also the previous one. The path stays.
func TestKeeper(t *testing.T) {
	k := keep(t, nil, "", "")
	first, path, cas := k.pass()
	checktest.Same(t, "CAs", 1, cas)
	before := first
	for _, moment := range []struct {
		name  string
		after time.Duration
		same  bool
		cas   int
	}{
		{"at once", 0, true, 1},
		{"two thirds through its life", lifetime - renewal - 2*time.Hour, true, 1},
		{"in its last third", 2 * time.Hour, false, 2},
	} {
		k.clock.SetTime(k.clock.Now().Add(moment.after))
		now, at, cas := k.pass()
		checktest.Same(t, moment.name+": the same certificate", moment.same, bytes.Equal(before, now))
		checktest.Same(t, moment.name+": CAs", moment.cas, cas)
		checktest.Same(t, moment.name+": the path", path, at)
		before = now
	}
}

// TestSecretsAreRepaired: a certificate that cannot be served is made again.
func TestSecretsAreRepaired(t *testing.T) {
	made, _, _ := keep(t, nil, "").pass()
	foreign, key, err := cert.GenerateSelfSignedCertKey("other.usher-system.svc", nil, nil)
	checktest.NoError(t, err)
	for _, data := range []map[string][]byte{
		{corev1.TLSCertKey: []byte("no certificate"), corev1.TLSPrivateKeyKey: []byte("no key")},
		{corev1.TLSCertKey: made},
		{corev1.TLSCertKey: made, corev1.TLSPrivateKeyKey: []byte("no key")},
		{corev1.TLSCertKey: foreign, corev1.TLSPrivateKeyKey: key},
	} {
		if now, _, _ := keep(t, data, "").pass(); bytes.Equal(now, data[corev1.TLSCertKey]) {
			t.Errorf("%q stays", data)
		}
	}
}

// TestPathIsMadeAgain: a guessable path is replaced, in all webhooks. An unguessable one stays, such as
// that of an older version.
func TestPathIsMadeAgain(t *testing.T) {
	first := endpoint.NewPath()
	chain, key, err := cert.GenerateSelfSignedCertKey(service.Host(), nil, nil)
	checktest.NoError(t, err)
	data := map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}
	for _, paths := range [][]string{
		{"", ""}, {"/guard", "/guard"}, {"/guard/zz", "/guard/zz"},
		{first, ""}, {first, endpoint.NewPath()}, {first + "00", first + "00"}, {strings.ToUpper(first), strings.ToUpper(first)},
	} {
		if _, now, _ := keep(t, data, slices.Clone(paths)...).pass(); now == "" || now == paths[0] {
			t.Errorf("%q becomes %q", paths, now)
		}
	}
	_, now, _ := keep(t, data, first, first).pass()
	checktest.Same(t, "the path", first, now)
}

// TestTrustComesFirst: a certificate is not stored if the configuration that makes API servers trust it
// could not be written.
func TestTrustComesFirst(t *testing.T) {
	k := keep(t, nil)
	checktest.NoError(t, k.client.Delete(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: service.Name}}))
	_, err := k.Reconcile(t.Context(), ctrl.Request{})
	var secret corev1.Secret
	checktest.NoError(t, k.reader.Get(t.Context(), service.Secret(), &secret))
	if err == nil || len(secret.Data) > 0 {
		t.Errorf("%v, and the Secret has %q", err, secret.Data)
	}
	checktest.NoError(t, k.client.Delete(t.Context(), &secret))
	_, err = k.Reconcile(t.Context(), ctrl.Request{})
	checktest.Says(t, "the error", err.Error(), "install the chart again")
	if client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
}
