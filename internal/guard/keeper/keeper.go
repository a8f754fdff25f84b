// SPDX-License-Identifier: Apache-2.0

// Package keeper makes the guard's certificate and its path, renews the certificate, and makes API
// servers trust it. The right to do so is the right to send all requests of the cluster anywhere. So it
// runs in a process of its own, which listens on no port.
package keeper

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/guard/endpoint"
)

// Usher makes its certificate with the standard library. open-policy-agent's cert-controller does the
// same with a CA key in the Secret, certificates that are mounted as files (a minute late), and the
// right to read all Secrets of the namespace.

const (
	// lifetime is how long a certificate is valid; it is renewed in its last third.
	lifetime = 365 * 24 * time.Hour
	renewal  = lifetime / 3
	// checkEvery is how often the age of the certificate is checked.
	checkEvery = time.Hour
)

// keeper keeps the certificate in the Secret valid, and the webhook configuration so that API servers
// trust it and call the guard at a secret path. If several keepers make a certificate or a path, the
// first one wins.
type keeper struct {
	service endpoint.Service
	client  client.Client
	reader  client.Reader
	clock   clock.PassiveClock
}

// Setup adds the keeper to the manager.
func Setup(mgr ctrl.Manager, service endpoint.Service) error {
	own, err := service.Cache(mgr)
	if err != nil {
		return err
	}
	k := &keeper{service: service, client: mgr.GetClient(), reader: mgr.GetAPIReader(), clock: clock.RealClock{}}
	return endpoint.Follow(mgr, "certificate", own, k)
}

// Reconcile makes the certificate if it is missing, of another host or old. API servers trust the new
// one before any replica of the guard can serve it.
func (k *keeper) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	secret := &corev1.Secret{}
	if err := k.reader.Get(ctx, k.service.Secret(), secret); err != nil {
		return ctrl.Result{}, fmt.Errorf("read the Secret for the guard's certificate: %w; install the chart again, it makes the Secret", err)
	}
	chain := secret.Data[corev1.TLSCertKey]
	fresh := k.fresh(secret)
	if !fresh {
		made, key, err := selfSigned(k.service.Host(), k.clock.Now())
		if err != nil {
			return ctrl.Result{}, fmt.Errorf("make the guard's certificate: %w", err)
		}
		chain = made
		secret.Data = map[string][]byte{corev1.TLSCertKey: made, corev1.TLSPrivateKeyKey: key}
	}
	if err := k.configure(ctx, chain); err != nil {
		return ctrl.Result{}, err
	}
	if !fresh {
		if err := k.client.Update(ctx, secret); err != nil {
			return ctrl.Result{}, fmt.Errorf("store the guard's certificate: %w", err)
		}
	}
	return ctrl.Result{RequeueAfter: checkEvery}, nil
}

// fresh reports whether a Secret has a certificate for the host that is not in its last third.
func (k *keeper) fresh(secret *corev1.Secret) bool {
	pair, err := endpoint.Pair(secret)
	if err != nil || pair == nil {
		return false
	}
	return pair.Leaf.VerifyHostname(k.service.Host()) == nil && k.clock.Now().Before(pair.Leaf.NotAfter.Add(-renewal))
}

// configure makes API servers call the guard at a secret path, and trust the chain.
func (k *keeper) configure(ctx context.Context, chain []byte) error {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := k.reader.Get(ctx, k.service.Configuration(), configuration); err != nil {
		return fmt.Errorf("read the guard's webhook configuration: %w; install the chart again, it makes the configuration", err)
	}
	next, path := configuration.DeepCopy(), endpoint.PathOf(configuration)
	if path == "" {
		path = endpoint.NewPath()
	}
	for i := range next.Webhooks {
		webhook := &next.Webhooks[i].ClientConfig
		if webhook.Service != nil {
			webhook.Service.Path = &path
		}
		var err error
		if webhook.CABundle, err = k.bundle(webhook.CABundle, chain); err != nil {
			return err
		}
	}
	if equality.Semantic.DeepEqual(configuration, next) {
		return nil
	}
	patch := client.MergeFromWithOptions(configuration, client.MergeFromWithOptimisticLock{})
	if err := k.client.Patch(ctx, next, patch); err != nil {
		return fmt.Errorf("write the guard's path and CA into its webhook configuration: %w", err)
	}
	return nil
}

// bundle joins the CAs of the old bundle that are still valid with those of the chain.
func (k *keeper) bundle(old, chain []byte) ([]byte, error) {
	added, err := cert.ParseCertsPEM(chain)
	if err != nil {
		return nil, fmt.Errorf("read the guard's certificate: %w", err)
	}
	// If the bundle is unreadable, somebody has made a mistake, and it is replaced.
	known, err := cert.ParseCertsPEM(old)
	if err != nil {
		known = nil
	}
	var all []*x509.Certificate
	for _, one := range append(known, added...) {
		if one.IsCA && k.clock.Now().Before(one.NotAfter) && !slices.ContainsFunc(all, one.Equal) {
			all = append(all, one)
		}
	}
	return cert.EncodeCertificates(all...)
}
