// SPDX-License-Identifier: Apache-2.0

// Command devcluster runs a real Kubernetes control plane on this machine for the
// development of Usher: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler, built once from source. It listens only on the loopback interface and
// needs neither containers nor root.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1 // also: status finds no running cluster
	exitUsage = 2
)

const usage = `Run a real Kubernetes control plane on this machine, for the development of Usher.

Usage: devcluster COMMAND [FLAGS]

Commands:
  up          start the cluster in the background and wait until it is ready
  status      show the components with their health; exit code 1 when not running
  kubeconfig  print the path of the kubeconfig, for the administrator or another user
  down        stop the cluster
  build       only build etcd and the Kubernetes binaries

Each start begins with an empty cluster. "devcluster COMMAND --help" lists the flags.

Environment:
  USHER_DEVCLUSTER_DIR  the cluster's folder (default: usher/devcluster in the user's cache folder)
  USHER_CACHE           where the binaries are kept (default: usher in the user's cache folder)
  USHER_KUBERNETES      another minor version that test/cluster/controlplane pins, such as v1.33
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// After the first signal, the next one ends this process immediately.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], terminal{out: os.Stdout, err: os.Stderr}))
}

// terminal is where a command writes: results to out, progress and problems to err.
type terminal struct{ out, err *os.File }

func (t terminal) sayf(format string, args ...any) { writef(t.out, format, args...) }

func (t terminal) warnf(format string, args ...any) { writef(t.err, format, args...) }

// writef writes for a person; a reader that is gone is no reason to fail.
func writef(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// errSilent ends a command with exit code 1 when everything has been reported.
var errSilent = errors.New("said already")

// run runs one command line and returns the exit code.
func run(ctx context.Context, args []string, t terminal) int {
	if len(args) == 0 {
		t.warnf("%s", usage)
		return exitUsage
	}
	command, found := commands()[args[0]]
	switch {
	case args[0] == "help" || args[0] == "-h" || args[0] == "--help":
		t.sayf("%s", usage)
		return exitOK
	case !found:
		t.warnf("devcluster: there is no command %q; the commands are up, status, kubeconfig, down and build\n", args[0])
		return exitUsage
	}
	err := command(ctx, args[1:], t)
	var misuse *usageError
	switch {
	case err == nil, errors.Is(err, errHelp):
		return exitOK
	case errors.As(err, &misuse):
		t.warnf("devcluster %s: %v\nTry: devcluster %s --help\n", args[0], misuse, args[0])
		return exitUsage
	case !errors.Is(err, errSilent):
		t.warnf("devcluster %s: %v\n", args[0], err)
	}
	return exitError
}

func commands() map[string]func(context.Context, []string, terminal) error {
	return map[string]func(context.Context, []string, terminal) error{
		"up":         up,
		"status":     status,
		"kubeconfig": kubeconfig,
		"down":       down,
		"build":      buildOnly,
		superviseCmd: superviseCommand, // hidden: up runs this program with it
	}
}
