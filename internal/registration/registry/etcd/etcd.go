// SPDX-License-Identifier: Apache-2.0

// Package etcd keeps entries in the layout of
// go.etcd.io/etcd/client/v3/naming/endpoints, which gRPC's etcd resolver reads: the key
// is <prefix>/<service>/<id>, the value {"Op":0,"Addr":…,"Metadata":…}.
//
// Keys have no lease. Each write compares, in its own transaction, the modification
// revision that was listed.
package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
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

const (
	// defaultTimeout limits the login of a new client unless spec.timeout does.
	defaultTimeout = 5 * time.Second
	// keepAlive detects a member that vanished without closing its connection. Servers
	// refuse clients that ping more often than every 5 s.
	keepAlive        = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
	// retries and retryPause let a call survive a change of leader.
	retries    = 5
	retryPause = 100 * time.Millisecond
	// firstRoom and maxRoom bound a list, and otherRoom any other answer, in bytes: at most
	// what is there now of the entries of one transaction.
	firstRoom = 16 << 10
	maxRoom   = 1 << 30
	otherRoom = 1 << 20
)

// roomKey is the context's key for how long an answer may be.
type roomKey struct{}

// FromSpec says how the kind's field of a Registry with that timeout is to be carried out.
func FromSpec(timeout *metav1.Duration) func(s *usherv1alpha1.EtcdRegistry) *registry.Settings {
	return func(s *usherv1alpha1.EtcdRegistry) *registry.Settings {
		return &registry.Settings{
			Secret: s.CredentialsSecret, Root: s.Prefix, Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
				return New(s.Endpoints, root, secret, ptr.Deref(timeout, metav1.Duration{Duration: defaultTimeout}).Duration)
			},
		}
	}
}

// Registry implements registry.Connector.
type Registry struct {
	prefix string
	config clientv3.Config

	mu     sync.Mutex
	client *clientv3.Client
	closed bool
	// decoded holds the entries of the last list, by service and key.
	decoded map[string]map[string]decoded
}

// decoded is an entry and the value that it was decoded from. Few values of a service
// change between two lists.
type decoded struct {
	value []byte
	entry registry.Entry
}

// New checks what it gets but does not connect: the first call reports an etcd that is
// down. The endpoints are URLs of members. The secret has keys of package credentials, all
// optional, or is nil. The timeout limits the login that a user name requires; only its context
// limits any other call. Errors are permanent and name the Secret's key.
func New(endpoints []string, prefix string, secret map[string][]byte, timeout time.Duration) (*Registry, error) {
	if len(endpoints) == 0 {
		return nil, registry.Permanent(errors.New("etcd.endpoints is empty: list the URLs of the members"))
	}
	config := clientv3.Config{
		Endpoints:            endpoints,
		DialTimeout:          timeout,
		DialKeepAliveTime:    keepAlive,
		DialKeepAliveTimeout: keepAliveTimeout,
		Username:             string(secret[credentials.KeyUsername]),
		Password:             string(secret[credentials.KeyPassword]),
		MaxUnaryRetries:      retries,
		BackoffWaitBetween:   retryPause,
		DialOptions:          []grpc.DialOption{grpc.WithChainUnaryInterceptor(failFast)},
		// Errors are returned; the client's own log would repeat them.
		Logger: zap.NewNop(),
	}
	if slices.ContainsFunc(endpoints, func(url string) bool { return strings.HasPrefix(url, "https://") }) {
		var err error
		if config.TLS, err = credentials.TLS(secret); err != nil {
			return nil, registry.Permanent(err)
		}
	}
	return &Registry{prefix: strings.Trim(prefix, "/"), config: config, decoded: map[string]map[string]decoded{}}, nil
}

// failFast disables the client's own wait for a connection, which makes an etcd that is
// down look slow and hides the reason when the time runs out. It lets no answer be longer than
// there is room for: the client would take 2 GiB.
func failFast(
	ctx context.Context, method string, request, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	room, ok := ctx.Value(roomKey{}).(int)
	if !ok {
		room = otherRoom
	}
	return invoke(ctx, method, request, reply, cc, append(options, grpc.WaitForReady(false), grpc.MaxCallRecvMsgSize(room))...)
}

// connected returns the client, made on first use: with a user name, making a client
// requires an etcd that answers.
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
	kvs, err := r.read(ctx, client, service)
	if err != nil {
		return nil, err
	}
	return r.decode(service, kvs), nil
}

// read takes room for the answer before it arrives: first for about as much as last time, and
// for more while that is too little.
func (r *Registry) read(ctx context.Context, client *clientv3.Client, service string) ([]*mvccpb.KeyValue, error) {
	for room := r.room(service); room <= maxRoom; room *= 4 {
		if err := registry.Take(ctx, room); err != nil {
			return nil, err
		}
		answer, err := client.Get(context.WithValue(ctx, roomKey{}, room), r.root(service), clientv3.WithPrefix(),
			clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
		if err == nil {
			return answer.Kvs, registry.Take(ctx, sizeOf(answer.Kvs)-room)
		}
		if !tooLong(err) {
			return nil, typed(err)
		}
		if err := registry.Take(ctx, -room); err != nil {
			return nil, err
		}
	}
	return nil, registry.TooMuch("etcd", maxRoom)
}

// room is how long the next list of a service may be at first, in bytes.
func (r *Registry) room(service string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	size := 0
	for id, known := range r.decoded[service] {
		size += len(id) + len(known.value)
	}
	return max(firstRoom, 2*size)
}

func sizeOf(kvs []*mvccpb.KeyValue) (size int) {
	for _, kv := range kvs {
		size += len(kv.Key) + len(kv.Value)
	}
	return size
}

// decode reads the values that changed since the last list, and reuses the entries of
// the others.
func (r *Registry) decode(service string, kvs []*mvccpb.KeyValue) []registry.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, root := r.decoded[service], r.root(service)
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

// typed marks an error of the etcd client. An error not known to be permanent is
// transient, because a needless retry is the safer mistake.
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

// tooLong reports whether there was too little room for an answer.
func tooLong(err error) bool {
	return code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max")
}

// readable is an error without gRPC's prefix in its message.
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
	if known, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return known.Code()
	}
	return status.Code(err)
}
