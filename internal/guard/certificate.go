// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/usher-dev/usher/internal/announce"
	"github.com/usher-dev/usher/internal/guard/endpoint"
)

// checkEvery is how often the guard checks that API servers trust the certificate even if neither the
// certificate nor the configuration has changed: certificates expire.
const checkEvery = time.Hour

// known holds the certificate, from the Secret, and the path, from the webhook configuration, with
// which API servers call the guard, as they were last seen. The guard changes neither: a process that
// listens on a port must not have the right to say whom API servers call.
type known struct {
	service endpoint.Service
	reader  client.Reader
	clock   clock.PassiveClock
	current atomic.Pointer[tls.Certificate]
	path    atomic.Pointer[string]
	// wrong is the reason why API servers cannot call the guard; a nil error if they can.
	wrong atomic.Pointer[error]
}

// serve makes a server use the certificate.
func (k *known) serve(config *tls.Config) {
	config.MinVersion = tls.VersionTLS13
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if found := k.current.Load(); found != nil {
			return found, nil
		}
		return nil, errors.New("the guard has no certificate yet")
	}
}

// ready is a check of /readyz.
func (k *known) ready(*http.Request) error {
	if wrong := k.wrong.Load(); wrong != nil {
		return *wrong
	}
	return errors.New("the guard does not know yet how API servers call it")
}

// Reconcile takes over the certificate from the Secret and the path from the configuration.
func (k *known) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	wrong := errors.Join(k.takeCertificate(ctx), k.takePath(ctx))
	k.wrong.Store(&wrong)
	if wrong != nil {
		log.FromContext(ctx).Info("API servers cannot call the guard", "reason", wrong.Error())
	}
	return ctrl.Result{RequeueAfter: checkEvery}, nil
}

// takeCertificate serves the certificate in the Secret. If the Secret has no readable one, the guard
// keeps its previous one.
func (k *known) takeCertificate(ctx context.Context) error {
	secret := &corev1.Secret{}
	if err := k.reader.Get(ctx, k.service.Secret(), secret); err != nil {
		return fmt.Errorf("read the Secret with the guard's certificate: %w; install the chart again, it makes the Secret", err)
	}
	pair, err := endpoint.Pair(secret)
	if pair != nil {
		k.current.Store(pair)
	}
	return err
}

// takePath serves the path in the configuration; no path if it has none. It checks whether API servers
// trust the certificate.
func (k *known) takePath(ctx context.Context) error {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := k.reader.Get(ctx, k.service.Configuration(), configuration); err != nil {
		k.path.Store(nil)
		return fmt.Errorf("read the guard's webhook configuration: %w; install the chart again, it makes the configuration", err)
	}
	path := endpoint.PathOf(configuration)
	if path == "" {
		k.path.Store(nil)
		return fmt.Errorf("the webhook configuration %s has no path that only API servers know: "+
			"the Deployment of the component certificate makes one; with cert-manager, upgrade the release", configuration.Name)
	}
	k.path.Store(&path)
	return k.trusted(configuration)
}

// trusted returns an error unless API servers trust the certificate that is served. Without a caBundle
// they use the CAs of their system.
func (k *known) trusted(configuration *admissionregistrationv1.ValidatingWebhookConfiguration) error {
	pair := k.current.Load()
	if pair == nil {
		return fmt.Errorf("the Secret %s has no certificate yet: the Deployment of the component certificate makes one, or cert-manager", k.service.Name)
	}
	o := x509.VerifyOptions{DNSName: k.service.Host(), CurrentTime: k.clock.Now(), Intermediates: x509.NewCertPool()}
	for _, der := range pair.Certificate[1:] {
		if one, err := x509.ParseCertificate(der); err == nil {
			o.Intermediates.AddCert(one)
		}
	}
	for _, webhook := range configuration.Webhooks {
		o.Roots = nil
		if bundle := webhook.ClientConfig.CABundle; len(bundle) > 0 {
			o.Roots = x509.NewCertPool()
			o.Roots.AppendCertsFromPEM(bundle)
		}
		if _, err := pair.Leaf.Verify(o); err != nil {
			return fmt.Errorf("API servers do not trust the guard's certificate, by the caBundle of webhook %s: %w; "+
				"see the log of the Deployment of the component certificate, or of cert-manager", webhook.Name, err)
		}
	}
	return nil
}

// Options of Setup.
type Options struct {
	// Service is the Service at which API servers reach the guard.
	Service endpoint.Service
	// Port to serve on.
	Port int
	// CloneSetUsers are the users that CloneSet controllers act as, besides this process.
	CloneSetUsers []string
	// Clients says whose certificates API servers have to show.
	Clients Clients
	// Config is how the guard calls the API server. Default: as the manager does.
	Config *rest.Config
	// Outlives says how much longer than the manager it serves. Default: not at all.
	Outlives Outlives
}

// Setup adds the guard to the manager. Every replica serves it: in an upgrade from a version without
// the guard, the leader may still be one that has no guard.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) error {
	recorder, err := announce.Recorder(mgr, "usher")
	if err != nil {
		return err
	}
	self, err := whoAmI(ctx, mgr)
	if err != nil {
		return err
	}
	own, err := o.Service.Cache(mgr)
	if err != nil {
		return err
	}
	k := &known{service: o.Service, reader: own, clock: clock.RealClock{}}
	live, err := liveClient(mgr, o.Config)
	if err != nil {
		return err
	}
	answered, err := newAnswers(metrics.Registry)
	if err != nil {
		return fmt.Errorf("register the guard's metrics: %w", err)
	}
	answers := &admission.Webhook{Handler: &Handler{
		Reader: live, Writer: live, Recorder: recorder, Clock: clock.RealClock{},
		CloneSetUsers: append(slices.Clone(o.CloneSetUsers), self), Secret: secretOf(&k.path), Answered: answered,
	}}
	entrance := newDoor(&k.path, answers)
	entrance.turnedAway = func() { answered(AnswerBusy) }
	server := &frontend{port: o.Port, tls: &tls.Config{}, handler: entrance, clients: o.Clients, outlives: o.Outlives}
	k.serve(server.tls)
	// A replica that API servers cannot call is not ready, so the Service sends them to others.
	err = errors.Join(mgr.Add(server),
		mgr.AddReadyzCheck("guard", server.ready), mgr.AddReadyzCheck("guard-path", k.ready))
	if err != nil {
		return fmt.Errorf("serve the guard with the manager: %w", err)
	}
	return endpoint.Follow(mgr, "guard-certificate", own, k)
}

// whoAmI asks the API server as which user this process acts. Everybody may ask that
// (system:basic-user).
func whoAmI(ctx context.Context, mgr ctrl.Manager) (string, error) {
	review := &authenticationv1.SelfSubjectReview{}
	if err := mgr.GetClient().Create(ctx, review); err != nil {
		return "", fmt.Errorf("ask who Usher is: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}
