// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// NewClient returns a client that knows Usher's types.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	all := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(all), appsv1alpha1.AddToScheme(all), usherv1alpha1.AddToScheme(all)); err != nil {
		return nil, fmt.Errorf("register API types: %w", err)
	}
	kube, err := client.NewWithWatch(config, client.Options{Scheme: all})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return kube, nil
}

// Install installs the CRDs of the checkout at root, waits until their objects can be
// created, and grants only the cluster roles of config/rbac to a user.
func Install(ctx context.Context, c client.Client, config *rest.Config, root, user string) error {
	if err := InstallCRDs(config, root); err != nil {
		return err
	}
	return Grant(ctx, c, root, user)
}

// InstallCRDs installs the CRDs of the checkout at root, or changes those of another one, and waits until their
// objects can be created.
func InstallCRDs(config *rest.Config, root string) error {
	_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{filepath.Join(root, "config", "crd")}, ErrorIfPathMissing: true})
	if err != nil {
		return fmt.Errorf("install the CRDs: %w", err)
	}
	return nil
}

// Grant grants the cluster roles of config/rbac of the checkout at root to a user, as they are there.
func Grant(ctx context.Context, c client.Client, root, user string) error {
	files, err := filepath.Glob(filepath.Join(root, "config", "rbac", "*", "role.yaml"))
	if err != nil || len(files) == 0 {
		return errors.Join(fmt.Errorf("there are no roles in %s/config/rbac: is the checkout complete?", root), err)
	}
	for _, file := range files {
		roles, err := ReadObjects(file)
		if err != nil {
			return err
		}
		for _, role := range roles {
			if err := errors.Join(apply(ctx, c, role), bind(ctx, c, role.GetName(), user)); err != nil {
				return err
			}
		}
	}
	return nil
}

func apply(ctx context.Context, c client.Client, object *unstructured.Unstructured) error {
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("usher-checkout"), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

func bind(ctx context.Context, c client.Client, role, user string) error {
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user + "-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if err := client.IgnoreAlreadyExists(c.Create(ctx, binding)); err != nil {
		return fmt.Errorf("bind role %s to user %s: %w", role, user, err)
	}
	return nil
}

// ReadObjects reads the objects of a YAML file.
func ReadObjects(name string) ([]*unstructured.Unstructured, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // It was only read.
	objects, err := ParseObjects(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return objects, nil
}

// ParseObjects reads the objects of YAML documents.
func ParseObjects(text io.Reader) (objects []*unstructured.Unstructured, err error) {
	decoder := yaml.NewYAMLOrJSONDecoder(text, 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		switch {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, err
		case len(object.Object) > 0: // otherwise it is a document of comments only
			objects = append(objects, object)
		}
	}
}

const (
	// GuardName is the name of the guard's webhook configuration, Service and Secret.
	GuardName = "usher-guard"
	// CertificateUser is the user that makes the guard's certificate.
	CertificateUser = "usher-certificate"

	guardNamespace = "usher-system"
	guardService   = "--guard-service=" + guardNamespace + "/" + GuardName
	loopback       = "127.0.0.1"
	// trustTime bounds the wait for the guard's certificate.
	trustTime = 2 * time.Minute
)

// CertificateArgs returns the arguments with which Usher makes the guard's certificate.
func CertificateArgs() []string { return []string{"--controllers=certificate", guardService} }

// InstallGuard creates what the chart of the checkout at root makes for the guard, with its rights for
// a user, and for CertificateUser those to make its certificate. API servers call the guard at a port
// of this machine: no Service leads to Pods here. It returns the arguments with which Usher serves the
// guard there.
func InstallGuard(ctx context.Context, c client.Client, root, user string, port int) (args []string, err error) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: guardNamespace}}
	if err := c.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create namespace %s: %w", guardNamespace, err)
	}
	objects, err := ReadObjects(filepath.Join(root, "tools", "chart", "testdata", "golden", "guard.yaml"))
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		holder := user
		if strings.HasPrefix(object.GetName(), CertificateUser) {
			holder = CertificateUser
		} else if !strings.HasPrefix(object.GetName(), GuardName) {
			continue
		}
		if !placeGuard(object, holder, port) {
			continue
		}
		if err := apply(ctx, c, object); err != nil {
			return nil, err
		}
	}
	return []string{
		"--controllers=cloneset,registration,guard", "--finish-deletions",
		guardService, fmt.Sprintf("--guard-port=%d", port),
	}, nil
}

// placeGuard makes an object of the chart fit a guard that is a process of this machine. It
// reports whether that needs the object.
func placeGuard(object *unstructured.Unstructured, user string, port int) bool {
	switch object.GetKind() {
	case "Secret", "Role", "ClusterRole":
	case "RoleBinding", "ClusterRoleBinding":
		object.Object["subjects"] = []any{map[string]any{"apiGroup": rbacv1.GroupName, "kind": rbacv1.UserKind, "name": user}}
	case "Service", "ValidatingWebhookConfiguration":
		PlaceGuard(object, port)
	default:
		return false
	}
	return true
}

// PlaceGuard makes API servers call the guard at a port of this machine, if the object is the guard's
// Service or its configuration.
func PlaceGuard(object *unstructured.Unstructured, port int) {
	switch object.GetKind() + " " + object.GetName() {
	case "Service " + GuardName:
		object.Object["spec"] = map[string]any{"type": string(corev1.ServiceTypeExternalName), "externalName": loopback}
	case "ValidatingWebhookConfiguration " + GuardName:
		for _, webhook := range object.Object["webhooks"].([]any) {
			service := webhook.(map[string]any)["clientConfig"].(map[string]any)["service"].(map[string]any)
			service["port"] = int64(port)
		}
	}
}

// AwaitGuard waits until CertificateUser has made API servers trust the guard and know its path, and
// returns the webhook configuration.
func AwaitGuard(ctx context.Context, c client.Client) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, trustTime, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKey{Name: GuardName}, configuration)
		if err != nil {
			return false, err
		}
		call := configuration.Webhooks[0].ClientConfig
		return len(call.CABundle) > 0 && call.Service.Path != nil, nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("wait for the certificate of the guard: %w", err), context.Cause(ctx))
	}
	return configuration, nil
}

// AskPatiently makes API servers wait for the guard's answer for the longest possible time, 30 s. With
// the chart's 3 s, deletions pass unguarded on a machine with busy processors, such as that of tests.
func AskPatiently(ctx context.Context, c client.Client) error {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := c.Get(ctx, client.ObjectKey{Name: GuardName}, configuration); err != nil {
		return fmt.Errorf("read the guard's configuration: %w", err)
	}
	for i := range configuration.Webhooks {
		configuration.Webhooks[i].TimeoutSeconds = new(int32(30))
	}
	if err := c.Update(ctx, configuration); err != nil {
		return fmt.Errorf("give the guard time to answer: %w", err)
	}
	return nil
}

// RemoveGuard removes the webhook, as guard.enabled=false does.
func RemoveGuard(ctx context.Context, c client.Client) error {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: GuardName}}
	if err := c.Delete(ctx, configuration); err != nil {
		return fmt.Errorf("remove the guard: %w", err)
	}
	return nil
}
