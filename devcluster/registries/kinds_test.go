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

// TestRegistryAdmission creates Registries of each kind, and such as make no sense.
func TestRegistryAdmission(t *testing.T) {
	c, err := client.New(shared.RESTConfig(), client.Options{Scheme: scheme()})
	if err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	for name, test := range map[string]struct {
		spec object
		says string // Empty: it is taken.
	}{
		"etcd":      {object{"etcd": object{"endpoints": []any{"http://localhost:2379"}}}, ""},
		"webhook":   {object{"webhook": object{"url": "http://localhost/x"}}, ""},
		"consul":    {object{"consul": object{"address": "https://localhost:8501", "datacenter": "east"}}, ""},
		"eureka":    {object{"eureka": object{"address": "http://localhost:8761/eureka", "responseCache": "0s"}}, ""},
		"nacos":     {object{"nacos": object{"address": "http://localhost:8848", "namespaceID": "mine"}}, ""},
		"zookeeper": {object{"zookeeper": object{"servers": []any{"zk-0.zk:2181", "[fd00::1]:2181"}, "path": "a/b"}}, ""},
		"none":      {object{}, "exactly one kind of registry"},
		"two": {object{"consul": object{"address": "http://localhost"}, "webhook": object{"url": "http://localhost"}},
			"exactly one kind of registry"},
		"consul with a user":     {object{"consul": object{"address": "http://me:secret@localhost"}}, "spec.consul.address"},
		"consul with a path":     {object{"consul": object{"address": "http://localhost/v1"}}, "spec.consul.address"},
		"a short lease":          {object{"eureka": object{"address": "http://localhost", "lease": "30s"}}, "90s or more"},
		"nacos with a slash":     {object{"nacos": object{"address": "http://localhost", "group": "a/b"}}, "spec.nacos.group"},
		"a server without port":  {object{"zookeeper": object{"servers": []any{"localhost"}}}, "spec.zookeeper.servers[0]"},
		"two servers in one":     {object{"zookeeper": object{"servers": []any{"a:1,b:2"}}}, "spec.zookeeper.servers[0]"},
		"no server":              {object{"zookeeper": object{"servers": []any{}}}, "spec.zookeeper.servers"},
		"an unknown layout":      {object{"zookeeper": object{"servers": []any{"a:1"}, "layout": "curator"}}, "spec.zookeeper.layout"},
		"a path with a slash":    {object{"zookeeper": object{"servers": []any{"a:1"}, "path": "/services"}}, "spec.zookeeper.path"},
		"a path out of the tree": {object{"zookeeper": object{"servers": []any{"a:1"}, "path": "a/../b"}}, "parts . and .."},
	} {
		r := &unstructured.Unstructured{Object: object{"spec": test.spec}}
		r.SetGroupVersionKind(usherv1alpha1.GroupVersion.WithKind("Registry"))
		r.SetGenerateName("admission-")
		err := c.Create(t.Context(), r, client.DryRunAll)
		switch {
		case test.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
			t.Errorf("%s: %v, want an error about %q", name, err, test.says)
		}
	}
}

// TestLayoutCannotChange holds on to the layout that entries were written in.
func TestLayoutCannotChange(t *testing.T) {
	e := newEnv(t)
	r := &usherv1alpha1.Registry{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "layout-"},
		Spec:       usherv1alpha1.RegistrySpec{ZooKeeper: &usherv1alpha1.ZooKeeperRegistry{Servers: []string{"127.0.0.1:1"}}},
	}
	e.create(r)
	if r.Spec.ZooKeeper.Layout != usherv1alpha1.LayoutCurator {
		t.Errorf("the layout is %q by default", r.Spec.ZooKeeper.Layout)
	}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"zookeeper":{"layout":"Dubbo"}}}`))
	if err := e.Patch(t.Context(), r, patch); err == nil || !strings.Contains(err.Error(), "make another Registry") {
		t.Errorf("another layout: %v", err)
	}
}
