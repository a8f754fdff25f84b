// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"net"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

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

// TestAnswersAreBounded: no registry can take the process's memory.
func TestAnswersAreBounded(t *testing.T) {
	listener := checktest.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	server := grpc.NewServer(grpc.MaxSendMsgSize(2 * answers))
	etcdserverpb.RegisterKVServer(server, &endless{})
	go func() { _ = server.Serve(listener) }() // It ends with Stop.
	t.Cleanup(server.Stop)
	r := registrytest.Connect(New([]string{"http://" + listener.Addr().String()}, "services", nil, defaultTimeout))(t)
	_, err := r.List(registrytest.Counted(t, answers), "web")
	registrytest.Check(t, "an endless list", err, registry.ErrPermanent, "spread the instances over several services")
}

// TestListsDecodeWhatChanged checks that each list shows the current values: one that
// was changed, removed or restored, and the new version of one that was rewritten
// unchanged.
func TestListsDecodeWhatChanged(t *testing.T) {
	r := registrytest.Connect(New([]string{"http://127.0.0.1:1"}, "usher", nil, defaultTimeout))(t)
	kv := func(id string, revision int64, address string) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte("usher/shop/" + id), ModRevision: revision, Value: []byte(`{"Addr":"` + address + `:80"}`)}
	}
	entry := func(id, version, address string) registry.Entry {
		return registry.Entry{ID: id, Version: version, Address: address, Port: 80}
	}
	for _, step := range []struct {
		stored []*mvccpb.KeyValue
		want   []registry.Entry
	}{
		{[]*mvccpb.KeyValue{kv("a", 1, "10.0.0.1"), kv("b", 2, "10.0.0.2")}, []registry.Entry{entry("a", "1", "10.0.0.1"), entry("b", "2", "10.0.0.2")}},
		{[]*mvccpb.KeyValue{kv("a", 3, "10.0.0.3")}, []registry.Entry{entry("a", "3", "10.0.0.3")}},
		{[]*mvccpb.KeyValue{kv("a", 4, "10.0.0.3"), kv("b", 2, "10.0.0.9")}, []registry.Entry{entry("a", "4", "10.0.0.3"), entry("b", "2", "10.0.0.9")}},
		{nil, []registry.Entry{}},
	} {
		checktest.Same(t, "the list", step.want, r.decode("shop", step.stored))
	}
	if len(r.decoded) > 0 {
		t.Errorf("a service without entries is remembered: %v", r.decoded)
	}
}

func TestValueLayout(t *testing.T) {
	text, err := encoded(registrytest.Entry("a"))
	want := `{"Op":0,"Addr":"10.0.0.1:8080","Metadata":{"usher":{"cluster":"here","namespace":"demo",` +
		`"registration":"web","pod":"a","uid":"uid-a"},"weight":10,"zone":"a"}}`
	if err != nil || text != want {
		t.Errorf("the value is %s, %v; want %s", text, err, want)
	}
}

func TestValuesOfOthersHaveNoOwner(t *testing.T) {
	for _, text := range []string{
		"", "10.0.0.1:80", "{", `{"Op":0}`, `{"Addr":"nowhere"}`, `{"Addr":"10.0.0.1:80","Metadata":"text"}`,
		`{"Addr":"10.0.0.1:80","Metadata":{"usher":"mine","weight":"much"}}`,
		`{"Addr":"10.0.0.1:80","Metadata":{"usher":[1]}}`,
	} {
		entry := decode("a", &mvccpb.KeyValue{Value: []byte(text), ModRevision: 7})
		if entry.Owner != (registry.Owner{}) || entry.ID != "a" || entry.Version != "7" {
			t.Errorf("%q became %+v", text, entry)
		}
	}
}

func TestReservedMetadataIsRefused(t *testing.T) {
	for _, key := range []string{metaWeight, metaOwner} {
		_, err := encoded(registry.Entry{Address: "10.0.0.1", Port: 80, Metadata: map[string]string{key: "x"}})
		registrytest.Check(t, "metadata "+key, err, registry.ErrPermanent)
	}
}

func TestOptionsNeedEndpoints(t *testing.T) {
	_, err := New(nil, "services", nil, defaultTimeout)
	registrytest.Check(t, "none", err, registry.ErrPermanent)
}

func FuzzDecode(f *testing.F) {
	own := checktest.Must(encoded(registrytest.Entry("a")))(f)
	registrytest.FuzzDecode(f, func(text string) []registry.Entry {
		return []registry.Entry{decode("a", &mvccpb.KeyValue{Value: []byte(text)})}
	}, own, "10.0.0.1:80", `{"Addr":"[::1]:99999999999","Metadata":{"usher":{"cluster":1},"weight":1e99,"a":null}}`)
}
