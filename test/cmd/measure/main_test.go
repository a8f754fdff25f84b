// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/usher-dev/usher/test/stage"
)

// Invalid options are refused before anything is built or started.
func TestRefusals(t *testing.T) {
	for args, want := range map[string]string{
		"-sizes=many":                 `"many" is no number: give numbers of Pods`,
		"-sizes=0":                    "size 0: give numbers of Pods from 1 to",
		"-sizes=10,1000000":           "size 1000000",
		"-sizes=4 -registries=etcd":   "size 4: give numbers of Pods from 5 to",
		"-registries=disk":            `registry "disk": give some of etcd, consul`,
		"-guard -registries=etcd":     "give -guard or -registries",
		"now":                         `unexpected argument "now"`,
		"-markdown=no/such/directory": "no/such/directory",
	} {
		err := run(t.Context(), strings.Fields(args), os.Stdout, os.Getenv)
		if !errors.Is(err, stage.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
