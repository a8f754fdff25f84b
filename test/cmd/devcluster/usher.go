// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/process"
	servers "github.com/usher-dev/usher/test/servers/run"
	"github.com/usher-dev/usher/test/stage"
)

const (
	// usherNamespace is the namespace in dist/install.yaml.
	usherNamespace = "usher-system"
	// startTime bounds the wait until Usher works, stopTime the wait for its end.
	startTime, stopTime = time.Minute, 5 * time.Second
)

// tools builds kubectl, if this machine has none, and the plugin.
func tools(ctx context.Context, s *stage.Stage) error {
	return s.Progress.Task("kubectl and its plugin", func() (string, error) {
		plugin := checkout.Program{Module: filepath.Join(s.Root, "cmd", "kubectl-usher"), Pkg: ".", Out: s.Path("bin", "kubectl-usher")}
		err := errors.Join(checkout.InstallKubectl(ctx, s.Root, s.Path("bin")), plugin.Compile(ctx, nil))
		return "in " + s.Path("bin"), err
	})
}

// installUsher installs dist/install.yaml, and does what kubelets would do with its Deployments: it runs Usher with
// their arguments and as their accounts, here as processes that reach the API server.
func installUsher(ctx context.Context, s *stage.Stage) error {
	return s.Progress.Task("Usher and its guard", func() (_ string, err error) {
		if s.Kube, err = checkout.NewClient(s.Cluster.RESTConfig()); err != nil {
			return "", err
		}
		ports, err := servers.FreePorts(ctx, 1)
		if err != nil {
			return "", err
		}
		objects, err := checkout.ReadObjects(filepath.Join(s.Root, "dist", "install.yaml"))
		if err != nil {
			return "", err
		}
		for _, object := range objects {
			checkout.PlaceGuard(object, ports[0])
			if _, err := stage.Apply(ctx, s.Kube, object); err != nil {
				return "", err
			}
		}
		for _, object := range objects {
			if err := runDeployment(s, object, ports[0]); err != nil {
				return "", err
			}
		}
		return "works, and " + s.UsherLog() + " has its log", works(ctx, s)
	})
}

// runDeployment runs a Pod of a Deployment of Usher's as a process, whose unexpected end ends the run. It does
// nothing for other objects.
func runDeployment(s *stage.Stage, object *unstructured.Unstructured, guardPort int) error {
	if object.GetKind() != "Deployment" {
		return nil
	}
	deployment := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, deployment); err != nil {
		return fmt.Errorf("read Deployment %s: %w", object.GetName(), err)
	}
	pod := deployment.Spec.Template.Spec
	kubeconfig, err := s.Cluster.UserKubeconfig(fmt.Sprintf("system:serviceaccount:%s:%s", usherNamespace, pod.ServiceAccountName),
		"system:serviceaccounts", "system:serviceaccounts:"+usherNamespace, "system:authenticated")
	if err != nil {
		return err
	}
	log := s.UsherLog()
	if deployment.Name != "usher" {
		log = s.Path("logs", deployment.Name+".log")
	}
	p, err := process.Start(process.Spec{
		Name: deployment.Name, Path: s.Path("bin", "usher"), Log: log, Failed: s.Fail,
		Args: append(argsHere(pod.Containers[0].Args, guardPort), "--kubeconfig="+kubeconfig),
	})
	if err != nil {
		return err
	}
	s.AtEnd(func(ctx context.Context) error { return p.Stop(ctx, stopTime) })
	return nil
}

// argsHere returns a container's arguments as this machine needs them: no port that another program may
// have, and the names that a Pod would know by itself.
func argsHere(args []string, guardPort int) []string {
	here := slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return strings.Contains(arg, "-bind-address=") || strings.HasPrefix(arg, "--guard-port=")
	})
	if slices.Contains(args, "--leader-elect") {
		here = append(here, "--leader-election-namespace="+usherNamespace)
	}
	if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--guard-port=") }) {
		here = append(here, fmt.Sprintf("--guard-port=%d", guardPort))
	}
	return here
}

// works waits until API servers trust the guard, Usher leads and has made the Registry for Services,
// and its Deployments are available.
func works(ctx context.Context, s *stage.Stage) error {
	if _, err := checkout.AwaitGuard(ctx, s.Kube); err != nil {
		return err
	}
	return stage.Try(ctx, startTime, "Usher to work", func(ctx context.Context) error {
		if err := s.Kube.Get(ctx, client.ObjectKey{Name: "service"}, &usherv1alpha1.Registry{}); err != nil {
			return err
		}
		deployments := &appsv1.DeploymentList{}
		if err := s.Kube.List(ctx, deployments, client.InNamespace(usherNamespace)); err != nil {
			return err
		}
		for _, d := range deployments.Items {
			if d.Status.AvailableReplicas < *d.Spec.Replicas {
				return fmt.Errorf("Deployment %s has %d of %d Pods", d.Name, d.Status.AvailableReplicas, *d.Spec.Replicas) //nolint:staticcheck // a kind's name
			}
		}
		return nil
	})
}

// noServices is an admission policy that refuses objects which cannot work with processes, and says
// why: otherwise Pods would wait forever.
const noServices = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: devcluster-processes}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [usher.dev], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [registrations, registries]}
  validations:
    # The first one is made by Usher itself, wherever it runs.
    - expression: >-
        object.kind == 'Registry' ? object.metadata.name == 'service' || !(has(object.spec.service) || has(object.spec.endpointSlice) || has(object.spec.xds))
        : !('service' in object.spec.registries)
      message: >-
        the nodes of this cluster run containers as processes, with addresses of 127.0.0.0/8, which EndpointSlices do not
        take: no Service lists these Pods. Begin again with make up ARGS=--usher (or ARGS=--simulate), or name a Registry of
        another kind
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: devcluster-processes}
spec: {policyName: devcluster-processes, validationActions: [Deny]}
`

// refuseServices applies noServices.
func refuseServices(ctx context.Context, s *stage.Stage) error {
	kube, err := checkout.NewClient(s.Cluster.RESTConfig())
	if err != nil {
		return err
	}
	objects, err := checkout.ParseObjects(strings.NewReader(noServices))
	if err != nil {
		return err
	}
	for _, object := range objects {
		if _, err := stage.Apply(ctx, kube, object); err != nil {
			return err
		}
	}
	return nil
}
