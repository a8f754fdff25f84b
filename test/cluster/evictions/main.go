// SPDX-License-Identifier: Apache-2.0

// Command evictions runs the two controllers of Kubernetes' EvictionRequest API (KEP-4563) as they are in the
// version that go.mod pins, on a control plane whose own controller manager has none. It is a module of its
// own: it needs a newer Go, and libraries of that version of Kubernetes.
//
// kube-controller-manager and kube-apiserver of that version need the module k8s.io/apiextensions-api, which a
// proxy may not have; their types of this API and its validation are the same as those of 1.37. go.mod takes
// structured-merge-diff v7.0.0 in place of v7.0.1 for the same reason.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubernetes/pkg/controller/evictionrequest"
	"k8s.io/kubernetes/pkg/controller/imperativeevictionresponder"
)

// workers is how many objects each controller looks at at a time: as many as kube-controller-manager's.
const workers = 5

// names are those of the controllers, and of their service accounts.
const coordinator, evictor = "evictionrequest-controller", "imperative-eviction-responder-controller"

func main() {
	kubeconfig := flag.String("kubeconfig", "", "`file` of a user who may impersonate the controllers' service accounts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *kubeconfig); err != nil {
		fmt.Fprintln(os.Stderr, "evictions:", err)
		os.Exit(1)
	}
}

// run runs both until ctx ends.
func run(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := clientOf(config, coordinator)
	if err != nil {
		return err
	}
	other, err := clientOf(config, evictor)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactory(client, 0)
	lifecycle, pods := shared.Lifecycle().V1alpha1(), shared.Core().V1().Pods()
	first, err := evictionrequest.NewController(
		ctx, coordinator, lifecycle.Evictions(), lifecycle.EvictionRequests(), pods, client)
	if err != nil {
		return err
	}
	last, err := imperativeevictionresponder.NewController(ctx, evictor, lifecycle.Evictions(), pods, other)
	if err != nil {
		return err
	}
	shared.Start(ctx.Done())
	go last.Run(ctx, workers)
	first.Run(ctx, workers)
	shared.Shutdown()
	return nil
}

// clientOf acts as the service account that kube-controller-manager gives the controller.
func clientOf(config *rest.Config, name string) (*kubernetes.Clientset, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 1000, 2000
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kube-system:" + name,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
	}
	return kubernetes.NewForConfig(config)
}
