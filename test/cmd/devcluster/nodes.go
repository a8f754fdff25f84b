// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/cluster/progress"
)

const (
	// nodesTask is the nodes' name in the progress.
	nodesTask = "nodes"
	// simulatedPods is the Pod capacity of a node that only pretends to run
	// containers.
	simulatedPods = 5000
)

// nodeSet is the nodes of a cluster.
type nodeSet struct {
	names []string
	stop  func(context.Context) error
}

// startNodes gives the cluster its nodes. They outlive ctx: stop ends them.
func startNodes(ctx context.Context, c *cluster.Cluster, s settings, tell progress.Sink, logger *log.Logger) (*nodeSet, error) {
	if s.nodes == 0 {
		return &nodeSet{stop: func(context.Context) error { return nil }}, nil
	}
	tell.Tell(progress.Event{Task: nodesTask, State: progress.Starting})
	agent, err := startAgent(ctx, c, s, logger)
	if err != nil {
		tell.Tell(progress.Event{Task: nodesTask, State: progress.Failed})
		return nil, fmt.Errorf("start the nodes: %w", err)
	}
	names := agent.Nodes()
	tell.Tell(progress.Event{Task: nodesTask, State: progress.Done, Detail: strings.Join(shorten(names, 4), ", ") + " ready"})
	return &nodeSet{names: names, stop: agent.Stop}, nil
}

func startAgent(ctx context.Context, c *cluster.Cluster, s settings, logger *log.Logger) (*node.Agent, error) {
	runtime, pods, err := nodeRuntime(ctx, s)
	if err != nil {
		return nil, err
	}
	config := c.RESTConfig()
	config.UserAgent = "usher-devcluster-nodes"
	agent, err := node.Start(context.WithoutCancel(ctx), node.Options{
		RESTConfig: config, Runtime: runtime, Nodes: s.nodes, PodsPerNode: pods, Logger: nodeLogger(logger),
	})
	if err != nil {
		// The agent closes the runtime only if it has started.
		return nil, errors.Join(err, runtime.Close(ctx))
	}
	return agent, nil
}

// nodeRuntime returns the runtime for the containers, and the Pod capacity of a node; 0
// means the agent's default.
func nodeRuntime(ctx context.Context, s settings) (node.Runtime, int, error) {
	if s.simulate {
		runtime, err := node.NewSimulatedRuntime(node.SimulatedOptions{})
		return runtime, simulatedPods, err
	}
	programs := s.programs
	if programs == "" {
		programs = filepath.Join(s.dir, "programs")
		if err := buildPrograms(ctx, programs); err != nil {
			return nil, 0, err
		}
	}
	runtime, err := node.NewProcessRuntime(node.ProcessOptions{
		Images: node.ProgramDir(programs), LogDir: filepath.Join(s.dir, "logs", "containers"),
	})
	return runtime, 0, err
}

// buildPrograms compiles the default images' programs for a cluster whose user has
// named none: the demo's web service.
func buildPrograms(ctx context.Context, dir string) error {
	source, err := build.FindSource(".", os.Getenv)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of programs: %w", err)
	}
	command := exec.CommandContext(ctx, "go", "build", "-o", dir+string(filepath.Separator), "./cmd/web")
	command.Dir = source.Gear()
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build the image of the web service (or give --programs or --simulate): %w\n%s", err, output)
	}
	return nil
}

// nodeLogger writes the nodes' messages to the supervisor's log.
func nodeLogger(logger *log.Logger) logr.Logger {
	return funcr.New(func(prefix, args string) { logger.Println(strings.TrimSpace(nodesTask+" "+prefix), args) }, funcr.Options{})
}

// shorten lists the first n names and how many more there are.
func shorten(names []string, n int) []string {
	if len(names) <= n {
		return names
	}
	return append(names[:n-1:n-1], fmt.Sprintf("%d more", len(names)-n+1))
}
