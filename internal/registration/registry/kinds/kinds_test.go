// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"errors"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
)

// TestKinds checks that everything that must know each kind of registry knows it.
func TestKinds(t *testing.T) {
	secret := &usherv1alpha1.SecretReference{Namespace: "usher", Name: "credentials"}
	kube := fake.NewClientBuilder().Build()
	connect := Connect(Cluster{Reader: kube, Writer: kube, XDS: xds.NewStore()})
	for name, test := range map[string]struct {
		spec       usherv1alpha1.RegistrySpec
		kind, root string
		noSecret   bool
	}{
		"consul": {usherv1alpha1.RegistrySpec{Consul: &usherv1alpha1.ConsulRegistry{
			Address: "http://localhost:8500", Datacenter: "east", CredentialsSecret: secret}}, "consul", "east", false},
		"dns": {usherv1alpha1.RegistrySpec{DNS: &usherv1alpha1.DNSRegistry{
			Server: "localhost:53", Zone: "svc.example.com", CredentialsSecret: secret}}, "dns", "svc.example.com", false},
		"endpointSlice": {usherv1alpha1.RegistrySpec{EndpointSlice: &usherv1alpha1.EndpointSliceRegistry{}},
			"endpointSlice", "demo", true},
		"endpointSlice with a namespace": {usherv1alpha1.RegistrySpec{EndpointSlice: &usherv1alpha1.EndpointSliceRegistry{
			Namespace: "edge"}}, "endpointSlice", "edge", true},
		"etcd": {usherv1alpha1.RegistrySpec{Etcd: &usherv1alpha1.EtcdRegistry{
			Endpoints: []string{"http://localhost:2379"}, Prefix: "mine", CredentialsSecret: secret}}, "etcd", "mine", false},
		"eureka": {usherv1alpha1.RegistrySpec{Eureka: &usherv1alpha1.EurekaRegistry{
			Address: "http://localhost:8761/eureka", CredentialsSecret: secret}}, "eureka", "", false},
		"haproxy": {usherv1alpha1.RegistrySpec{HAProxy: &usherv1alpha1.HAProxyRegistry{
			Addresses: []string{"unix:///run/haproxy.sock"}, CredentialsSecret: secret}}, "haproxy", "", false},
		"nacos": {usherv1alpha1.RegistrySpec{Nacos: &usherv1alpha1.NacosRegistry{
			Address: "http://localhost:8848", Group: "mine", CredentialsSecret: secret}}, "nacos", "public/mine/DEFAULT", false},
		"service": {usherv1alpha1.RegistrySpec{Service: &usherv1alpha1.ServiceRegistry{}}, "service", "demo", true},
		"webhook": {usherv1alpha1.RegistrySpec{Webhook: &usherv1alpha1.WebhookRegistry{
			URL: "http://localhost", CredentialsSecret: secret}}, "webhook", "", false},
		"xds": {usherv1alpha1.RegistrySpec{XDS: &usherv1alpha1.XDSRegistry{}}, "xds", "demo", true},
		"xds with a namespace": {usherv1alpha1.RegistrySpec{XDS: &usherv1alpha1.XDSRegistry{Namespace: "edge"}},
			"xds", "edge", true},
		"zookeeper": {usherv1alpha1.RegistrySpec{ZooKeeper: &usherv1alpha1.ZooKeeperRegistry{
			Servers: []string{"localhost:2181"}, CredentialsSecret: secret}}, "zookeeper", "services", false},
		"zookeeper for dubbo": {usherv1alpha1.RegistrySpec{ZooKeeper: &usherv1alpha1.ZooKeeperRegistry{
			Servers: []string{"localhost:2181"}, Layout: usherv1alpha1.LayoutDubbo, CredentialsSecret: secret}}, "zookeeper", "dubbo", false},
		"zookeeper with a path": {usherv1alpha1.RegistrySpec{ZooKeeper: &usherv1alpha1.ZooKeeperRegistry{
			Servers: []string{"localhost:2181"}, Path: "a/b", CredentialsSecret: secret}}, "zookeeper", "a/b", false},
	} {
		r := &usherv1alpha1.Registry{Spec: test.spec}
		reference := secret
		if test.noSecret {
			reference = nil
		}
		kind, settings := Of(r, "demo")
		if kind.Name != test.kind || settings.Root != test.root || settings.Secret != reference {
			t.Errorf("%s: kind %q, root %q, Secret %v", name, kind.Name, settings.Root, settings.Secret)
		}
		connector, err := connect(r, settings.Root, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := connector.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
	}
}

// TestNoKind checks that the error lists the available kinds.
func TestNoKind(t *testing.T) {
	none := &usherv1alpha1.Registry{}
	if kind, settings := Of(none, "demo"); kind.Name+settings.Root != "" || settings.Secret != nil || settings.Connect != nil {
		t.Errorf("no kind: %+v, %+v", kind, settings)
	}
	_, err := Connect(Cluster{})(none, "", nil)
	if !errors.Is(err, registry.ErrPermanent) || !strings.Contains(err.Error(), "set one of spec.consul, spec.dns, ") ||
		!strings.Contains(err.Error(), " and spec.zookeeper") {
		t.Errorf("no kind: %v", err)
	}
}

// TestXDSUnserved checks that the error names the missing flag.
func TestXDSUnserved(t *testing.T) {
	kube := fake.NewClientBuilder().Build()
	served := &usherv1alpha1.Registry{Spec: usherv1alpha1.RegistrySpec{XDS: &usherv1alpha1.XDSRegistry{}}}
	_, err := Connect(Cluster{Reader: kube, Writer: kube})(served, "demo", nil)
	if !errors.Is(err, registry.ErrPermanent) || !strings.Contains(err.Error(), "--xds-bind-address") {
		t.Errorf("xds that nobody serves: %v", err)
	}
}
