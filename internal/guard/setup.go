// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	crhandler "sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/usher-dev/usher/internal/announce"
)

// Path is where the webhook is served.
const Path = "/guard"

// Options of Setup.
type Options struct {
	// Service is how API servers reach the guard. The Secret with the certificate has the
	// same name and namespace, the ValidatingWebhookConfiguration the same name.
	Service types.NamespacedName
	// Host is the name or address that the certificate is for. Default: SERVICE.NAMESPACE.svc.
	Host string
	// Port to serve on.
	Port int
	// ExternalCertificate leaves the Secret and the caBundle to somebody else, such as
	// cert-manager.
	ExternalCertificate bool
	// CloneSetUsers are the users that CloneSet controllers act as, besides this process.
	CloneSetUsers []string
	// Clock tells the time, the real one if nil.
	Clock clock.PassiveClock
}

// Setup adds the guard to the manager. Every replica serves it and keeps its certificate
// valid: in an upgrade from a version without the guard, the leader knows nothing of it.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Host == "" {
		o.Host = o.Service.Name + "." + o.Service.Namespace + ".svc"
	}
	recorder, err := announce.Recorder(mgr, "usher")
	if err != nil {
		return err
	}
	self, err := whoAmI(ctx, mgr)
	if err != nil {
		return err
	}
	own, err := o.cache(mgr)
	if err != nil {
		return err
	}
	served := &certificate{}
	server := webhook.NewServer(webhook.Options{Port: o.Port, TLSOpts: []func(*tls.Config){served.configure}})
	server.Register(Path, &admission.Webhook{
		Handler: NewHandler(mgr.GetAPIReader(), mgr.GetClient(), recorder, o.Clock, append(slices.Clone(o.CloneSetUsers), self)),
	})
	// A replica without the certificate is not ready: API servers do not call it then.
	if err := errors.Join(mgr.Add(server), mgr.AddReadyzCheck("guard", server.StartedChecker())); err != nil {
		return fmt.Errorf("serve the guard with the manager: %w", err)
	}
	return o.keepCertificate(mgr, own, served)
}

// whoAmI asks the API server as whom this process acts, as everybody may (system:basic-user).
func whoAmI(ctx context.Context, mgr ctrl.Manager) (string, error) {
	review := &authenticationv1.SelfSubjectReview{}
	if err := mgr.GetClient().Create(ctx, review); err != nil {
		return "", fmt.Errorf("ask who Usher is: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}

// cache watches the guard's two objects by their names, so that it needs no right to see others.
func (o *Options) cache(mgr ctrl.Manager) (cache.Cache, error) {
	named := fields.OneTermEqualSelector("metadata.name", o.Service.Name)
	own, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Field: named, Namespaces: map[string]cache.Config{o.Service.Namespace: {}}},
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

// keepCertificate adds the controller that serves, makes and renews the certificate.
func (o *Options) keepCertificate(mgr ctrl.Manager, own cache.Cache, served *certificate) error {
	// Names of controllers are unique in a process; a manager that is started again in the
	// same one is no mistake. controller-runtime's priority queue can block for ever when it
	// is shut down (kubernetes-sigs/controller-runtime#3538).
	again, priorities, inLeader := true, false, false
	// There is one certificate, whatever has changed.
	keep := crhandler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	build := ctrl.NewControllerManagedBy(mgr).Named("guard-certificate").
		WithOptions(controller.Options{SkipNameValidation: &again, UsePriorityQueue: &priorities, NeedLeaderElection: &inLeader}).
		WatchesRawSource(source.Kind[client.Object](own, &corev1.Secret{}, keep))
	if !o.ExternalCertificate {
		build.WatchesRawSource(source.Kind[client.Object](own, &admissionregistrationv1.ValidatingWebhookConfiguration{}, keep))
	}
	err := build.Complete(&keeper{
		client: mgr.GetClient(), reader: mgr.GetAPIReader(), clock: o.Clock, object: o.Service, host: o.Host,
		served: served, external: o.ExternalCertificate,
	})
	if err != nil {
		return fmt.Errorf("set up the guard's certificate: %w", err)
	}
	return nil
}
