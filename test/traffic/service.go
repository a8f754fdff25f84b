// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"net"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// Service is a Kubernetes Service as gateways, meshes and load balancers follow it: the ready
// endpoints of its EndpointSlices, at the first port of each slice.
type Service struct {
	Client    kubernetes.Interface
	Namespace string
	Name      string
}

// Follow implements Source with a watch.
func (s Service) Follow(ctx context.Context, tell func(addresses []string)) error {
	api := s.Client.DiscoveryV1().EndpointSlices(s.Namespace)
	options := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + s.Name}
	list, err := api.List(ctx, options)
	if err != nil {
		return fmt.Errorf("list the EndpointSlices of Service %s: %w", s.Name, err)
	}
	known := map[types.UID]*discoveryv1.EndpointSlice{}
	for i := range list.Items {
		known[list.Items[i].UID] = &list.Items[i]
	}
	tell(ready(known))
	options.ResourceVersion = list.ResourceVersion
	changes, err := api.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watch the EndpointSlices of Service %s: %w", s.Name, err)
	}
	defer changes.Stop()
	defer context.AfterFunc(ctx, changes.Stop)()
	for event := range changes.ResultChan() {
		slice, ok := event.Object.(*discoveryv1.EndpointSlice)
		switch {
		case !ok:
			return fmt.Errorf("watch the EndpointSlices of Service %s: %w", s.Name, apierrors.FromObject(event.Object))
		case event.Type == watch.Deleted:
			delete(known, slice.UID)
		default:
			known[slice.UID] = slice
		}
		tell(ready(known))
	}
	return ctx.Err()
}

// ready are the endpoints that callers use. Those that are serving and terminating are for
// callers whom nothing else is left, and no caller here goes that far.
func ready(slices map[types.UID]*discoveryv1.EndpointSlice) (addresses []string) {
	for _, slice := range slices {
		if len(slice.Ports) == 0 || slice.Ports[0].Port == nil {
			continue
		}
		port := strconv.Itoa(int(*slice.Ports[0].Port))
		for _, endpoint := range slice.Endpoints {
			if yes := endpoint.Conditions.Ready; yes == nil || *yes {
				addresses = append(addresses, net.JoinHostPort(endpoint.Addresses[0], port))
			}
		}
	}
	return addresses
}
