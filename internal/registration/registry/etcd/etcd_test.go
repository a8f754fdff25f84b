// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// answers are how many bytes Usher holds of all registries' answers.
const answers = 32 << 20

// endless answers every read with more than a connector may take.
type endless struct {
	etcdserverpb.UnimplementedKVServer
}

func (*endless) Range(context.Context, *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	return &etcdserverpb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Key: []byte("services/web/a"), Value: make([]byte, answers/2)}}}, nil
}

// connect connects to a server of one's own.
func connect(t *testing.T, kv etcdserverpb.KVServer) *Registry {
	t.Helper()
	listener := checktest.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	server := grpc.NewServer(grpc.MaxSendMsgSize(2 * answers))
	etcdserverpb.RegisterKVServer(server, kv)
	go func() { _ = server.Serve(listener) }() // It ends with Stop.
	t.Cleanup(server.Stop)
	return registrytest.Connect(New([]string{"http://" + listener.Addr().String()}, usherv1alpha1.LayoutGRPC, "usher", nil, defaultTimeout))(t)
}

// TestAnswersAreBounded: no registry can take the process's memory.
func TestAnswersAreBounded(t *testing.T) {
	_, err := connect(t, &endless{}).List(registrytest.Counted(t, answers), "shop")
	registrytest.Check(t, "an endless list", err, registry.ErrPermanent, "spread the instances over several services")
}

// keys is a server of these keys. If it is compacted, no revision can be read any more.
type keys struct {
	etcdserverpb.UnimplementedKVServer
	kvs       []*mvccpb.KeyValue
	compacted bool
	reads     int
}

func (k *keys) Range(_ context.Context, r *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	k.reads++
	if r.Revision > 0 && k.compacted {
		return nil, rpctypes.ErrGRPCCompacted
	}
	from, _ := slices.BinarySearchFunc(k.kvs, r.Key, func(kv *mvccpb.KeyValue, key []byte) int { return bytes.Compare(kv.Key, key) })
	page := k.kvs[from:min(len(k.kvs), from+int(r.Limit))]
	return &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{Revision: 9}, Kvs: page, More: from+len(page) < len(k.kvs)}, nil
}

func kv(id string, revision int64, address string) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte("usher/shop/" + id), ModRevision: revision, Value: []byte(`{"Addr":"` + address + `:80"}`)}
}

func entry(id, version, address string) registry.Entry {
	return registry.Entry{ID: id, Version: version, Address: address, Port: 80, Weight: 1}
}

// TestListsDecodeWhatChanged checks that each list shows the current values: one that
// was changed, removed or restored, and the new version of one that was rewritten
// unchanged.
func TestListsDecodeWhatChanged(t *testing.T) {
	server := &keys{}
	r := connect(t, server)
	for _, step := range []struct {
		stored []*mvccpb.KeyValue
		want   []registry.Entry
	}{
		{[]*mvccpb.KeyValue{kv("a", 1, "10.0.0.1"), kv("b", 2, "10.0.0.2")}, []registry.Entry{entry("a", "1", "10.0.0.1"), entry("b", "2", "10.0.0.2")}},
		{[]*mvccpb.KeyValue{kv("a", 3, "10.0.0.3")}, []registry.Entry{entry("a", "3", "10.0.0.3")}},
		{[]*mvccpb.KeyValue{kv("a", 4, "10.0.0.3"), kv("b", 2, "10.0.0.9")}, []registry.Entry{entry("a", "4", "10.0.0.3"), entry("b", "2", "10.0.0.9")}},
		{[]*mvccpb.KeyValue{kv("a", 4, "10.0.0.3"), kv("b", 2, "10.0.0.8")}, []registry.Entry{entry("a", "4", "10.0.0.3"), entry("b", "2", "10.0.0.8")}},
		{nil, []registry.Entry{}},
	} {
		server.kvs = step.stored
		checktest.Same(t, "the list", step.want, checktest.Must(r.List(t.Context(), "shop"))(t))
	}
	if len(r.listed) > 0 {
		t.Errorf("a service without entries is remembered: %v", r.listed)
	}
}

// TestListsHavePages: a list longer than a page is whole and of one revision, or tried again.
func TestListsHavePages(t *testing.T) {
	server := &keys{}
	var want []registry.Entry
	for i := range 2*pageSize + 1 {
		id := fmt.Sprintf("%05d", i)
		server.kvs, want = append(server.kvs, kv(id, 1, "10.0.0.1")), append(want, entry(id, "1", "10.0.0.1"))
	}
	r := connect(t, server)
	checktest.Same(t, "the list", want, checktest.Must(r.List(t.Context(), "shop"))(t))
	before := server.reads
	checktest.Same(t, "the list again", want, checktest.Must(r.List(t.Context(), "shop"))(t))
	checktest.Same(t, "how many reads a list takes once its size is known", 3, server.reads-before)
	server.compacted = true
	_, err := r.List(t.Context(), "shop")
	registrytest.Check(t, "a list whose revision is gone", err, registry.ErrTransient)
}

func TestOptionsNeedEndpoints(t *testing.T) {
	_, err := New(nil, usherv1alpha1.LayoutGRPC, "services", nil, defaultTimeout)
	registrytest.Check(t, "none", err, registry.ErrPermanent)
}

// crowded answers with as many entries as fit into its bytes, each of two, instead of as many as it is asked for.
type crowded struct {
	etcdserverpb.UnimplementedKVServer
	kvs []*mvccpb.KeyValue
}

func (c *crowded) Range(context.Context, *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	return &etcdserverpb.RangeResponse{Kvs: c.kvs}, nil
}

// TestCrowdedAnswers: in memory, an entry of two bytes is as large as any other.
func TestCrowdedAnswers(t *testing.T) {
	const count = 1 << 20
	server := &crowded{kvs: slices.Repeat([]*mvccpb.KeyValue{{}}, count)}
	r := connect(t, server)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := r.List(registrytest.Counted(t, answers), "shop")
	runtime.ReadMemStats(&after)
	registrytest.Check(t, "a crowded list", err, registry.ErrTransient, "too many fields")
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("an answer of %d bytes took %d", 2*count, took)
	}
}

// talkative answers with many headers.
type talkative struct{ keys }

func (s *talkative) Range(ctx context.Context, r *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	_ = grpc.SetHeader(ctx, metadata.Pairs("more", strings.Repeat("x", 1<<20)))
	return s.keys.Range(ctx, r)
}

// TestLongHeaders: gRPC would read 16 MiB of them.
func TestLongHeaders(t *testing.T) {
	_, err := connect(t, &talkative{}).List(registrytest.Bounded(t), "shop")
	registrytest.Check(t, "a list", err, registry.ErrTransient)
}

// TestNoEtcd: an address at which no etcd listens is named with what to check, and without its user.
func TestNoEtcd(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	for _, url := range []string{web.URL, strings.Replace(web.URL, "://", "://ann:secret@", 1)} {
		r := checktest.Must(New([]string{url}, usherv1alpha1.LayoutGRPC, "services", nil, time.Second))(t)
		err := r.Ping(t.Context())
		registrytest.Check(t, "an address of another server", err, registry.ErrTransient, "check etcd.endpoints")
		if strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), web.URL+" does not answer (") {
			t.Errorf("it says %v", err)
		}
		checktest.NoError(t, r.Close())
	}
}
