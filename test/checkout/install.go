// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	fieldManager = "usher-checkout"
	pollEvery    = 100 * time.Millisecond
	// establishTime bounds the wait for an installed API.
	establishTime = 30 * time.Second
)

// Install installs the CRDs of the checkout at root, waits until their objects can be
// created, and grants only the cluster roles of config/rbac to a user.
func Install(ctx context.Context, c client.Client, root, user string) error {
	crds, err := readFolder(filepath.Join(root, "config", "crd"), "CustomResourceDefinition")
	if err != nil {
		return err
	}
	roles, err := readFolder(filepath.Join(root, "config", "rbac"), "ClusterRole")
	if err != nil {
		return err
	}
	for _, object := range append(crds, roles...) {
		if err := apply(ctx, c, object); err != nil {
			return err
		}
	}
	for _, role := range roles {
		if err := bind(ctx, c, role.GetName(), user); err != nil {
			return err
		}
	}
	for _, crd := range crds {
		if err := awaitEstablished(ctx, c, crd); err != nil {
			return err
		}
	}
	return nil
}

func apply(ctx context.Context, c client.Client, object *unstructured.Unstructured) error {
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(fieldManager), client.ForceOwnership)
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
	if err := c.Create(ctx, binding); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("bind role %s to user %s: %w", role, user, err)
	}
	return nil
}

func awaitEstablished(ctx context.Context, c client.Client, crd *unstructured.Unstructured) error {
	err := wait.PollUntilContextTimeout(ctx, pollEvery, establishTime, true, func(ctx context.Context) (bool, error) {
		return established(ctx, c, crd)
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("wait for the API of %s: %w", crd.GetName(), err)
	}
	return nil
}

func established(ctx context.Context, c client.Client, crd *unstructured.Unstructured) (bool, error) {
	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(crd.GroupVersionKind())
	if err := c.Get(ctx, client.ObjectKeyFromObject(crd), now); err != nil {
		return false, err
	}
	// At first they are null, which is not an error here.
	conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
	for _, item := range conditions {
		if condition, ok := item.(map[string]any); ok && condition["type"] == "Established" {
			return condition["status"] == "True", nil
		}
	}
	return false, nil
}

// readFolder reads all objects of a kind from the YAML files below a directory.
func readFolder(folder, kind string) ([]*unstructured.Unstructured, error) {
	found := []*unstructured.Unstructured{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		objects, err := readFile(path)
		for _, object := range objects {
			if object.GetKind() == kind {
				found = append(found, object)
			}
		}
		return err
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("there is no %s in %s", kind, folder)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: is the checkout complete?", err)
	}
	return found, nil
}

func readFile(name string) ([]*unstructured.Unstructured, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	objects, err := ReadObjects(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return objects, nil
}

// ReadObjects reads the objects of a YAML stream.
func ReadObjects(r io.Reader) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(r, 4096)
	objects := []*unstructured.Unstructured{}
	for {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
			continue // a document of comments only
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw); err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
}
