// SPDX-License-Identifier: Apache-2.0

// Command operator is a hook operator in a few lines: it keeps the addresses of a
// CloneSet's Pods in a registry with an HTTP API, PUT and DELETE
// <REGISTRY_URL>/<service>/<address>, and answers the CloneSet's hooks.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/usher-dev/usher/pkg/hook"
)

func main() {
	ctrl.SetLogger(zap.New())
	// Its metrics would take port 8080, which on a machine of many programs may be somebody's.
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err == nil {
		err = hook.New("traffic").
			OnCreated(hook.Label("example.com/newly-create"), call(http.MethodPut)).
			OnPreUpdate(hook.Label("example.com/unready-blocker-inplace"), call(http.MethodDelete)).
			OnUpdated(hook.Label("example.com/unready-blocker-inplace"), call(http.MethodPut)).
			OnPreDelete(hook.Label("example.com/unready-blocker-delete"), call(http.MethodDelete)).
			Guard("example.com/traffic").
			SetupWithManager(mgr)
	}
	if err == nil {
		err = mgr.Start(ctrl.SetupSignalHandler())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// call reports a Pod to the registry. The library retries a failure.
func call(method string) hook.Handler {
	return func(ctx context.Context, pod *corev1.Pod) error {
		url := fmt.Sprintf("%s/%s/%s", os.Getenv("REGISTRY_URL"), pod.Labels["app"], pod.Status.PodIP)
		request, err := http.NewRequestWithContext(ctx, method, url, nil)
		if err != nil {
			return fmt.Errorf("REGISTRY_URL: %w", err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		if answer.StatusCode >= http.StatusMultipleChoices && answer.StatusCode != http.StatusNotFound {
			return fmt.Errorf("%s %s: %s", method, url, answer.Status)
		}
		return nil
	}
}
