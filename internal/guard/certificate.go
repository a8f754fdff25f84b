// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	crhandler "sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/usher-dev/usher/internal/announce"
)

// Usher makes its certificate with client-go's cert package. open-policy-agent's
// cert-controller does the same with a CA key in the Secret, certificates that are
// mounted as files (a minute late), and the right to read all Secrets of the namespace.

const (
	// lifetime is how long a certificate is valid; it is renewed in its last third.
	lifetime = 365 * 24 * time.Hour
	renewal  = lifetime / 3
	// checkEvery is how often the age of the certificate is checked.
	checkEvery = time.Hour
)

// serve has a server use the certificate.
func (k *keeper) serve(config *tls.Config) {
	config.MinVersion = tls.VersionTLS13
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if found := k.current.Load(); found != nil {
			return found, nil
		}
		return nil, errors.New("the guard has no certificate yet")
	}
}

// load takes over the certificate of a Secret, if there is one.
func (k *keeper) load(secret *corev1.Secret) error {
	if len(secret.Data[corev1.TLSCertKey]) == 0 {
		return nil
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("read the certificate in Secret %s: %w", secret.Name, err)
	}
	k.current.Store(&pair)
	return nil
}

// keeper serves the certificate in the Secret. Unless it is somebody else's, it keeps it valid,
// and the webhook's caBundle so that API servers trust it. It also keeps the webhook's secret path.
// It runs in every replica; of several that make a certificate or a path, the first wins.
type keeper struct {
	Options
	client client.Client
	reader client.Reader
	clock  clock.PassiveClock
	// host is the name that API servers call the guard by.
	host string
	// current is the certificate, from the Secret as it was last seen.
	current atomic.Pointer[tls.Certificate]
	// path is where API servers call the guard, from the webhook configuration as it was last seen.
	path atomic.Pointer[string]
}

// Reconcile serves what is in the Secret, and makes the certificate if it is missing, of another
// host or old. API servers trust the new one before any replica serves it.
func (k *keeper) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	secret := &corev1.Secret{}
	if err := k.reader.Get(ctx, k.Service, secret); err != nil {
		return ctrl.Result{}, fmt.Errorf("read the Secret for the guard's certificate: %w; install the chart again, it makes the Secret", err)
	}
	if err := k.load(secret); err != nil {
		log.FromContext(ctx).Error(err, "The guard keeps its previous certificate")
	}
	if k.ExternalCertificate {
		return ctrl.Result{}, k.configure(ctx, nil)
	}
	chain := secret.Data[corev1.TLSCertKey]
	fresh := k.fresh(chain)
	if !fresh {
		made, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{Host: k.host, MaxAge: lifetime})
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

// fresh reports whether the certificate is for the host and not in its last third.
func (k *keeper) fresh(chain []byte) bool {
	parsed, err := cert.ParseCertsPEM(chain)
	if err != nil {
		return false
	}
	return parsed[0].VerifyHostname(k.host) == nil && k.clock.Now().Before(parsed[0].NotAfter.Add(-renewal))
}

// configure has API servers call the guard at a path that nobody else knows, and trust the chain,
// unless that is nil. It serves the path from then on.
func (k *keeper) configure(ctx context.Context, chain []byte) error {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := k.reader.Get(ctx, types.NamespacedName{Name: k.Service.Name}, configuration); err != nil {
		return fmt.Errorf("read the guard's webhook configuration: %w", err)
	}
	next, path := configuration.DeepCopy(), pathOf(configuration)
	if path == "" {
		path = newPath()
	}
	for i := range next.Webhooks {
		webhook := &next.Webhooks[i].ClientConfig
		if webhook.Service != nil {
			webhook.Service.Path = &path
		}
		if chain == nil {
			continue
		}
		var err error
		if webhook.CABundle, err = k.bundle(webhook.CABundle, chain); err != nil {
			return err
		}
	}
	if !equality.Semantic.DeepEqual(configuration, next) {
		patch := client.MergeFromWithOptions(configuration, client.MergeFromWithOptimisticLock{})
		if err := k.client.Patch(ctx, next, patch); err != nil {
			return fmt.Errorf("write the guard's path and CA into its webhook configuration: %w", err)
		}
	}
	k.path.Store(&path)
	return nil
}

// bundle joins the CAs of the old bundle that are still valid with those of the chain.
func (k *keeper) bundle(old, chain []byte) ([]byte, error) {
	added, err := cert.ParseCertsPEM(chain)
	if err != nil {
		return nil, fmt.Errorf("read the guard's certificate: %w", err)
	}
	// What is no certificate in the bundle is somebody's mistake, and replaced.
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

// Options of Setup.
type Options struct {
	// Service is how API servers reach the guard. The Secret with the certificate has the
	// same name and namespace, the ValidatingWebhookConfiguration the same name.
	Service types.NamespacedName
	// Port to serve on.
	Port int
	// ExternalCertificate leaves the Secret and the caBundle to somebody else, such as
	// cert-manager. The path is Usher's in any case.
	ExternalCertificate bool
	// CloneSetUsers are the users that CloneSet controllers act as, besides this process.
	CloneSetUsers []string
}

// Setup adds the guard to the manager. Every replica serves it and keeps its certificate
// valid: in an upgrade from a version without the guard, the leader knows nothing of it.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) error {
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
	k := &keeper{
		Options: o, client: mgr.GetClient(), reader: mgr.GetAPIReader(), clock: clock.RealClock{},
		host: o.Service.Name + "." + o.Service.Namespace + ".svc",
	}
	server := webhook.NewServer(webhook.Options{Port: o.Port, TLSOpts: []func(*tls.Config){k.serve}})
	answers := &admission.Webhook{Handler: &Handler{
		Reader: mgr.GetAPIReader(), Writer: mgr.GetClient(), Recorder: recorder, Clock: clock.RealClock{},
		CloneSetUsers: append(slices.Clone(o.CloneSetUsers), self),
	}}
	server.Register("/", newDoor(&k.path, answers))
	// A replica without the certificate or the path is not ready: API servers do not call it then.
	err = errors.Join(mgr.Add(server),
		mgr.AddReadyzCheck("guard", server.StartedChecker()), mgr.AddReadyzCheck("guard-path", k.ready))
	if err != nil {
		return fmt.Errorf("serve the guard with the manager: %w", err)
	}
	return k.setUp(mgr, own)
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

// setUp adds the controller that serves, makes and renews the certificate.
func (k *keeper) setUp(mgr ctrl.Manager, own cache.Cache) error {
	// There is one certificate, whatever has changed.
	keep := crhandler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	// Names of controllers are unique in a process; a manager that is started again in the
	// same one is no mistake. Nothing here has a priority.
	build := ctrl.NewControllerManagedBy(mgr).Named("guard-certificate").
		WithOptions(controller.Options{SkipNameValidation: new(true), UsePriorityQueue: new(false), NeedLeaderElection: new(false)}).
		WatchesRawSource(source.Kind[client.Object](own, &corev1.Secret{}, keep)).
		WatchesRawSource(source.Kind[client.Object](own, &admissionregistrationv1.ValidatingWebhookConfiguration{}, keep))
	if err := build.Complete(k); err != nil {
		return fmt.Errorf("set up the guard's certificate: %w", err)
	}
	return nil
}
