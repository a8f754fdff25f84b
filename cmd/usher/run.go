// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	uberzap "go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/access"
	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/collectors"
	"github.com/usher-dev/usher/internal/guard"
	"github.com/usher-dev/usher/internal/guard/endpoint"
	"github.com/usher-dev/usher/internal/guard/keeper"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/podcache"
	"github.com/usher-dev/usher/internal/registration"
	registrationplan "github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
	"github.com/usher-dev/usher/internal/rewind"
)

// The values of --controllers: the two halves, the guard, and the keeper of its certificate.
const halfCloneSet, halfRegistration, partGuard, partCertificate = "cloneset", "registration", "guard", "certificate"

// leaseParts is how often a process asks, while a lease lasts, whether etcd was restored: a standby must notice that before
// it leads.
const leaseParts = 4

// settings are the flags.
type settings struct {
	kubeconfig      string
	controllers     string
	options         ctrl.Options
	lease           time.Duration
	metricsInsecure bool
	xds             xds.ServerOptions
	xdsInsecure     bool
	xdsAuthorize    bool
	detectCopies    bool
	guardService    string
	guard           guard.Options
	qps             float64
	sets            cloneset.Options
	pods            *podcache.Keeper
	registrations   registration.Options
	log             zap.Options
}

func parse(args []string) (*settings, error) {
	s := settings{pods: podcache.New()}
	s.sets.Keep = s.pods.Keep
	flags := flag.NewFlagSet("usher", flag.ContinueOnError)
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig `file`; default: the Pod's service account, then $KUBECONFIG")
	flags.StringVar(&s.controllers, "controllers", halfCloneSet+","+halfRegistration, "what to run: cloneset, registration, guard, separated by commas; or certificate alone, which makes the guard's certificate and path, and listens to nothing")
	flags.BoolVar(&s.options.LeaderElection, "leader-elect", false, "run only while holding the leader's lease; needed with more than one replica")
	flags.StringVar(&s.options.LeaderElectionNamespace, "leader-election-namespace", "", "namespace of that lease; default: the Pod's own")
	flags.StringVar(&s.options.LeaderElectionID, "leader-election-id", "usher.usher.dev", "`name` of that lease; halves that run apart need one each")
	flags.DurationVar(&s.lease, "lease-duration", 4*time.Second, "how long a leader that is gone keeps that lease, in whole seconds; one that cannot renew it for three quarters of that ends")
	flags.StringVar(&s.options.Metrics.BindAddress, "metrics-bind-address", "0", "`address` that serves /metrics, such as :8080; 0 serves none")
	flags.BoolVar(&s.metricsInsecure, "metrics-insecure", false, "serve metrics to everybody, as plain HTTP; default: over TLS, to whom the API server lets get the path /metrics")
	flags.StringVar(&s.options.Metrics.CertDir, "metrics-cert-dir", "", "`folder` with tls.crt and tls.key for metrics; default: a certificate that Usher makes when it starts")
	flags.StringVar(&s.options.HealthProbeBindAddress, "health-probe-bind-address", "0", "`address` that serves /healthz and /readyz, such as :8081; 0 serves none")
	flags.StringVar(&s.xds.Address, "xds-bind-address", "0", "`address` that serves xDS, for Registries of the kind xds, such as :18000; 0 serves none")
	flags.StringVar(&s.xds.TLS.Certificate, "xds-tls-cert", "", "PEM `file` with the xDS server's certificate")
	flags.StringVar(&s.xds.TLS.Key, "xds-tls-key", "", "PEM `file` with that certificate's key")
	flags.StringVar(&s.xds.TLS.ClientCA, "xds-client-ca", "", "PEM `file` with the CAs that xDS clients' certificates are checked with; default: clients need none")
	flags.BoolVar(&s.xdsInsecure, "xds-insecure", false, "serve xDS as plain text, to everybody")
	flags.BoolVar(&s.xdsAuthorize, "xds-authorize", false, "serve xDS clients only services of namespaces where the user of their certificate may get endpointslices.discovery.k8s.io")
	flags.StringVar(&s.guardService, "guard-service", "", "`NAMESPACE/NAME` of the Service of the guard; its Secret and its ValidatingWebhookConfiguration have that name too")
	flags.IntVar(&s.guard.Port, "guard-port", 9443, "`port` that the guard serves on")
	flags.StringVar(&s.guard.Clients.CA, "guard-client-ca", "", "PEM `file` with the CAs that certificates of API servers are checked with; default: API servers need none")
	flags.Func("guard-client-names", "`names`, separated by commas: an API server's certificate needs one as its common name or a DNS name; default: any certificate that --guard-client-ca accepts", func(text string) error {
		s.guard.Clients.Names = strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
		return nil
	})
	flags.Func("guard-cloneset-users", "`users` that CloneSet controllers act as besides this process, separated by commas", func(text string) error {
		s.guard.CloneSetUsers = strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
		return nil
	})
	flags.Float64Var(&s.qps, "kube-api-qps", 500, "requests per second to the API server, bursts of twice that; -1 leaves it to the server's priority and fairness")
	flags.IntVar(&s.sets.Parallel, "parallel", 128, "how many Pods of one set are written at a time at most; fewer while the API server is busy")
	flags.IntVar(&s.registrations.RegistryWorkers, "registry-workers", 32, "how many calls to one registry are in flight at most; a slow one holds up only the namespaces that use it")
	flags.Func("hook-keys", "`keys` of labels and finalizers that hooks of CloneSets may have besides those of usher.dev, separated by commas: a key, a domain with its slash such as example.com/, or * for all; default: *", s.hookKeys)
	flags.BoolVar(&s.registrations.Finish, "finish-deletions", false, "delete Pods that have drained, as long as the reason holds for which somebody asked to delete them; needs the role usher-finish")
	flags.BoolVar(&s.registrations.LoopbackPods, "loopback-pods", false, "for development clusters whose Pods are processes of this machine: ask Pods that have a loopback address as well; anywhere else such an address leads to what listens in Usher's own Pod")
	flags.Func("cluster-id", "`name` of this cluster in registries' entries, of letters, digits, dots, dashes and underscores; a cluster restored from a copy of another one needs one of its own; default: the UID of the namespace kube-system", s.clusterID)
	flags.BoolVar(&s.detectCopies, "detect-copies", true, "leave registries alone in a cluster that may be a copy of another one: other API servers answer than those that Usher has noted in the ConfigMap usher-cluster of its namespace, that of --leader-election-namespace")
	flags.BoolVar(&s.registrations.Guarded, "guarded", false, "a guard runs in this cluster, for all namespaces: tell of Pods that are deleted without it while registries list them")
	flags.BoolVar(&s.sets.KeepFieldManagers, "keep-field-managers", false, "leave metadata.managedFields of Pods alone; each write of a Pod costs the API server about twice as much then")
	flags.StringVar((*string)(&s.sets.LeaveNodes), "leave-nodes", string(plan.LeaveCordoned), "`which` nodes Pods leave before somebody evicts them: cordoned (and those of the next), tainted (with a taint or condition that announces their end), urgent (that go within two minutes, whoever objects) or never; Pods of CloneSets with a preDelete hook leave all of these, and all registered Pods the urgent ones")
	flags.StringVar(&s.sets.PullImage, "pull-image", "", "Usher's own `image`: before Pods of CloneSets leave service for an update in place, a short-lived Pod of it has their nodes pull the new image, on Kubernetes 1.35 and newer; default: Pods leave service first")
	s.log.BindFlags(flags)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: usher takes flags only, see usher --help", flags.Arg(0))
	}
	return &s, s.check()
}

// hookKeys reads the keys of hooks that Usher may write.
func (s *settings) hookKeys(text string) error {
	keys := strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
	for _, key := range keys {
		wrong := validation.IsQualifiedName(key)
		if domain, isDomain := strings.CutSuffix(key, "/"); isDomain {
			wrong = validation.IsDNS1123Subdomain(domain)
		}
		if key != registrationplan.AllKeys && len(wrong) > 0 {
			return fmt.Errorf("%q is neither the key of a label or finalizer, such as example.com/drained, "+
				"nor a domain with its slash, such as example.com/, nor *", key)
		}
	}
	s.registrations.HookKeys = registrationplan.NewKeys(keys)
	return nil
}

// clusterID accepts what is valid as a label's value: registries of all kinds can store that.
func (s *settings) clusterID(text string) error {
	if text == "" || len(validation.IsValidLabelValue(text)) > 0 {
		return fmt.Errorf("%q is not the value of a label: use at most 63 letters, digits, dots, dashes and underscores, "+
			"with a letter or digit at both ends", text)
	}
	s.registrations.ClusterID = text
	return nil
}

// check refuses flags that do not fit together.
func (s *settings) check() error {
	parts := []string{halfCloneSet, halfRegistration, partGuard, partCertificate}
	for _, part := range strings.Split(s.controllers, ",") {
		if !slices.Contains(parts, part) {
			return fmt.Errorf("--controllers: %q is none of %s", part, strings.Join(parts, ", "))
		}
	}
	if err := errors.Join(s.checkXDS(), s.checkCertificate()); err != nil {
		return err
	}
	switch nodes := plan.LeaveChoices(); {
	case s.lease < 2*time.Second || s.lease%time.Second != 0:
		return fmt.Errorf("--lease-duration must be whole seconds, at least 2s, not %s", s.lease)
	case s.sets.Parallel < 1:
		return fmt.Errorf("--parallel must be at least 1, not %d", s.sets.Parallel)
	case s.registrations.RegistryWorkers < 1:
		return fmt.Errorf("--registry-workers must be at least 1, not %d", s.registrations.RegistryWorkers)
	case !slices.Contains(nodes, s.sets.LeaveNodes):
		return fmt.Errorf("--leave-nodes: %q is none of %v", s.sets.LeaveNodes, nodes)
	}
	return s.checkGuard()
}

// checkCertificate returns an error if the process would keep the guard's certificate and also listen
// on a port: such a process must not have the right to say whom API servers call.
func (s *settings) checkCertificate() error {
	switch {
	case !s.runs(partCertificate):
		return nil
	case s.controllers != partCertificate:
		return fmt.Errorf("--controllers: %s runs alone, with a service account of its own", partCertificate)
	case serves(s.options.Metrics.BindAddress):
		return fmt.Errorf("--metrics-bind-address: %s listens to nothing; leave it out", partCertificate)
	case serves(s.options.HealthProbeBindAddress):
		return fmt.Errorf("--health-probe-bind-address: %s listens to nothing; leave it out", partCertificate)
	}
	return nil
}

// checkGuard reads the name of the guard's Service.
func (s *settings) checkGuard() error {
	namespace, name, _ := strings.Cut(s.guardService, "/")
	s.guard.Service = endpoint.Service{Namespace: namespace, Name: name}
	switch runs := s.runs(partGuard) || s.runs(partCertificate); {
	case !runs && s.guardService != "":
		return errors.New("--guard-service needs guard among --controllers, or certificate")
	case !s.runs(partGuard) && s.guard.Clients.CA != "":
		return errors.New("--guard-client-ca needs guard among --controllers")
	case runs && (namespace == "" || name == ""):
		return fmt.Errorf("--guard-service: %q is not NAMESPACE/NAME; the guard and its certificate need it", s.guardService)
	}
	return s.guard.Clients.Check()
}

// checkXDS refuses to serve plain text by mistake.
func (s *settings) checkXDS() error {
	secured := s.xds.TLS != (xds.TLSFiles{})
	switch {
	case !serves(s.xds.Address) && (secured || s.xdsAuthorize):
		return errors.New("--xds-tls-cert, --xds-tls-key, --xds-client-ca and --xds-authorize need --xds-bind-address")
	case !serves(s.xds.Address):
		return nil
	case !s.runs(halfRegistration):
		return fmt.Errorf("--xds-bind-address needs %s among --controllers", halfRegistration)
	case !secured && !s.xdsInsecure:
		return errors.New("--xds-bind-address needs --xds-tls-cert and --xds-tls-key, or --xds-insecure for plain text that everybody may read")
	case s.xdsAuthorize && s.xds.TLS.ClientCA == "":
		return errors.New("--xds-authorize needs --xds-client-ca: it is for users that certificates name")
	}
	return nil
}

func (s *settings) runs(half string) bool {
	return slices.Contains(strings.Split(s.controllers, ","), half)
}

// serves reports whether a flag's address makes the process listen.
func serves(address string) bool { return address != "" && address != "0" }

// keepBelow leaves an eighth of a memory limit for memory that the runtime does not count, such as the
// program's own pages, and for garbage that grows faster than it is collected.
func keepBelow() {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit / 8 * 7)
	}
}

func run(ctx context.Context, args []string) error {
	keepBelow()
	s, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	logger := s.logger()
	ctrl.SetLogger(logger)
	config, err := s.restConfig()
	if err != nil {
		return err
	}
	found := s.checkServer(ctx, config, logger)
	leads := &fence{asked: ctx}
	mgr, err := s.manager(leads.around(config), logger)
	if err != nil {
		return err
	}
	until, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	s.guard.Config, s.guard.Outlives = config, guard.Outlives{Until: until, Serving: &sync.WaitGroup{}}
	if err := errors.Join(mgr.Add(leads), s.setUp(ctx, mgr, found), s.exportParts(metrics.Registry)); err != nil {
		return err
	}
	ended := mgr.Start(ctx)
	if s.runs(partGuard) {
		stay(ctx, ended)
	}
	leave()
	s.guard.Outlives.Serving.Wait()
	if ended != nil {
		return fmt.Errorf("run: %w", ended)
	}
	return nil
}

// logger makes the logger that the flags ask for.
func (s *settings) logger() logr.Logger {
	return zap.New(zap.UseFlagOptions(&s.log), zap.RawZapOpts(uberzap.WrapCore(func(core zapcore.Core) zapcore.Core { return lazy{core} })))
}

// lazy encodes the values of a logger only when it logs, which it does not do in most passes.
type lazy struct{ zapcore.Core }

// With implements zapcore.Core.
func (c lazy) With(values []zapcore.Field) zapcore.Core {
	return lazy{zapcore.NewLazyWith(c.Core, values)}
}

// setUp adds the controllers that --controllers names.
func (s *settings) setUp(ctx context.Context, mgr ctrl.Manager, found apiServer) error {
	if s.runs(halfCloneSet) {
		s.sets.NoResize = found.noResize
		if !found.imageVolumes() {
			s.sets.PullImage = ""
		}
		if err := cloneset.Setup(ctx, mgr, s.sets); err != nil {
			return err
		}
	}
	if s.runs(halfRegistration) {
		s.registrations.Evictions = found.evictions
		if err := s.registration(ctx, mgr); err != nil {
			return err
		}
	}
	if s.runs(partGuard) {
		return guard.Setup(ctx, mgr, s.guard)
	}
	if s.runs(partCertificate) {
		return keeper.Setup(mgr, s.guard.Service)
	}
	return nil
}

// exportParts exports a metric for each part that this process runs, so that an alert can detect a
// missing part without relying on labels that a scraper adds.
func (s *settings) exportParts(registerer prometheus.Registerer) error {
	running := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "usher_running", Help: "1 for each part of Usher that this process runs: cloneset, registration, guard.",
	}, []string{"part"})
	for part := range strings.SplitSeq(s.controllers, ",") {
		running.WithLabelValues(part).Set(1)
	}
	return collectors.Register(registerer, &running)
}

// registration adds the hook operator, and its servers.
func (s *settings) registration(ctx context.Context, mgr ctrl.Manager) error {
	if s.xdsAuthorize {
		reviewer, err := access.New(mgr.GetConfig())
		if err != nil {
			return err
		}
		s.xds.MayRead = reviewer.MayReadServices
	}
	if serves(s.xds.Address) {
		served, err := xds.Setup(ctx, mgr, s.xds)
		if err != nil {
			return err
		}
		s.registrations.XDS = served
	}
	if s.detectCopies {
		s.registrations.Namespace = cmp.Or(s.options.LeaderElectionNamespace, ownNamespace())
	}
	s.registrations.StayOnNodes = s.sets.LeaveNodes == plan.LeaveNever
	return registration.Setup(ctx, mgr, s.registrations)
}

// ownNamespace is that of the Pod that this process runs in; empty outside of Pods.
func ownNamespace() string {
	name, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

func (s *settings) restConfig() (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if s.kubeconfig != "" || err != nil {
		config, err = clientcmd.BuildConfigFromFlags("", cmp.Or(s.kubeconfig, os.Getenv(clientcmd.RecommendedConfigPathEnvVar)))
	}
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w; set --kubeconfig or KUBECONFIG, or run in a Pod", err)
	}
	config.DisableCompression = true // The network is faster than the compression on either side.
	config.QPS, config.Burst = float32(s.qps), int(2*s.qps)
	return rest.AddUserAgent(config, "usher"), nil
}

// renewal returns how long a leader tries to renew its lease before it exits, and how often leader and
// standbys try to get the lease. client-go jitters each wait up to 2.2 times that. A standby may see
// the last renewal one wait late, and check one wait after the lease has expired. So fail-over takes at
// most 1 + 2 × 2.2/20 = 1.22 leases.
func (s *settings) renewal() (deadline, retry time.Duration) { return s.lease * 3 / 4, s.lease / 20 }

func (s *settings) manager(config *rest.Config, logger logr.Logger) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	known := runtime.SchemeBuilder{clientgoscheme.AddToScheme, appsv1alpha1.AddToScheme, usherv1alpha1.AddToScheme}
	if err := known.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register API types: %w", err)
	}
	deadline, retry := s.renewal()
	o := s.options
	o.Scheme, o.Logger = scheme, logger
	o.LeaderElectionReleaseOnCancel = true
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = &s.lease, &deadline, &retry
	if !s.metricsInsecure {
		o.Metrics.SecureServing, o.Metrics.FilterProvider = true, access.Metrics
		o.Metrics.TLSOpts = []func(*tls.Config){func(c *tls.Config) { c.MinVersion = tls.VersionTLS12 }}
	}
	o.Cache = cache.Options{
		DefaultTransform: kube.Unread,
		NewInformer:      s.pods.NewInformer,
		ByObject: map[client.Object]cache.ByObject{
			&appsv1.ControllerRevision{}:    cloneset.RevisionCache(),
			&corev1.Node{}:                  cloneset.NodeCache(),
			&corev1.Pod{}:                   s.pods.Options(),
			&corev1.PersistentVolumeClaim{}: cloneset.ClaimCache(),
			&discoveryv1.EndpointSlice{}:    xds.Cache(),
		},
	}
	// Secrets are read one by one, so that no permission to list them is needed.
	o.Client.Cache = &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}
	mgr, err := ctrl.NewManager(config, o)
	if err != nil {
		if address, ok := errors.AsType[*net.OpError](err); ok && address.Op == "listen" {
			return nil, fmt.Errorf("%w; choose another --metrics-bind-address or --health-probe-bind-address", err)
		}
		return nil, fmt.Errorf("set up: %w", err)
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	// What makes the certificate has no right to read Pods, and reads what it writes.
	if !s.runs(partCertificate) {
		if err := rewind.Setup(mgr, s.lease/leaseParts); err != nil {
			return nil, err
		}
	}
	return mgr, nil
}
