// SPDX-License-Identifier: Apache-2.0

// Package endpoint describes how API servers call the guard: at a Service, with a certificate in a
// Secret and at a path in a ValidatingWebhookConfiguration. The guard reads the Secret and the
// configuration, and package keeper, in a process of its own, writes them.
package endpoint

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	crhandler "sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Service names the guard's Service. Its Secret has the same name and namespace, and its
// ValidatingWebhookConfiguration the same name.
type Service types.NamespacedName

// Host returns the host name at which API servers call the guard.
func (s Service) Host() string { return s.Name + "." + s.Namespace + ".svc" }

// Secret returns the key of the Secret.
func (s Service) Secret() client.ObjectKey { return client.ObjectKey(s) }

// Configuration returns the key of the ValidatingWebhookConfiguration.
func (s Service) Configuration() client.ObjectKey { return client.ObjectKey{Name: s.Name} }

// An API server shows a webhook no credentials, unless its admin has configured some. So the guard is
// served at a path of 32 random bytes, which only its webhook configuration contains: API servers read
// that, and hardly anybody else may.

const (
	pathPrefix = "/guard/"
	pathBytes  = 32
)

// NewPath makes an unguessable path.
func NewPath() string {
	secret := make([]byte, pathBytes)
	_, _ = rand.Read(secret) // It never fails.
	return pathPrefix + hex.EncodeToString(secret)
}

// PathOf returns the path at which API servers call the guard according to a configuration. It is empty
// if the paths of the webhooks differ, or if NewPath cannot have made one of them.
func PathOf(configuration *admissionregistrationv1.ValidatingWebhookConfiguration) (path string) {
	for _, webhook := range configuration.Webhooks {
		service := webhook.ClientConfig.Service
		if service == nil || service.Path == nil || path != "" && *service.Path != path {
			return ""
		}
		path = *service.Path
	}
	secret, found := strings.CutPrefix(path, pathPrefix)
	if bytes, err := hex.DecodeString(secret); !found || err != nil || len(bytes) != pathBytes {
		return ""
	}
	return path
}

// Pair returns the certificate in a Secret with its key; nil if there is none yet.
func Pair(secret *corev1.Secret) (*tls.Certificate, error) {
	if len(secret.Data[corev1.TLSCertKey]) == 0 {
		return nil, nil
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("read the certificate in Secret %s: %w", secret.Name, err)
	}
	return &pair, nil
}

// Cache watches the Secret and the configuration by their names, so that it needs no right to see others.
func (s Service) Cache(mgr ctrl.Manager) (cache.Cache, error) {
	named := fields.OneTermEqualSelector("metadata.name", s.Name)
	own, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Field: named, Namespaces: map[string]cache.Config{s.Namespace: {}}},
			&admissionregistrationv1.ValidatingWebhookConfiguration{}: {Field: named},
		},
	})
	if err == nil {
		err = mgr.Add(inEveryReplica{own})
	}
	if err != nil {
		return nil, fmt.Errorf("watch the guard's certificate: %w", err)
	}
	return own, nil
}

// inEveryReplica is a cache that runs in replicas that do not lead, too. A manager starts
// one with ByObject only in the leader.
type inEveryReplica struct{ cache.Cache }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (inEveryReplica) NeedLeaderElection() bool { return false }

// Follow makes every replica reconcile whenever the Secret or the configuration changes.
func Follow(mgr ctrl.Manager, name string, own cache.Cache, reconciler reconcile.Reconciler) error {
	// There is one certificate, so all events have the same request.
	keep := crhandler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	// Names of controllers are unique in a process; starting another manager in the same process is no
	// mistake. No event needs a priority.
	build := ctrl.NewControllerManagedBy(mgr).Named(name).
		WithOptions(controller.Options{SkipNameValidation: new(true), UsePriorityQueue: new(false), NeedLeaderElection: new(false)}).
		WatchesRawSource(source.Kind[client.Object](own, &corev1.Secret{}, keep)).
		WatchesRawSource(source.Kind[client.Object](own, &admissionregistrationv1.ValidatingWebhookConfiguration{}, keep))
	if err := build.Complete(reconciler); err != nil {
		return fmt.Errorf("set up %s: %w", name, err)
	}
	return nil
}
