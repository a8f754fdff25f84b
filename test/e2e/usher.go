// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/checkout"
)

const (
	// usherNamespace and the names below are those of dist/install.yaml.
	usherNamespace  = "usher-system"
	usherDeployment = "usher"
	usherLease      = "usher.usher.dev"
	usherProgram    = "/usr/local/bin/usher"
)

// readManifests reads what a user applies.
func readManifests(root string) ([]*unstructured.Unstructured, error) {
	file, err := os.Open(filepath.Join(root, "dist", "install.yaml"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	objects, err := checkout.ReadObjects(file)
	if err != nil {
		return nil, fmt.Errorf("read dist/install.yaml: %w", err)
	}
	return objects, nil
}

// usherImage is the image in the manifests.
func usherImage(root string) (string, error) {
	objects, err := readManifests(root)
	if err != nil {
		return "", err
	}
	for _, object := range objects {
		containers, _, _ := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
		if object.GetKind() != "Deployment" || len(containers) == 0 {
			continue
		}
		fields, _ := containers[0].(map[string]any)
		if image, ok := fields["image"].(string); ok {
			return image, nil
		}
	}
	return "", errors.New("dist/install.yaml has no Deployment with an image")
}

// awaitUsher waits until all replicas are ready and one has become leader since a time.
func (s *session) awaitUsher(ctx context.Context, since time.Time) error {
	for {
		wrong := s.usherWrong(ctx, since)
		if wrong == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for Usher: %w (%w)", wrong, context.Cause(ctx))
		case <-time.After(lookAgain):
		}
	}
}

func (s *session) usherWrong(ctx context.Context, since time.Time) error {
	deployment, lease := &appsv1.Deployment{}, &coordinationv1.Lease{}
	if err := s.kube.Get(ctx, client.ObjectKey{Namespace: usherNamespace, Name: usherDeployment}, deployment); err != nil {
		return err
	}
	status, want := deployment.Status, *deployment.Spec.Replicas
	if status.ObservedGeneration < deployment.Generation || status.ReadyReplicas != want || status.UpdatedReplicas != want || status.Replicas != want {
		return fmt.Errorf("%d of %d replicas are ready, %d are of the newest version", status.ReadyReplicas, want, status.UpdatedReplicas)
	}
	if err := s.kube.Get(ctx, client.ObjectKey{Namespace: usherNamespace, Name: usherLease}, lease); err != nil {
		return err
	}
	if holder := lease.Spec.HolderIdentity; holder == nil || *holder == "" {
		return errors.New("nobody holds its lease")
	}
	if renewed := lease.Spec.RenewTime; renewed == nil || renewed.Time.Before(since) {
		return errors.New("nobody has renewed its lease")
	}
	return nil
}

// usherProcesses are the process ids of Usher on the node.
func usherProcesses() ([]int, error) {
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, link := range links {
		program, err := os.Readlink(link)
		if err != nil || program != usherProgram {
			continue // It has ended, or is another program.
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil {
			return nil, err
		}
		found = append(found, pid)
	}
	return found, nil
}

// killUsher kills every process of Usher on the node.
func killUsher() error {
	found, err := usherProcesses()
	if err != nil {
		return err
	}
	for _, pid := range found {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill Usher: %w", err)
		}
	}
	if len(found) == 0 {
		return errors.New("kill Usher: it does not run")
	}
	return nil
}

// KillUsher kills all replicas of Usher with SIGKILL. The kubelet restarts them, and
// one leads when the dead leader's lease has expired, after 15 seconds.
func (s *Scene) KillUsher() {
	s.Step("kill Usher")
	s.Check(killUsher())
}

// RestartUsher replaces Usher's replicas with new ones, as an upgrade does.
func (s *Scene) RestartUsher() {
	s.Step("restart Usher")
	deployment := &appsv1.Deployment{}
	s.Check(s.session.kube.Get(s.ctx, client.ObjectKey{Namespace: usherNamespace, Name: usherDeployment}, deployment))
	before := deployment.DeepCopy()
	if deployment.Spec.Template.Annotations == nil {
		deployment.Spec.Template.Annotations = map[string]string{}
	}
	deployment.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] = time.Now().Format(time.RFC3339Nano)
	s.Check(s.session.kube.Patch(s.ctx, deployment, client.MergeFrom(before)))
}

// AwaitUsher waits until all replicas of Usher are ready again, and one has become
// leader since a time.
func (s *Scene) AwaitUsher(since time.Time) {
	s.Step("await Usher")
	ctx, cancel := context.WithTimeoutCause(s.ctx, patience, fmt.Errorf("after %s", patience))
	defer cancel()
	s.Check(s.session.awaitUsher(ctx, since))
}
