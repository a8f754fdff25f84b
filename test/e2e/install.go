// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
)

// readyTime is how long Usher may take from the install command to Ready.
const readyTime = 10 * time.Second

// Installation describes one way of installing Usher. All times run from the command,
// or from the start of a process, until the event was seen.
type Installation struct {
	// Way is the step of docs/install.md.
	Way string
	// Ready is from the command until all replicas are ready and one is the leader.
	Ready time.Duration
	// StartReady is from the start of the last replica's process until all are ready,
	// StartLeading from the start of the first until one holds the lease.
	StartReady, StartLeading time.Duration
}

// installTools are the programs that the documents' commands need.
func installTools() []string { return []string{"helm", "kubectl"} }

// fetchTools builds them from their Go modules, which takes minutes the first time, and
// puts them into a directory.
func fetchTools(ctx context.Context, root, dir string, tell progress.Sink) error {
	const task = "helm, kubectl"
	tell.Tell(progress.Event{Task: task, State: progress.Compiling})
	if err := os.MkdirAll(toolsIn(dir), 0o755); err != nil {
		return err
	}
	for _, name := range installTools() {
		cmd := exec.CommandContext(ctx, "go", "tool", "-n", name)
		cmd.Dir, cmd.WaitDelay = filepath.Join(root, "tools", "chart"), stopGrace
		out, err := cmd.Output()
		if err == nil {
			err = os.Symlink(strings.TrimSpace(string(out)), filepath.Join(toolsIn(dir), name))
		}
		if err != nil {
			tell.Tell(progress.Event{Task: task, State: progress.Failed})
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				err = fmt.Errorf("%w\n%s", err, exit.Stderr)
			}
			return fmt.Errorf("build %s: %w", name, err)
		}
	}
	tell.Tell(progress.Event{Task: task, State: progress.Done, Detail: "built"})
	return nil
}

func toolsIn(dir string) string { return filepath.Join(dir, "tools") }

// installUsher installs Usher as users do, with the commands of docs/install.md: first
// with Helm, to see that it comes up and can be removed, and then without Helm for the
// stories.
func (s *session) installUsher(ctx context.Context, tell progress.Sink) error {
	for _, step := range []func() error{
		func() error { return s.install(ctx, "helm install", tell) },
		func() error { return s.uninstall(ctx, "helm uninstall") },
		func() error { return s.install(ctx, "kubectl apply", tell) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("install Usher: %w", err)
		}
	}
	return nil
}

// install follows a step of the document and waits until Usher is ready.
func (s *session) install(ctx context.Context, way string, tell progress.Sink) error {
	task := "Usher, " + way
	tell.Tell(progress.Event{Task: task, State: progress.Starting})
	began := time.Now()
	ready, cancel := context.WithTimeoutCause(ctx, readyTime, fmt.Errorf("it was to be ready within %s", readyTime))
	defer cancel()
	err := s.follow(ctx, way)
	if err == nil {
		err = s.awaitUsher(ready, began)
	}
	if err != nil {
		tell.Tell(progress.Event{Task: task, State: progress.Failed})
		return fmt.Errorf("%s: %w", way, err)
	}
	done := Installation{Way: way, Ready: time.Since(began)}
	if err := s.startTimes(ctx, &done); err != nil {
		return err
	}
	s.footprint.Installations = append(s.footprint.Installations, done)
	tell.Tell(progress.Event{Task: task, State: progress.Done, Detail: fmt.Sprintf("two replicas are ready and one leads %s after the command", seconds(done.Ready))})
	return nil
}

// startTimes records how long ago the replicas, which are ready now, were started.
func (s *session) startTimes(ctx context.Context, to *Installation) error {
	now := time.Now()
	pids, err := usherProcesses()
	if err != nil {
		return err
	}
	var youngest, oldest time.Duration
	for i, pid := range pids {
		age, err := process.Table{}.Age(pid)
		if err != nil {
			return err
		}
		if i == 0 {
			youngest = age
		}
		youngest, oldest = min(youngest, age), max(oldest, age)
	}
	lease := &coordinationv1.Lease{}
	if err := s.kube.Get(ctx, leaseKey(), lease); err != nil {
		return err
	}
	if lease.Spec.AcquireTime == nil {
		return errors.New("the lease of Usher's leader does not say since when")
	}
	to.StartReady, to.StartLeading = youngest, lease.Spec.AcquireTime.Sub(now.Add(-oldest))
	return nil
}

// uninstall follows a step of the document and waits until Usher has ended. Usher's
// roles are deleted before it ends, so it cannot release its lease, and the next
// installation would have to wait until the lease expires. The lease is therefore
// deleted too, as on a cluster that has never had Usher.
func (s *session) uninstall(ctx context.Context, way string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("after %s", patience))
	defer cancel()
	if err := s.follow(ctx, way); err != nil {
		return err
	}
	for {
		left, err := usherProcesses()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: usherNamespace, Name: usherLease}}
			return client.IgnoreNotFound(s.kube.Delete(ctx, lease))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: processes of Usher are left (%w)", way, context.Cause(ctx))
		case <-time.After(lookAgain):
		}
	}
}

// follow runs the commands of a step of docs/install.md.
func (s *session) follow(ctx context.Context, step string) error {
	script, err := checkout.DocumentedStep(s.kit.Root, "install.md", step)
	if err != nil {
		return err
	}
	home := s.path("home")
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.WaitDelay = s.kit.Root, stopGrace
	cmd.Env = append(os.Environ(), "PATH="+toolsIn(s.place.Dir)+":"+os.Getenv("PATH"), "KUBECONFIG="+s.node.Kubeconfig(), "HOME="+home,
		"HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n$ %s\n%s", step, err, strings.TrimSpace(script), out)
	}
	return nil
}
