// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	discoveryv1 "k8s.io/api/discovery/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/usher-dev/usher/internal/registration/registry/messages"
)

const (
	// pingAfter and pingTimeout detect a client that vanished silently.
	pingAfter   = 30 * time.Second
	pingTimeout = 10 * time.Second
	// minPing is the shortest interval at which a client may ping the server.
	minPing = 10 * time.Second
	// maxAge is how long a connection lives, plus or minus a tenth, so that clients
	// spread over replicas that joined later. Clients keep their state while they
	// reconnect.
	maxAge      = 30 * time.Minute
	maxAgeGrace = 10 * time.Second
	// maxStreamsPerClient limits the streams of one connection: a client needs one.
	maxStreamsPerClient = 100
)

// ServerOptions are the options of Setup.
type ServerOptions struct {
	// Address is the address to listen on, such as :18000.
	Address string
	// TLS secures connections. Without it they are plain text.
	TLS TLSFiles
	// MayRead reports whether a client with the certificate may ask for services of a
	// namespace. Default: every client may.
	MayRead func(ctx context.Context, client *x509.Certificate, namespace string) (bool, error)
	// Registerer registers the metrics. Default: that of controller-runtime.
	Registerer prometheus.Registerer
}

// TLSFiles are PEM files. Each connection reads them again, so they can be replaced.
type TLSFiles struct {
	// Certificate and Key are the server's. Without them connections are plain text.
	Certificate, Key string
	// ClientCA verifies clients' certificates. Without it clients need no certificate.
	ClientCA string
}

// server serves clients on one address. It starts once it knows the full state, and
// persists nothing.
type server struct {
	*adsServer
	address string
	creds   credentials.TransportCredentials
	synced  toolscache.InformerSynced
	serving atomic.Bool
}

// Cache selects the EndpointSlices that the manager's cache must keep.
func Cache() cache.ByObject {
	var served client.ListOptions
	client.HasLabels{LabelService}.ApplyToList(&served)
	return cache.ByObject{Label: served.LabelSelector}
}

// Setup adds an xDS server to the manager and returns its Store. The server runs on
// every replica, leader or not. The manager is ready when the server answers.
func Setup(ctx context.Context, mgr ctrl.Manager, options ServerOptions) (*Store, error) {
	creds, err := options.TLS.credentials()
	if err != nil {
		return nil, fmt.Errorf("set up the xDS server: %w", err)
	}
	m, err := newMetrics(cmp.Or[prometheus.Registerer](options.Registerer, ctrlmetrics.Registry))
	if err != nil {
		return nil, fmt.Errorf("register the metrics of the xDS server: %w", err)
	}
	store := NewStore()
	informer, err := mgr.GetCache().GetInformer(ctx, &discoveryv1.EndpointSlice{})
	if err != nil {
		return nil, fmt.Errorf("follow EndpointSlices: %w", err)
	}
	handle, err := informer.AddEventHandler(store.handler())
	if err != nil {
		return nil, fmt.Errorf("follow EndpointSlices: %w", err)
	}
	ads := newADS(store, m, mgr.GetLogger().WithName("xds"))
	ads.mayRead = options.MayRead
	s := &server{adsServer: ads, address: options.Address, creds: creds, synced: handle.HasSynced}
	if err := errors.Join(mgr.Add(s), mgr.AddReadyzCheck("xds", s.ready)); err != nil {
		return nil, fmt.Errorf("set up the xDS server: %w", err)
	}
	return store, nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (s *server) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (s *server) Start(ctx context.Context) error {
	if !toolscache.WaitForCacheSync(ctx.Done(), s.synced) {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("serve xDS: %w; choose another --xds-bind-address", err)
	}
	g := grpc.NewServer(grpc.Creds(s.creds), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(maxStreamsPerClient),
		grpc.MaxHeaderListSize(maxHeaders), grpc.ForceServerCodecV2(messages.Bounded(maxFields)),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: pingAfter, Timeout: pingTimeout, MaxConnectionAge: maxAge, MaxConnectionAgeGrace: maxAgeGrace,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s.adsServer)
	s.log.Info("Serving xDS", "address", listener.Addr().String(), "tls", s.creds.Info().SecurityProtocol)
	s.serving.Store(true)
	defer s.serving.Store(false)
	// Streams never end by themselves.
	defer context.AfterFunc(ctx, g.Stop)()
	if err := g.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve xDS: %w", err)
	}
	return nil
}

// ready is a check of /readyz.
func (s *server) ready(*http.Request) error {
	if !s.serving.Load() {
		return errors.New("the xDS server has not begun to answer")
	}
	return nil
}

// credentials reads the files once, to report errors in them early.
func (f TLSFiles) credentials() (credentials.TransportCredentials, error) {
	switch {
	case f == TLSFiles{}:
		return insecure.NewCredentials(), nil
	case f.Certificate == "" || f.Key == "":
		return nil, errors.New("--xds-tls-cert and --xds-tls-key go together: set both")
	}
	if _, err := f.config(); err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.config() },
	}), nil
}

func (f TLSFiles) config() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
	if err != nil {
		return nil, fmt.Errorf("read --xds-tls-cert and --xds-tls-key: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair}}
	if f.ClientCA == "" {
		return config, nil
	}
	data, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("read --xds-client-ca: %w", err)
	}
	config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !config.ClientCAs.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("--xds-client-ca: %s holds no certificate: put a PEM bundle there", f.ClientCA)
	}
	return config, nil
}

// metrics are the server's Prometheus metrics.
type metrics struct {
	streams   prometheus.Gauge
	responses prometheus.Counter
	refusals  prometheus.Counter
}

// newMetrics registers the metrics.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		streams:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "usher_xds_streams", Help: "Clients of xDS that are connected to this replica."}),
		responses: prometheus.NewCounter(prometheus.CounterOpts{Name: "usher_xds_responses_total", Help: "Answers that were sent to clients of xDS."}),
		refusals:  prometheus.NewCounter(prometheus.CounterOpts{Name: "usher_xds_refusals_total", Help: "Answers that clients of xDS refused."}),
	}
	return m, errors.Join(registerer.Register(m.streams), registerer.Register(m.responses), registerer.Register(m.refusals))
}
