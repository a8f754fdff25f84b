// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

func dnsSpec(server, zone string) usherv1alpha1.RegistrySpec {
	return usherv1alpha1.RegistrySpec{DNS: &usherv1alpha1.DNSRegistry{Server: server, Zone: zone}}
}

func haproxySpec(options string, addresses ...string) usherv1alpha1.RegistrySpec {
	return usherv1alpha1.RegistrySpec{HAProxy: &usherv1alpha1.HAProxyRegistry{Addresses: addresses, ServerOptions: options}}
}

// TestRegistryAdmission asks a real API server what it takes.
func TestRegistryAdmission(t *testing.T) {
	e := newEnv(t)
	two := dnsSpec("10.0.0.53:53", "svc.example.com")
	two.HAProxy = haproxySpec("", "tcp://10.0.0.1:9999").HAProxy
	for _, test := range []struct {
		name string
		spec usherv1alpha1.RegistrySpec
		// refusal is a part of the message; empty for what is taken.
		refusal string
	}{
		{"dns", dnsSpec("10.0.0.53:53", "svc.example.com"), ""},
		{"dns by name", dnsSpec("ns1.example.com:53", "svc.example.com"), ""},
		{"dns over IPv6", dnsSpec("[fd00::53]:53", "svc.example.com"), ""},
		{"dns without a port", dnsSpec("10.0.0.53", "svc.example.com"), "spec.dns.server"},
		{"dns with IPv6 and no brackets", dnsSpec("fd00::53:53", "svc.example.com"), "spec.dns.server"},
		{"dns without a zone", dnsSpec("10.0.0.53:53", ""), "spec.dns.zone"},
		{"dns with capitals", dnsSpec("10.0.0.53:53", "Svc.example.com"), "spec.dns.zone"},
		{"haproxy", haproxySpec("check inter 2s", "tcp://10.0.0.1:9999", "tls://lb.example.com:9999", "unix:///run/haproxy.sock"), ""},
		{"haproxy without an address", haproxySpec(""), "spec.haproxy.addresses"},
		{"haproxy with another scheme", haproxySpec("", "http://10.0.0.1:9999"), "spec.haproxy.addresses"},
		{"haproxy with credentials", haproxySpec("", "tcp://me:secret@10.0.0.1:9999"), "spec.haproxy.addresses"},
		{"haproxy with a second command", haproxySpec("check; shutdown sessions", "tcp://10.0.0.1:9999"), "spec.haproxy.serverOptions"},
		{"two kinds", two, "set exactly one kind of registry"},
		{"none", usherv1alpha1.RegistrySpec{}, "set exactly one kind of registry"},
	} {
		r := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{GenerateName: "admission-"}, Spec: test.spec}
		err := e.Create(t.Context(), r, client.DryRunAll)
		switch {
		case test.refusal == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.refusal != "" && (err == nil || !strings.Contains(err.Error(), test.refusal)):
			t.Errorf("%s: %v, want a refusal with %q", test.name, err, test.refusal)
		}
	}
}
