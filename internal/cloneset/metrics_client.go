// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// countingClient counts a client's writes by verb and result. Dry runs are counted apart.
type countingClient struct {
	client.Client
	writes func() *prometheus.CounterVec
}

func (c *countingClient) count(verb string, err error) error {
	result := "ok"
	switch {
	case err == nil:
	case isConflict(err):
		result = "conflict"
	case apierrors.IsTooManyRequests(err):
		result = "wait"
	default:
		result = "error"
	}
	c.writes().WithLabelValues(verb, result).Inc()
	return err
}

// Create creates an object.
func (c *countingClient) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	verb, o := "create", client.CreateOptions{}
	if slices.Contains(o.ApplyOptions(options).DryRun, metav1.DryRunAll) {
		verb = "dry_run"
	}
	return c.count(verb, c.Client.Create(ctx, object, options...))
}

// Patch changes an object.
func (c *countingClient) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	return c.count("patch", c.Client.Patch(ctx, object, patch, options...))
}

// Delete deletes an object.
func (c *countingClient) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	return c.count("delete", c.Client.Delete(ctx, object, options...))
}

// Status writes the status of objects.
func (c *countingClient) Status() client.SubResourceWriter { return c.SubResource("status") }

// SubResource writes a subresource of objects.
func (c *countingClient) SubResource(name string) client.SubResourceClient {
	return &countingSubResource{SubResourceClient: c.Client.SubResource(name), verb: "patch_" + name, count: c.count}
}

type countingSubResource struct {
	client.SubResourceClient
	verb  string
	count func(verb string, err error) error
}

// Patch changes a subresource.
func (s *countingSubResource) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
	return s.count(s.verb, s.SubResourceClient.Patch(ctx, object, patch, options...))
}
