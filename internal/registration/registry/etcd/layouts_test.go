// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

const id = "demo.web-1.0a"

// owner is the owner of that entry as every layout has it.
const owner = `{"cluster":"here","namespace":"demo","registration":"web","pod":"demo.web-1.0a","uid":"uid-demo.web-1.0a"}`

var layouts = []usherv1alpha1.EtcdLayout{
	usherv1alpha1.LayoutGRPC, usherv1alpha1.LayoutKratos, usherv1alpha1.LayoutGoZero, usherv1alpha1.LayoutKitex,
}

func TestRoundTrip(t *testing.T) {
	plain, six, odd := registrytest.Entry(id), registrytest.Entry(id), registrytest.Entry(id)
	plain.Metadata = nil
	six.Address = "fd00::1"
	odd.Metadata = map[string]string{"protocol": "https", "version": "1.0.0", "note": "x = 100% + ä/? {\"\n", "empty": ""}
	for _, name := range layouts {
		for _, want := range []registry.Entry{registrytest.Entry(id), plain, six, odd} {
			l := layoutOf(name)
			key, value, err := l.encode("web", want)
			checktest.NoError(t, err)
			checktest.Same(t, string(name), want, l.decode(key, []byte(value)))
			if after := l.after(id); after == "" && key != id || after != "" && (key <= id || key >= after) {
				t.Errorf("%s: the key's name %q is not between %q and %q", name, key, id, after)
			}
		}
	}
}

func TestKeysAndValues(t *testing.T) {
	for name, want := range map[usherv1alpha1.EtcdLayout][2]string{
		usherv1alpha1.LayoutGRPC: {id, `{"Op":0,"Addr":"10.0.0.1:8080","Metadata":{"usher":` + owner + `,"weight":10,"zone":"a"}}`},
		usherv1alpha1.LayoutKratos: {id, `{"id":"demo.web-1.0a","name":"web","version":"","metadata":{"weight":"10","zone":"a"},` +
			`"endpoints":["grpc://10.0.0.1:8080"],"usher":` + owner + `}`},
		usherv1alpha1.LayoutGoZero: {id + ` {"weight":10,"owner":` + owner + `,"metadata":{"zone":"a"}}`, "10.0.0.1:8080"},
		usherv1alpha1.LayoutKitex:  {id, `{"network":"tcp","address":"10.0.0.1:8080","weight":10,"tags":{"zone":"a"},"usher":` + owner + `}`},
	} {
		key, value, err := layoutOf(name).encode("web", registrytest.Entry(id))
		checktest.NoError(t, err)
		checktest.Same(t, string(name), want, [2]string{key, value})
	}
}

func TestWhatALayoutCannotHoldIsRefused(t *testing.T) {
	for _, test := range []struct {
		layout     layout
		key, value string
	}{
		{naming{}, "weight", "1"}, {naming{}, "usher", "x"},
		{kratos{}, "weight", "1"}, {kratos{}, "protocol", "dubbo"}, {kratos{}, "protocol", ""},
	} {
		_, _, err := test.layout.encode("web", registry.Entry{Address: "10.0.0.1", Port: 80, Metadata: map[string]string{test.key: test.value}})
		registrytest.Check(t, test.key+"="+test.value, err, registry.ErrPermanent, test.key)
	}
}

// TestCopiesAreOne: somebody has copied an entry under another name of its key.
func TestCopiesAreOne(t *testing.T) {
	for _, versions := range [][2]int64{{9, 10}, {10, 9}} {
		var entries []registry.Entry
		for i, mark := range []string{` {"weight":1,"owner":` + owner + `}`, ` {"weight":2,"owner":` + owner + `}`} {
			entries = added(entries, decode(goZero{}, id+mark, &mvccpb.KeyValue{ModRevision: versions[i], Value: []byte("10.0.0.1:80")}))
		}
		if len(entries) != 1 || entries[0].Version != "9-10" || entries[0].Weight != 1 {
			t.Errorf("the entries are %+v", entries)
		}
	}
}

// FuzzDecode decodes the name of a key and, after a line break, its value.
func FuzzDecode(f *testing.F) {
	registrytest.FuzzDecode(f, func(text string) (entries []registry.Entry) {
		name, value, _ := strings.Cut(text, "\n")
		for _, l := range layouts {
			entries = append(entries, layoutOf(l).decode(name, []byte(value)))
		}
		return entries
	})
}
