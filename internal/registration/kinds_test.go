// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"testing"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registry"
)

// TestKinds holds together what has to know every kind of registry.
func TestKinds(t *testing.T) {
	secret := &usherv1alpha1.SecretReference{Namespace: "usher", Name: "credentials"}
	for name, test := range map[string]struct {
		spec       usherv1alpha1.RegistrySpec
		kind, root string
	}{
		"consul": {usherv1alpha1.RegistrySpec{Consul: &usherv1alpha1.ConsulRegistry{
			Address: "http://localhost:8500", Datacenter: "east", CredentialsSecret: secret}}, "consul", "east"},
		"etcd": {usherv1alpha1.RegistrySpec{Etcd: &usherv1alpha1.EtcdRegistry{
			Endpoints: []string{"http://localhost:2379"}, Prefix: "mine", CredentialsSecret: secret}}, "etcd", "mine"},
		"eureka": {usherv1alpha1.RegistrySpec{Eureka: &usherv1alpha1.EurekaRegistry{
			Address: "http://localhost:8761/eureka", CredentialsSecret: secret}}, "eureka", ""},
		"nacos": {usherv1alpha1.RegistrySpec{Nacos: &usherv1alpha1.NacosRegistry{
			Address: "http://localhost:8848", Group: "mine", CredentialsSecret: secret}}, "nacos", "public/mine/DEFAULT"},
		"webhook": {usherv1alpha1.RegistrySpec{Webhook: &usherv1alpha1.WebhookRegistry{
			URL: "http://localhost", CredentialsSecret: secret}}, "webhook", ""},
		"zookeeper": {usherv1alpha1.RegistrySpec{ZooKeeper: &usherv1alpha1.ZooKeeperRegistry{
			Servers: []string{"localhost:2181"}, CredentialsSecret: secret}}, "zookeeper", "services"},
		"zookeeper for dubbo": {usherv1alpha1.RegistrySpec{ZooKeeper: &usherv1alpha1.ZooKeeperRegistry{
			Servers: []string{"localhost:2181"}, Layout: usherv1alpha1.LayoutDubbo, CredentialsSecret: secret}}, "zookeeper", "dubbo"},
		"zookeeper with a path": {usherv1alpha1.RegistrySpec{ZooKeeper: &usherv1alpha1.ZooKeeperRegistry{
			Servers: []string{"localhost:2181"}, Path: "a/b", CredentialsSecret: secret}}, "zookeeper", "a/b"},
	} {
		r := &usherv1alpha1.Registry{Spec: test.spec}
		if kind, root := kindOf(r), rootOf(r); kind != test.kind || root != test.root || secretOf(r) != secret {
			t.Errorf("%s: kind %q, root %q, Secret %v", name, kind, root, secretOf(r))
		}
		connector, err := DefaultConnect(r, rootOf(r), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := connector.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
	}
	none := &usherv1alpha1.Registry{}
	if _, err := DefaultConnect(none, "", nil); !errors.Is(err, registry.ErrPermanent) || kindOf(none)+rootOf(none) != "" {
		t.Errorf("no kind: %v", err)
	}
}
