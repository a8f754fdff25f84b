// SPDX-License-Identifier: Apache-2.0

// Command devcluster runs a real Kubernetes control plane on this machine for the
// development of Usher: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler, built once from source. It listens only on the loopback interface and
// needs neither containers nor root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/usher-dev/usher/test/cluster/build"
)

// dirEnv names the environment variable for the cluster's directory.
const dirEnv = "USHER_DEVCLUSTER_DIR"

// Exit codes.
const (
	exitError = 1 // also: status finds no running cluster
	exitUsage = 2
)

const usage = `Run a real Kubernetes control plane on this machine, for the development of Usher.

Usage: devcluster COMMAND [FLAGS]

Commands:
  up      start the cluster in the background and wait until it is ready
  run     run the cluster in the foreground until Ctrl-C
  status  show how to use the cluster; exit code 1 if none is running
  down    stop the cluster
  build   only build etcd and the Kubernetes binaries

Each start begins with an empty cluster.

Environment:
  USHER_DEVCLUSTER_DIR  the cluster's directory (default: usher/devcluster in the user's cache directory)
  USHER_CACHE           where the binaries are kept (default: usher in the user's cache directory)
  USHER_KUBERNETES      another minor version that test/cluster/controlplane pins, such as v1.33

Flags:
`

// settings are the flags; all commands have the same.
type settings struct {
	dir      string
	port     int
	nodes    int
	simulate bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// After the first signal, the next one ends this process immediately.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:]))
}

// run runs one command line and returns the exit code.
func run(ctx context.Context, args []string) int {
	s := settings{}
	flags := flag.NewFlagSet("devcluster", flag.ContinueOnError)
	flags.StringVar(&s.dir, "dir", os.Getenv(dirEnv), "the cluster's `directory`")
	flags.IntVar(&s.port, "port", 0, "the API server's `port` on 127.0.0.1; 0 means a free one")
	flags.IntVar(&s.nodes, "nodes", 2, "the `number` of nodes; 0 leaves all Pods pending")
	flags.BoolVar(&s.simulate, "simulate", false, "only simulate containers, for clusters with thousands of Pods")
	flags.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		flags.PrintDefaults()
	}
	commands := map[string]func(context.Context, settings) error{
		"up": up, "run": runCluster, "status": status, "down": down, "build": buildOnly,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		flags.Usage()
		return exitUsage
	}
	if err := flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil || flags.NArg() > 0 {
		return exitUsage
	}
	err := s.complete()
	if err == nil {
		err = commands[args[0]](ctx, s)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "devcluster %s: %v\n", args[0], err)
		return exitError
	}
	return 0
}

// complete sets the cluster's directory to an absolute path.
func (s *settings) complete() (err error) {
	if s.dir != "" {
		s.dir, err = filepath.Abs(s.dir)
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find the cache directory (set --dir or %s): %w", dirEnv, err)
	}
	s.dir = filepath.Join(cache, "usher", "devcluster")
	return nil
}

// buildOnly builds the binaries.
func buildOnly(ctx context.Context, _ settings) error {
	binaries, err := build.Ensure(ctx, build.Options{})
	if err != nil {
		return err
	}
	fmt.Printf("Kubernetes %s and etcd %s are built: %s\n", binaries.Kubernetes, binaries.Etcd, binaries.Dir)
	return nil
}
