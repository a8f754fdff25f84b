// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/stage"
)

const (
	// usherNamespace and the names below are those of dist/install.yaml. The keeper of the guard's
	// certificate runs in another Deployment, and continues when stories stop Usher.
	usherNamespace  = "usher-system"
	usherDeployment = "usher"
	usherLease      = "usher.usher.dev"
	usherProgram    = "/usr/local/bin/usher"
	usherReplicas   = 2

	// stopGrace is how long an interrupted command may take to end.
	stopGrace = 5 * time.Second
	// readyTime is how long Usher may take from the install command to ready.
	readyTime = 10 * time.Second

	// stranger holds the lease of Usher's leader for longer than a story, and does
	// nothing.
	stranger        = "usher-e2e"
	strangerSeconds = 3600
)

// usherPods selects the replicas of Usher.
var usherPods = client.MatchingLabels{"app.kubernetes.io/name": "usher"}

// installUsher installs Usher as users do, with the commands of docs/install.md: first
// with Helm, to see that it comes up and can be removed, and then without Helm for the
// stories.
func (s *session) installUsher(ctx context.Context, _ *stage.Stage) error {
	if err := s.install(ctx, "helm install"); err != nil {
		return err
	}
	if err := s.uninstall(ctx, "helm uninstall"); err != nil {
		return err
	}
	if err := s.install(ctx, "kubectl apply"); err != nil {
		return err
	}
	return s.limitGuard(ctx)
}

// install follows a step of the document and waits until Usher is ready.
func (s *session) install(ctx context.Context, way string) error {
	began := time.Now()
	err := s.Progress.Task("Usher, "+way, func() (string, error) {
		if err := s.follow(ctx, "install.md", way); err != nil {
			return "", err
		}
		err := s.awaitUsher(ctx, began, readyTime)
		return fmt.Sprintf("two replicas are ready and one leads %s after the command", stage.Seconds(time.Since(began))), err
	})
	if err != nil {
		return fmt.Errorf("install Usher with %s: %w", way, err)
	}
	return s.measureInstallation(ctx, way, time.Since(began))
}

// uninstall follows a step of the document and waits until Usher has ended. Usher's
// roles are deleted before it ends, so it cannot release its lease, and the next
// installation would have to wait until the lease expires. The lease is therefore
// deleted too, as on a cluster that has never had Usher.
func (s *session) uninstall(ctx context.Context, way string) error {
	if err := s.follow(ctx, "install.md", way); err != nil {
		return err
	}
	err := stage.Poll(ctx, patience, "the end of Usher's processes after "+way, func(context.Context) (bool, error) {
		left, err := usherProcesses()
		return len(left) == 0, err
	})
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(s.Kube.Delete(ctx, newLease()))
}

// follow runs the commands of a step of a document.
func (s *session) follow(ctx context.Context, document, step string) error {
	script, err := checkout.DocumentedStep(s.Root, document, step)
	if err != nil {
		return err
	}
	if out, err := s.tool(ctx, "bash", "-euo", "pipefail", "-c", script).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n$ %s\n%s", step, err, strings.TrimSpace(script), out)
	}
	return nil
}

// tool returns a command that can use the cluster and the programs of the documents' commands.
func (s *session) tool(ctx context.Context, program string, args ...string) *exec.Cmd {
	if own := filepath.Join(toolsIn(s.Dir), program); program != "bash" {
		program = own
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.WaitDelay = s.Root, stopGrace
	cmd.Env = checkout.ToolEnv(toolsIn(s.Dir), s.Cluster.Kubeconfig(), s.Path("home"))
	return cmd
}

// awaitUsher waits until all replicas are ready and one has become leader since a time.
func (s *session) awaitUsher(ctx context.Context, since time.Time, limit time.Duration) error {
	return stage.Try(ctx, limit, "two replicas of Usher of which one leads", func(ctx context.Context) error { return s.usherWrong(ctx, since) })
}

func (s *session) usherWrong(ctx context.Context, since time.Time) error {
	deployment := &appsv1.Deployment{}
	if err := s.Kube.Get(ctx, client.ObjectKey{Namespace: usherNamespace, Name: usherDeployment}, deployment); err != nil {
		return err
	}
	status, want := deployment.Status, *deployment.Spec.Replicas
	if status.ObservedGeneration < deployment.Generation || status.ReadyReplicas != want || status.UpdatedReplicas != want || status.Replicas != want {
		return fmt.Errorf("%d of %d replicas are ready, %d are of the newest version", status.ReadyReplicas, want, status.UpdatedReplicas)
	}
	lease, err := s.lease(ctx)
	if err != nil {
		return err
	}
	if ptr.Deref(lease.HolderIdentity, "") == "" {
		return errors.New("nobody holds its lease")
	}
	if renewed := lease.RenewTime; renewed == nil || renewed.Time.Before(since) {
		return errors.New("nobody has renewed its lease")
	}
	return nil
}

// usherProcesses returns the process ids of Usher's replicas on the node.
func usherProcesses() (found []int, err error) {
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		process := filepath.Dir(link)
		program, gone := os.Readlink(link)
		args, unread := os.ReadFile(filepath.Join(process, "cmdline"))
		pid, failed := strconv.Atoi(filepath.Base(process))
		if errors.Join(gone, unread, failed) == nil && program == usherProgram && !strings.Contains(string(args), "--controllers=certificate") {
			found = append(found, pid)
		}
	}
	return found, err
}

// signalUsher sends a signal to all replicas of Usher. The kubelet restarts killed ones, and one
// becomes leader when the dead leader's lease has expired.
func (s *Scene) signalUsher(signal syscall.Signal) {
	s.asked = time.Now()
	found, err := usherProcesses()
	s.check(err)
	if len(found) == 0 {
		s.fatalf("send %s to Usher: it does not run", signal)
	}
	for _, pid := range found {
		s.check(syscall.Kill(pid, signal))
	}
}

// stopUsher ends all of Usher's replicas. It returns when the node has noticed: until kube-proxy has
// written its rules, API servers call replicas that are gone. A Pod that still exists also refuses
// connections when its process has ended.
func (s *Scene) stopUsher() {
	s.check(s.session.scaleUsher(s.ctx, 0))
	s.await("the end of Usher", func(State) string {
		pods := &corev1.PodList{}
		s.check(s.session.Kube.List(s.ctx, pods, client.InNamespace(usherNamespace), usherPods))
		if len(pods.Items) > 0 {
			return fmt.Sprintf("%d Pods are there", len(pods.Items))
		}
		service := &corev1.Service{}
		s.check(s.session.Kube.Get(s.ctx, client.ObjectKey{Namespace: usherNamespace, Name: checkout.GuardName}, service))
		err := dial(s.ctx, net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(service.Spec.Ports[0].Port))))
		return stage.Unless(errors.Is(err, syscall.ECONNREFUSED), "the guard's address is not refused: %v", err)
	})
}

// startUsher starts Usher's replicas again.
func (s *Scene) startUsher() {
	s.asked = time.Now()
	s.check(s.session.scaleUsher(s.ctx, usherReplicas))
}

func (s *session) scaleUsher(ctx context.Context, replicas int) error {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: usherNamespace, Name: usherDeployment}}
	_, err := stage.Scale(ctx, s.Kube, deployment, replicas)
	return err
}

// awaitUsher waits until all replicas of Usher are ready again, and one has become leader since the
// story last acted on Usher.
func (s *Scene) awaitUsher() { s.check(s.session.awaitUsher(s.ctx, s.asked, patience)) }

// deposeUsher gives the lease of Usher's leader to an inactive holder, and returns when the leader has
// noticed: its replica restarts, and there is no leader until the lease is free again.
func (s *Scene) deposeUsher() {
	before := s.usherRestarts()
	s.check(s.session.writeLease(s.ctx, stranger, strangerSeconds, strconv.Quote(time.Now().UTC().Format(metav1.RFC3339Micro))))
	s.await("the leader to restart", func(State) string {
		now := s.usherRestarts()
		return stage.Unless(now > before, "no replica of Usher has")
	})
}

func newLease() *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: usherNamespace, Name: usherLease}}
}

// lease reads the lease of Usher's leader.
func (s *session) lease(ctx context.Context) (coordinationv1.LeaseSpec, error) {
	lease := newLease()
	err := s.Kube.Get(ctx, client.ObjectKeyFromObject(lease), lease)
	return lease.Spec, err
}

// freeLease takes the lease from the stranger, if that holds it.
func (s *session) freeLease(ctx context.Context) error {
	lease, err := s.lease(ctx)
	if err != nil || ptr.Deref(lease.HolderIdentity, "") != stranger {
		return err
	}
	return s.writeLease(ctx, "", 1, "null")
}

// writeLease writes the lease regardless of concurrent writes: a leader renews it
// several times a second. since is a time as JSON.
func (s *session) writeLease(ctx context.Context, holder string, seconds int, since string) error {
	return s.Kube.Patch(ctx, newLease(), mergePatch(fmt.Sprintf(
		`{"spec": {"holderIdentity": %q, "leaseDurationSeconds": %d, "acquireTime": %[3]s, "renewTime": %[3]s}}`, holder, seconds, since)))
}

// usherRestarts counts the restarts of all of Usher's replicas.
func (s *Scene) usherRestarts() int {
	pods := &corev1.PodList{}
	s.check(s.session.Kube.List(s.ctx, pods, client.InNamespace(usherNamespace), usherPods))
	return restarts(pods.Items)
}
