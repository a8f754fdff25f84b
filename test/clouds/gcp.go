// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest/neg"
)

// NEG is a Balancer of Google Cloud. Each Service has a network endpoint group in one zone.
type NEG struct {
	Server *neg.Server
	Client client.Client
}

const zone = "europe-west1-b"

// Group is that of a Service. Stories have one Service in a namespace.
func (NEG) Group(service types.NamespacedName) string { return zone + "/" + service.Namespace }

// Announce implements Balancer. The group is noted in the annotation of the Service.
func (n NEG) Announce(ctx context.Context, service types.NamespacedName) error {
	n.Server.Add(n.Group(service))
	status := fmt.Sprintf(`{"network_endpoint_groups": {"80": %q}, "zones": [%q]}`, service.Namespace, zone)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{"cloud.google.com/neg-status": status}}})
	if err != nil {
		return err
	}
	object := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}}
	return client.IgnoreNotFound(n.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)))
}

// Targets implements Balancer.
func (n NEG) Targets(_ context.Context, service types.NamespacedName) (map[Target]State, error) {
	all := map[Target]State{}
	for _, e := range n.Server.Endpoints(n.Group(service)) {
		all[Target{e.Address, e.Port}] = State{Healthy: e.Health == neg.Healthy, Leaves: e.Health == neg.Draining}
	}
	return all, nil
}

// Register implements Balancer.
func (n NEG) Register(_ context.Context, service types.NamespacedName, t Target) error {
	n.Server.Attach(n.Group(service), t.Address, t.Port)
	return nil
}

// Deregister implements Balancer.
func (n NEG) Deregister(_ context.Context, service types.NamespacedName, t Target) error {
	n.Server.Detach(n.Group(service), t.Address)
	return nil
}
