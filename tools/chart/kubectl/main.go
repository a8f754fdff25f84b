// SPDX-License-Identifier: Apache-2.0

// Command kubectl is Kubernetes' own, for tests that run the commands of the
// documents on machines that have none.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	command := cmd.NewDefaultKubectlCommand()
	if err := cli.RunNoErrOutput(command); err != nil {
		util.CheckErr(err)
		os.Exit(1)
	}
}
