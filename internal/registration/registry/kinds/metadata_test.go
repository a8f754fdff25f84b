// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// TestMetadataThatCallersObey is an attack: whoever may write a Registration publishes what
// callers execute or obey. It is refused before the server, which is down here, hears of it.
func TestMetadataThatCallersObey(t *testing.T) {
	const consul, curator = "consul: {address: 'http://127.0.0.1:1'}", "zookeeper: {servers: ['127.0.0.1:1']}"
	const dubbo = "zookeeper: {servers: ['127.0.0.1:1'], layout: Dubbo}"
	for _, test := range []struct {
		spec, pair string
		obeyed     bool
	}{
		{curator, "@class=org.apache.xbean.propertyeditor.JndiConverter", true},
		{curator, "class=a", false},
		{dubbo, "category=routers", true},
		{dubbo, "protocol=script", true},
		{dubbo, "protocol=override", true},
		{dubbo, "dynamic=false", true},
		{dubbo, "serialization=nativejava", true},
		{dubbo, "protocol=tri", false},
		{dubbo, "version=1.0.0", false},
		{dubbo, "tags=blue,canary", false},
		{consul, "tags=v1.2,traefik.http.routers.x.rule=Host(`bank.example`)", true},
		{consul, "tags=urlprefix-bank.example/", true},
		{consul, "tags=v1.2,canary", false},
		{"nacos: {address: 'http://127.0.0.1:1'}", "preserved.ip.delete.timeout=1", true},
	} {
		key, value, _ := strings.Cut(test.pair, "=")
		last := key + "=" + value[strings.LastIndex(value, ",")+1:]
		for _, allowed := range []string{"", key, last} {
			r := &usherv1alpha1.Registry{}
			registrytest.NoError(t, yaml.UnmarshalStrict([]byte("spec: {"+test.spec+"}"), r))
			r.Spec.AllowedMetadata = []string{allowed}
			_, settings := Of(r, "demo")
			connector, err := Connect(Cluster{})(r, settings.Root, nil)
			registrytest.NoError(t, err)
			e := registrytest.Entry("a")
			e.Metadata = map[string]string{"zone": "a", key: value}
			what := fmt.Sprintf("%s with %s, allowed %q", test.spec, test.pair, allowed)
			if err := registrytest.TryPut(t, connector, e); test.obeyed && allowed == "" {
				registrytest.CheckRefused(t, what, err, "a", registry.ErrPermanent, last, "spec.allowedMetadata")
			} else {
				registrytest.Check(t, what, err, registry.ErrTransient)
			}
			leaves := connector.Apply(registrytest.Bounded(t), "web", []registry.Change{{Op: registry.Remove, Entry: e}})
			registrytest.Check(t, what+": it leaves", leaves, registry.ErrTransient)
			registrytest.NoError(t, connector.Close())
		}
	}
}
