// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// TestListsDecodeWhatChanged checks that each list shows the current values: one that
// was changed, removed or restored, and the new version of one that was rewritten
// unchanged.
func TestListsDecodeWhatChanged(t *testing.T) {
	r := registrytest.Connect(t, New, Options{Endpoints: []string{"http://127.0.0.1:1"}, Prefix: "usher"})
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
		registrytest.Same(t, "the list", step.want, r.decode("shop", step.stored))
	}
	if len(r.decoded) > 0 {
		t.Errorf("a service without entries is remembered: %v", r.decoded)
	}
}

func TestValueLayout(t *testing.T) {
	text, err := encode(registrytest.Entry("a"))
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
		_, err := encode(registry.Entry{Address: "10.0.0.1", Port: 80, Metadata: map[string]string{key: "x"}})
		registrytest.Check(t, "metadata "+key, err, registry.ErrPermanent)
	}
}

func TestOptionsNeedEndpoints(t *testing.T) {
	registrytest.CheckOptions(t, New, map[string]Options{"none": {}})
}

func FuzzDecode(f *testing.F) {
	own, err := encode(registrytest.Entry("a"))
	if err != nil {
		f.Fatal(err)
	}
	registrytest.FuzzDecode(f, func(text string) []registry.Entry {
		return []registry.Entry{decode("a", &mvccpb.KeyValue{Value: []byte(text)})}
	}, own, "10.0.0.1:80", `{"Addr":"[::1]:99999999999","Metadata":{"usher":{"cluster":1},"weight":1e99,"a":null}}`)
}
