// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// object is YAML as a user writes it; Go types could not express all of it.
type object = map[string]any

func dnsSpec(server, zone string) object {
	return object{"dns": object{"server": server, "zone": zone}}
}

func haproxySpec(options string, addresses ...any) object {
	return object{"haproxy": object{"addresses": addresses, "serverOptions": options}}
}

func zookeeperSpec(servers ...any) object {
	return object{"zookeeper": object{"servers": servers}}
}

type admission struct {
	spec object
	says string // Empty: it is accepted.
}

// admit creates an object of the kind for each of the tests.
func admit(t *testing.T, kind string, tests map[string]admission) {
	t.Helper()
	api := newAPI(t, shared)
	for name, test := range tests {
		r := &unstructured.Unstructured{Object: object{"spec": test.spec}}
		r.SetGroupVersionKind(usherv1alpha1.GroupVersion.WithKind(kind))
		r.SetGenerateName("admission-")
		if kind == "Registration" {
			r.SetNamespace("default")
		}
		err := api.Create(t.Context(), r, client.DryRunAll)
		switch {
		case test.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
			t.Errorf("%s: %v, want an error about %q", name, err, test.says)
		}
	}
}

// TestRegistryAdmission creates valid and invalid Registries of each kind.
func TestRegistryAdmission(t *testing.T) {
	admit(t, "Registry", map[string]admission{
		"eureka":                                 {object{"eureka": object{"address": "http://localhost:8761/eureka", "responseCache": "0s"}}, ""},
		"nacos":                                  {object{"nacos": object{"address": "http://localhost:8848", "namespaceID": "mine"}}, ""},
		"a short lease":                          {object{"eureka": object{"address": "http://localhost", "lease": "30s"}}, "90s or more"},
		"a timeout without units":                {object{"etcd": object{"endpoints": []any{"http://a"}}, "timeout": "5"}, "a number with a unit"},
		"a timeout of no time":                   {object{"etcd": object{"endpoints": []any{"http://a"}}, "timeout": "0s"}, "longer than 0s"},
		"repairs all the time":                   {object{"etcd": object{"endpoints": []any{"http://a"}}, "repairInterval": "10ms"}, "1s or longer"},
		"a TTL in words":                         {object{"dns": object{"server": "a:53", "zone": "a", "ttl": "a while"}}, "a number with a unit"},
		"nacos with a slash":                     {object{"nacos": object{"address": "http://localhost", "group": "a/b"}}, "spec.nacos.group"},
		"endpointSlice":                          {object{"endpointSlice": object{}}, ""},
		"endpointSlice with a namespace":         {object{"endpointSlice": object{"namespace": "edge"}}, ""},
		"endpointSlice with no namespace's name": {object{"endpointSlice": object{"namespace": "Edge/x"}}, "spec.endpointSlice.namespace"},
		"service":                                {object{"service": object{}}, ""},
		"xds":                                    {object{"xds": object{}}, ""},
		"xds with a namespace":                   {object{"xds": object{"namespace": "edge"}}, ""},
		"xds with no namespace's name":           {object{"xds": object{"namespace": "Edge/x"}}, "spec.xds.namespace"},
		"xds and its slices":                     {object{"xds": object{}, "endpointSlice": object{}}, "exactly one kind of registry"},
		"none":                                   {object{}, "exactly one kind of registry"},
		"two": {object{"consul": object{"address": "http://localhost"}, "webhook": object{"url": "http://localhost"}},
			"exactly one kind of registry"},
		"all": {object{
			"consul": object{"address": "http://localhost"}, "dns": object{"server": "localhost:53", "zone": "a"},
			"etcd": object{"endpoints": []any{"http://localhost"}}, "haproxy": object{"addresses": []any{"tcp://a:1"}},
			"webhook": object{"url": "http://localhost"}, "zookeeper": object{"servers": []any{"a:1"}},
		}, "exactly one kind of registry"},

		"etcd":    {object{"etcd": object{"endpoints": []any{"http://localhost:2379"}}}, ""},
		"webhook": {object{"webhook": object{"url": "http://localhost/x"}}, ""},

		"consul":             {object{"consul": object{"address": "https://localhost:8501", "datacenter": "east"}}, ""},
		"consul with a user": {object{"consul": object{"address": "http://me:secret@localhost"}}, "spec.consul.address"},
		"consul with a path": {object{"consul": object{"address": "http://localhost/v1"}}, "spec.consul.address"},

		"dns":                           {dnsSpec("10.0.0.53:53", "svc.example.com"), ""},
		"dns by name":                   {dnsSpec("ns1.example.com:53", "svc.example.com"), ""},
		"dns over IPv6":                 {dnsSpec("[fd00::53]:53", "svc.example.com"), ""},
		"dns without a port":            {dnsSpec("10.0.0.53", "svc.example.com"), "spec.dns.server"},
		"dns with IPv6 and no brackets": {dnsSpec("fd00::53:53", "svc.example.com"), "spec.dns.server"},
		"dns without a zone":            {dnsSpec("10.0.0.53:53", ""), "spec.dns.zone"},
		"dns with capitals":             {dnsSpec("10.0.0.53:53", "Svc.example.com"), "spec.dns.zone"},

		"haproxy":                       {haproxySpec("check inter 2s", "tcp://10.0.0.1:9999", "tls://lb.example.com:9999", "unix:///run/haproxy.sock"), ""},
		"haproxy without an address":    {haproxySpec("", []any{}...), "spec.haproxy.addresses"},
		"haproxy with another scheme":   {haproxySpec("", "http://10.0.0.1:9999"), "spec.haproxy.addresses"},
		"haproxy with credentials":      {haproxySpec("", "tcp://me:secret@10.0.0.1:9999"), "spec.haproxy.addresses"},
		"haproxy with a second command": {haproxySpec("check; shutdown sessions", "tcp://10.0.0.1:9999"), "spec.haproxy.serverOptions"},

		"zookeeper":                {object{"zookeeper": object{"servers": []any{"zk-0.zk:2181", "[fd00::1]:2181"}, "path": "a/b"}}, ""},
		"zookeeper without a port": {zookeeperSpec("localhost"), "spec.zookeeper.servers[0]"},
		"two servers in one":       {zookeeperSpec("a:1,b:2"), "spec.zookeeper.servers[0]"},
		"no server":                {zookeeperSpec([]any{}...), "spec.zookeeper.servers"},
		"an unknown layout":        {object{"zookeeper": object{"servers": []any{"a:1"}, "layout": "curator"}}, "spec.zookeeper.layout"},
		"a path with a slash":      {object{"zookeeper": object{"servers": []any{"a:1"}, "path": "/services"}}, "spec.zookeeper.path"},
		"a path out of the tree":   {object{"zookeeper": object{"servers": []any{"a:1"}, "path": "a/../b"}}, "parts . and .."},
	})
}

// TestLayoutCannotChange pins the layout in which existing entries were written.
func TestLayoutCannotChange(t *testing.T) {
	api := newAPI(t, shared)
	r := &usherv1alpha1.Registry{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "layout-"},
		Spec:       usherv1alpha1.RegistrySpec{ZooKeeper: &usherv1alpha1.ZooKeeperRegistry{Servers: []string{"127.0.0.1:1"}}},
	}
	if err := api.Create(t.Context(), r); err != nil || r.Spec.ZooKeeper.Layout != usherv1alpha1.LayoutCurator {
		t.Fatalf("the layout is %q by default, %v", r.Spec.ZooKeeper.Layout, err)
	}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"zookeeper":{"layout":"Dubbo"}}}`))
	if err := api.Patch(t.Context(), r, patch); err == nil || !strings.Contains(err.Error(), "make another Registry") {
		t.Errorf("another layout: %v", err)
	}
}
