// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// GuardName is the name of the guard's webhook configuration, Service and Secret.
const GuardName = "usher-guard"

const (
	guardNamespace = "usher-system"
	loopback       = "127.0.0.1"
	// trustTime bounds the wait for the guard's certificate.
	trustTime = 30 * time.Second
)

// InstallGuard creates what the chart of the checkout at root makes for the guard, with its
// rights for a user. API servers call the guard at a port of this machine: here no Service
// leads to Pods. It returns the arguments with which Usher serves the guard there.
func InstallGuard(ctx context.Context, c client.Client, root, user string, port int) (args []string, err error) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: guardNamespace}}
	if err := c.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create namespace %s: %w", guardNamespace, err)
	}
	objects, err := readFile(filepath.Join(root, "tools", "chart", "testdata", "golden", "guard.yaml"))
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		if !strings.HasPrefix(object.GetName(), GuardName) || !placeGuard(object, user, port) {
			continue
		}
		if err := apply(ctx, c, object); err != nil {
			return nil, err
		}
	}
	return []string{
		"--controllers=cloneset,registration,guard",
		"--guard-service=" + guardNamespace + "/" + GuardName, fmt.Sprintf("--guard-port=%d", port),
	}, nil
}

// placeGuard makes an object of the chart fit a guard that is a process of this machine. It
// reports whether that needs the object.
func placeGuard(object *unstructured.Unstructured, user string, port int) bool {
	switch object.GetKind() {
	case "Secret", "Role", "ClusterRole":
	case "RoleBinding", "ClusterRoleBinding":
		object.Object["subjects"] = []any{map[string]any{"apiGroup": rbacv1.GroupName, "kind": rbacv1.UserKind, "name": user}}
	case "Service":
		object.Object["spec"] = map[string]any{"type": string(corev1.ServiceTypeExternalName), "externalName": loopback}
	case "ValidatingWebhookConfiguration":
		for _, webhook := range object.Object["webhooks"].([]any) {
			service := webhook.(map[string]any)["clientConfig"].(map[string]any)["service"].(map[string]any)
			service["port"] = int64(port)
		}
	default:
		return false
	}
	return true
}

// AwaitGuard waits until API servers trust the guard, which Usher sees to when it starts.
func AwaitGuard(ctx context.Context, c client.Client) error {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, trustTime, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKey{Name: GuardName}, configuration)
		return err == nil && len(configuration.Webhooks[0].ClientConfig.CABundle) > 0, err
	})
	if err != nil {
		return errors.Join(fmt.Errorf("wait for the certificate of the guard: %w", err), context.Cause(ctx))
	}
	return nil
}

// RemoveGuard takes the webhook away, as guard.enabled=false does.
func RemoveGuard(ctx context.Context, c client.Client) error {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: GuardName}}
	if err := c.Delete(ctx, configuration); err != nil {
		return fmt.Errorf("remove the guard: %w", err)
	}
	return nil
}
