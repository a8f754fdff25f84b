// SPDX-License-Identifier: Apache-2.0

// Package etcd keeps entries in etcd, each as a key <prefix>/<service>/<instance>, in the layout of gRPC's etcd
// resolver, of Kratos, of go-zero or of Kitex.
//
// Keys have no lease. Each write compares, in its own transaction, the modification
// revision that was listed.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
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
	"github.com/usher-dev/usher/internal/registration/registry/messages"
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
	// pageSize is how many entries are read at a time: a large service's all at once would take
	// several times their memory.
	pageSize = 2000
	// firstRoom and maxRoom bound a page, and otherRoom any other answer, in bytes: at most
	// what is there now of the entries of one transaction.
	firstRoom = 16 << 10
	maxRoom   = 1 << 30
	otherRoom = 1 << 20
	// maxFields bounds what an answer has in it: an entry of a page has seven fields, and in memory it
	// is as large as any other, however short it was. maxHeaders bounds an answer's headers, in
	// bytes.
	maxFields  = 8 * pageSize
	maxHeaders = 64 << 10
)

// codec decodes answers with no more in them than any real one.
var codec = messages.Bounded(maxFields)

// roomKey is the context's key for how long an answer may be.
type roomKey struct{}

// FromSpec says how the kind's field of a Registry with that timeout is to be carried out.
func FromSpec(timeout *metav1.Duration) func(s *usherv1alpha1.EtcdRegistry) *registry.Settings {
	return func(s *usherv1alpha1.EtcdRegistry) *registry.Settings {
		return &registry.Settings{
			Secret: s.CredentialsSecret, Root: cmp.Or(s.Prefix, layoutOf(s.Layout).prefix()),
			Connect: func(root string, secret map[string][]byte) (registry.Connector, error) {
				limit := ptr.Deref(timeout, metav1.Duration{Duration: defaultTimeout}).Duration
				return New(s.Endpoints, s.Layout, root, secret, limit)
			},
		}
	}
}

// Registry implements registry.Connector.
type Registry struct {
	// prefix is that of all keys, with a slash at its end; empty for none.
	prefix string
	layout layout
	config clientv3.Config

	mu     sync.Mutex
	client *clientv3.Client
	closed bool
	// listed holds the last list of each service that has entries.
	listed map[string]*list
}

// list is a service's entries by the names of their keys. Few of them change between two lists.
type list struct {
	decoded map[string]*decoded
	// longest is how long its longest page was, and room how long a page may be, in bytes.
	longest, room int
}

// decoded is an entry and a hash of the value that it was decoded from. The revision alone would not
// do: an etcd that was restored from a backup counts them again.
type decoded struct {
	hash  uint64
	entry registry.Entry
}

var seed = maphash.MakeSeed()

// New checks what it gets but does not connect: the first call reports an etcd that is
// down. The endpoints are URLs of members; an empty prefix is none. The secret has keys of package credentials, all
// optional, or is nil. The timeout limits the login that a user name requires; only its context
// limits any other call. Errors are permanent and name the Secret's key.
func New(
	endpoints []string, layout usherv1alpha1.EtcdLayout, prefix string, secret map[string][]byte, timeout time.Duration,
) (*Registry, error) {
	if len(endpoints) == 0 {
		return nil, registry.Permanent(errors.New("etcd.endpoints is empty: list the URLs of the members"))
	}
	if len(secret[credentials.KeyUsername]) == 0 != (len(secret[credentials.KeyPassword]) == 0) {
		// The client would log in as nobody.
		return nil, registry.Permanent(fmt.Errorf("the credentials Secret has only one of %s and %s: put in both, or none",
			credentials.KeyUsername, credentials.KeyPassword))
	}
	config := clientv3.Config{
		Endpoints: endpoints, DialTimeout: timeout, DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAliveTimeout,
		Username: string(secret[credentials.KeyUsername]), Password: string(secret[credentials.KeyPassword]),
		MaxUnaryRetries: retries, BackoffWaitBetween: retryPause,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(failFast), grpc.WithMaxHeaderListSize(maxHeaders)},
		// Errors are returned; the client's own log would repeat them.
		Logger: zap.NewNop(),
	}
	if slices.ContainsFunc(endpoints, func(url string) bool { return strings.HasPrefix(url, "https://") }) {
		var err error
		if config.TLS, err = credentials.TLS(secret); err != nil {
			return nil, registry.Permanent(err)
		}
	}
	if prefix != "" {
		prefix = strings.TrimRight(prefix, "/") + "/"
	}
	return &Registry{prefix: prefix, layout: layoutOf(layout), config: config, listed: map[string]*list{}}, nil
}

// failFast disables the client's own wait for a connection, which makes an etcd that is
// down look slow and hides the reason when the time runs out. It lets no answer be longer than
// there is room for: the client would take 2 GiB. Nor does it let one have more fields than any
// that was asked for.
func failFast(
	ctx context.Context, method string, request, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	room, _ := ctx.Value(roomKey{}).(int)
	return invoke(ctx, method, request, reply, cc, append(options, grpc.WaitForReady(false),
		grpc.MaxCallRecvMsgSize(cmp.Or(room, otherRoom)), grpc.ForceCodecV2(codec))...)
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
	var err error
	r.client, err = clientv3.New(r.config)
	return r.client, typed(r.config.Endpoints, err)
}

// Ping implements registry.Connector.
func (r *Registry) Ping(ctx context.Context) error {
	client, err := r.connected()
	if err != nil {
		return err
	}
	_, err = client.Get(ctx, r.prefix, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if r.prefix == "" && code(err) == codes.PermissionDenied {
		return nil // It knows the user, who need not be able to read all keys.
	}
	return typed(r.config.Endpoints, err)
}

// List implements registry.Connector. The read is linearizable, in pages of one revision.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	client, err := r.connected()
	if err != nil {
		return nil, err
	}
	before := r.last(service)
	now := &list{decoded: make(map[string]*decoded, len(before.decoded)), room: max(firstRoom, 2*before.longest)}
	entries := make([]registry.Entry, 0, len(before.decoded))
	root := r.root(service)
	from, revision, more := root, int64(0), true
	for more {
		page, err := now.read(ctx, client, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(root)),
			clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
		if err != nil {
			return nil, err
		}
		for _, kv := range page.Kvs {
			name := strings.TrimPrefix(string(kv.Key), root)
			one := before.decode(r.layout, name, kv)
			now.decoded[name] = one
			entries = added(entries, one.entry)
			from = string(kv.Key) + "\x00"
		}
		revision, more = page.Header.Revision, page.More && len(page.Kvs) > 0
	}
	r.keep(service, now)
	return entries, nil
}

// read reads one page. It takes room for it before it arrives: first for about as much as the longest
// page of the last list, and for more while that is too little.
func (l *list) read(ctx context.Context, client *clientv3.Client, from string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	for ; l.room <= maxRoom; l.room *= 4 {
		if err := registry.Take(ctx, l.room); err != nil {
			return nil, err
		}
		page, err := client.Get(context.WithValue(ctx, roomKey{}, l.room), from, options...)
		if err == nil {
			size := sizeOf(page.Kvs)
			l.longest = max(l.longest, size)
			return page, registry.Take(ctx, max(size, len(page.Kvs)*registry.EntryBytes)-l.room)
		}
		if code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "larger than max") { // than the page may be
			return nil, typed(client.Endpoints(), err)
		}
		if err := registry.Take(ctx, -l.room); err != nil {
			return nil, err
		}
	}
	return nil, registry.TooMuch("etcd", maxRoom)
}

func sizeOf(kvs []*mvccpb.KeyValue) (size int) {
	for _, kv := range kvs {
		size += len(kv.Key) + len(kv.Value)
	}
	return size
}

// decode reads a value that changed since that list; of the others it reuses the entries.
func (l *list) decode(layout layout, name string, kv *mvccpb.KeyValue) *decoded {
	hash := maphash.Bytes(seed, kv.Value)
	if known := l.decoded[name]; known != nil && known.hash == hash && known.entry.Version == version(kv) {
		return known
	}
	return &decoded{hash, decode(layout, name, kv)}
}

func (r *Registry) last(service string) *list {
	r.mu.Lock()
	defer r.mu.Unlock()
	return cmp.Or(r.listed[service], &list{})
}

func (r *Registry) keep(service string, l *list) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listed[service] = l
	if len(l.decoded) == 0 {
		delete(r.listed, service)
	}
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

func (r *Registry) root(service string) string { return r.prefix + service + "/" }

// typed marks an error of the etcd client with those endpoints. An error not known to be permanent is
// transient, because a needless retry is the safer mistake.
func typed(endpoints []string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, rpctypes.ErrCompacted) { // between two pages
		return registry.Transient(plain(err))
	}
	switch code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied,
		codes.Unimplemented, codes.OutOfRange, codes.FailedPrecondition:
		return registry.Permanent(plain(err))
	case codes.Unavailable:
		if _, answers := errors.AsType[rpctypes.EtcdError](err); !answers {
			return registry.Transient(fmt.Errorf("%s does not answer (%w): check etcd.endpoints, and that an etcd listens there",
				named(endpoints), plain(err)))
		}
	}
	return registry.Transient(plain(err))
}

// maxEndpoints is how many endpoints an error names.
const maxEndpoints = 3

// named are endpoints as an error may repeat them: some, and without a user.
func named(endpoints []string) string {
	var out []string
	for _, endpoint := range endpoints[:min(len(endpoints), maxEndpoints)] {
		if at := strings.LastIndex(endpoint, "@"); at >= 0 {
			scheme, _, _ := strings.Cut(endpoint, "://")
			endpoint = scheme + "://" + endpoint[at+1:]
		}
		out = append(out, endpoint)
	}
	return strings.Join(out, ", ")
}

// plain is the error without gRPC's prefix in its message.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && s.Message() != "" {
		return errors.New(registry.Excerpt(s.Message()))
	}
	return err
}

func code(err error) codes.Code {
	if known, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return known.Code()
	}
	return status.Code(err)
}
