// SPDX-License-Identifier: Apache-2.0

// Package etcd keeps entries in the layout of
// go.etcd.io/etcd/client/v3/naming/endpoints, which gRPC's etcd resolver reads:
// the key is <prefix>/<service>/<id>, the value {"Op":0,"Addr":…,"Metadata":…}.
//
// Keys have no lease. Writes compare the modification revision that was listed,
// in the transaction that makes them.
package etcd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
)

// Keys of the credentials Secret.
const (
	// KeyUsername and KeyPassword log in.
	KeyUsername = "username"
	KeyPassword = "password"
	// KeyCA is the PEM bundle that the members' certificates are checked with,
	// the system's roots if absent.
	KeyCA = credentials.KeyCA
	// KeyCertificate and KeyPrivateKey are the client certificate, in PEM.
	KeyCertificate = credentials.KeyCertificate
	KeyPrivateKey  = credentials.KeyPrivateKey
)

const (
	// defaultTimeout bounds the log-in of a new client unless Options say otherwise.
	defaultTimeout = 5 * time.Second
	// keepAlive finds a member that vanished without closing its connection.
	// Servers refuse clients that ask more often than every 5 s.
	keepAlive        = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
	// retries and retryPause let a call outlive a change of leader.
	retries    = 5
	retryPause = 100 * time.Millisecond
)

// Options say where etcd is.
type Options struct {
	// Endpoints are URLs of members.
	Endpoints []string
	// Prefix is where services begin, without slashes at its ends.
	Prefix string
	// Secret holds the credentials by the keys above; it may be nil.
	Secret map[string][]byte
	// Timeout bounds the log-in that a user name needs, 5 s if zero. Every other
	// call is bounded by its context alone.
	Timeout time.Duration
}

// FromSpec reads the kind's field of a Registry.
func FromSpec(spec *usherv1alpha1.RegistrySpec, _ string) *registry.Settings {
	s := spec.Etcd
	if s == nil {
		return nil
	}
	return &registry.Settings{
		Secret: s.CredentialsSecret, Root: s.Prefix, Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
			return New(Options{
				Endpoints: s.Endpoints, Prefix: root, Secret: secret, Timeout: ptr.Deref(spec.Timeout, metav1.Duration{}).Duration,
			})
		},
	}
}

// Registry implements registry.Connector.
type Registry struct {
	prefix string
	config clientv3.Config

	mu     sync.Mutex
	client *clientv3.Client
	closed bool
	// decoded are the entries of the last list, by service and key.
	decoded map[string]map[string]decoded
}

// decoded is an entry and the value that it was read from. Few of a service's
// values change from one list to the next.
type decoded struct {
	value []byte
	entry registry.Entry
}

var _ registry.Connector = (*Registry)(nil)

// New checks the options and connects to nothing: an etcd that is down is told
// by the first call. Errors are permanent and name the Secret's key.
func New(options Options) (*Registry, error) {
	if len(options.Endpoints) == 0 {
		return nil, registry.Permanent(errors.New("etcd.endpoints is empty: name the URLs of the members"))
	}
	config := clientv3.Config{
		Endpoints:            options.Endpoints,
		DialTimeout:          cmp.Or(options.Timeout, defaultTimeout),
		DialKeepAliveTime:    keepAlive,
		DialKeepAliveTimeout: keepAliveTimeout,
		Username:             string(options.Secret[KeyUsername]),
		Password:             string(options.Secret[KeyPassword]),
		MaxUnaryRetries:      retries,
		BackoffWaitBetween:   retryPause,
		DialOptions:          []grpc.DialOption{grpc.WithChainUnaryInterceptor(failFast)},
		// What goes wrong is returned; the client's own log would repeat it.
		Logger: zap.NewNop(),
	}
	if secure(options.Endpoints) {
		var err error
		if config.TLS, err = credentials.TLS(options.Secret); err != nil {
			return nil, registry.Permanent(err)
		}
	}
	return &Registry{prefix: strings.Trim(options.Prefix, "/"), config: config, decoded: map[string]map[string]decoded{}}, nil
}

// failFast undoes the client's own waiting for a connection: there an etcd that
// is down looks like a slow one, and the reason is lost when the time runs out.
func failFast(
	ctx context.Context, method string, request, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	return invoke(ctx, method, request, reply, cc, append(options, grpc.WaitForReady(false))...)
}

func secure(endpoints []string) bool {
	for _, endpoint := range endpoints {
		if strings.HasPrefix(endpoint, "https://") {
			return true
		}
	}
	return false
}

// connected returns the client, made on first use: with a user name, making one
// needs an etcd that answers.
func (r *Registry) connected() (*clientv3.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, registry.Transient(errors.New("the connection was closed"))
	}
	if r.client != nil {
		return r.client, nil
	}
	client, err := clientv3.New(r.config)
	if err != nil {
		return nil, typed(err)
	}
	r.client = client
	return client, nil
}

// Ping implements registry.Connector.
func (r *Registry) Ping(ctx context.Context) error {
	client, err := r.connected()
	if err != nil {
		return err
	}
	_, err = client.Get(ctx, r.prefix+"/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	return typed(err)
}

// List implements registry.Connector. The read is linearizable.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	client, err := r.connected()
	if err != nil {
		return nil, err
	}
	root := r.root(service)
	answer, err := client.Get(ctx, root, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
	if err != nil {
		return nil, typed(err)
	}
	return r.decode(service, answer.Kvs), nil
}

// decode reads the values that have changed since the last list, and takes what
// the others say from there.
func (r *Registry) decode(service string, kvs []*mvccpb.KeyValue) []registry.Entry {
	r.mu.Lock()
	before := r.decoded[service]
	r.mu.Unlock()
	root := r.root(service)
	entries, now := make([]registry.Entry, 0, len(kvs)), make(map[string]decoded, len(kvs))
	for _, kv := range kvs {
		id := strings.TrimPrefix(string(kv.Key), root)
		known, ok := before[id]
		if !ok || !bytes.Equal(known.value, kv.Value) {
			known = decoded{kv.Value, decode(id, kv)}
		}
		known.entry.Version = version(kv)
		now[id] = known
		entries = append(entries, known.entry)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decoded[service] = now
	if len(now) == 0 {
		delete(r.decoded, service)
	}
	return entries
}

// Close implements registry.Connector.
func (r *Registry) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.client == nil {
		return nil
	}
	if err := r.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close the etcd client: %w", err)
	}
	return nil
}

func (r *Registry) root(service string) string { return r.prefix + "/" + service + "/" }

// typed marks an error of the etcd client. What is not known to be permanent is
// transient: trying again later is the safer mistake.
func typed(err error) error {
	if err == nil {
		return nil
	}
	switch code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied,
		codes.Unimplemented, codes.OutOfRange, codes.FailedPrecondition:
		return registry.Permanent(plain(err))
	}
	return registry.Transient(plain(err))
}

// readable is an error with gRPC's frame taken off its message.
type readable struct {
	error
	message string
}

func (r readable) Error() string { return r.message }

func (r readable) Unwrap() error { return r.error }

func plain(err error) error {
	if s, ok := status.FromError(err); ok && s.Message() != "" {
		return readable{error: err, message: s.Message()}
	}
	return err
}

func code(err error) codes.Code {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code()
	}
	return status.Code(err)
}
