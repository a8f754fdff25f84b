// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// TestFlags: flags that do not fit together, or have no meaning, are refused by name. Those
// of the xDS server are accepted together or not at all.
func TestFlags(t *testing.T) {
	for flags, says := range map[string]string{
		"":                                     "",
		"--xds-bind-address=:0":                "--xds-insecure for plain text",
		"--xds-insecure --xds-bind-address=:0": "",
		"--xds-insecure --xds-bind-address=:0 --controllers=registration":                          "",
		"--xds-insecure --xds-bind-address=:0 --controllers=cloneset":                              "--controllers",
		"--xds-bind-address=0 --controllers=cloneset":                                              "",
		"--leave-nodes=tainted":                                                                    "",
		"--leave-nodes=drained":                                                                    `"drained" is none of [cordoned tainted never]`,
		"--xds-tls-cert=a --xds-tls-key=b":                                                         "need --xds-bind-address",
		"--xds-bind-address=:0 --xds-tls-cert=a --xds-tls-key=b":                                   "",
		"--xds-bind-address=:0 --xds-tls-cert=a --xds-tls-key=b --xds-authorize":                   "--xds-client-ca",
		"--xds-bind-address=:0 --xds-tls-cert=a --xds-tls-key=b --xds-client-ca=c --xds-authorize": "",
	} {
		_, err := parse(strings.Fields(flags))
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want it to say %q", flags, err, says)
		}
	}
}
