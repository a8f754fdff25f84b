// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestRenewal: by default another leader follows a killed one within 5 s, and a leader that cannot
// renew its lease has exited before another one leads.
func TestRenewal(t *testing.T) {
	s := checktest.Must(parse(nil))(t)
	deadline, retry := s.renewal()
	longestWait := time.Duration((1 + leaderelection.JitterFactor) * float64(retry))
	if followed := s.lease + 2*longestWait; followed > 5*time.Second {
		t.Errorf("followed after %s", followed)
	}
	if ended := retry + deadline; ended >= s.lease {
		t.Errorf("ends %s after its last renewal, with a lease of %s", ended, s.lease)
	}
}

// TestParts: each part that runs has a series.
func TestParts(t *testing.T) {
	scraped := prometheus.NewPedanticRegistry()
	s := checktest.Must(parse([]string{"--controllers=registration,guard", "--guard-service=a/b"}))(t)
	checktest.NoError(t, s.exportParts(scraped))
	checktest.NoError(t, testutil.GatherAndCompare(scraped, strings.NewReader(`
# HELP usher_running 1 for each part of Usher that this process runs: cloneset, registration, guard.
# TYPE usher_running gauge
usher_running{part="guard"} 1
usher_running{part="registration"} 1
`)))
}

// TestFlags: flags that do not fit together, or have no meaning, are refused by name. The flags of the
// xDS server are accepted only together. The process that makes the guard's certificate must listen on
// no port.
func TestFlags(t *testing.T) {
	for flags, says := range map[string]string{
		"":                                     "",
		"--xds-bind-address=:0":                "--xds-insecure for plain text",
		"--xds-insecure --xds-bind-address=:0": "",
		"--xds-insecure --xds-bind-address=:0 --controllers=registration": "",
		"--xds-insecure --xds-bind-address=:0 --controllers=cloneset":     "--controllers",
		"--xds-bind-address=0 --controllers=cloneset":                     "",
		"--guard-client-ca=a":                                                                "needs guard among --controllers",
		"--controllers=guard --guard-service=a/b":                                            "",
		"--controllers=guard --guard-service=a/b --guard-client-ca=/nowhere":                 "read --guard-client-ca",
		"--controllers=guard --guard-service=a/b --guard-client-names=api":                   "needs --guard-client-ca",
		"--controllers=guards":                                                               `"guards" is none of cloneset, registration, guard, certificate`,
		"--controllers=certificate --guard-service=a/b":                                      "",
		"--controllers=certificate":                                                          "--guard-service",
		"--controllers=guard,certificate --guard-service=a/b":                                "certificate runs alone",
		"--controllers=certificate --guard-service=a/b --metrics-bind-address=:0":            "--metrics-bind-address: certificate listens to nothing",
		"--controllers=certificate --guard-service=a/b --health-probe-bind-address=:0":       "--health-probe-bind-address: certificate listens to nothing",
		"--controllers=certificate --guard-service=a/b --xds-insecure --xds-bind-address=:0": "--controllers",
		"--lease-duration=2s":                                                                "",
		"--lease-duration=1s":                                                                "at least 2s",
		"--lease-duration=2500ms":                                                            "whole seconds",
		"--registry-workers=0":                                                               "--registry-workers must be at least 1",
		"--hook-keys=":                                                                       "",
		"--hook-keys=*":                                                                      "",
		"--hook-keys=zone,example.com/,example.com/drained":                                  "",
		"--hook-keys=*.example.com/":                                                         `"*.example.com/" is neither the key`,
		"--cluster-id=copy.of-1":                                                             "",
		"--cluster-id=":                                                                      "is not the value of a label",
		"--cluster-id=a/b":                                                                   `"a/b" is not the value of a label`,
		"--leave-nodes=tainted":                                                              "",
		"--leave-nodes=drained":                                                              `"drained" is none of [cordoned tainted urgent never]`,
		"--xds-tls-cert=a --xds-tls-key=b":                                                   "need --xds-bind-address",
		"--xds-bind-address=:0 --xds-tls-cert=a --xds-tls-key=b":                             "",
		"--xds-bind-address=:0 --xds-tls-cert=a --xds-tls-key=b --xds-authorize":             "--xds-client-ca",
		"--xds-bind-address=:0 --xds-tls-cert=a --xds-tls-key=b --xds-client-ca=c --xds-authorize": "",
	} {
		_, err := parse(strings.Fields(flags))
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want it to say %q", flags, err, says)
		}
	}
}
