// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
)

// rights are what a responder needs; an empty subresource is the object itself.
var rights = []struct{ verb, subresource string }{{"list", ""}, {"watch", ""}, {"patch", "status"}}

// Served reports whether the API server serves evictions, and whether it lets this client read and answer them. Its
// answers hold until Usher starts again.
func Served(ctx context.Context, config *rest.Config) (served, allowed bool, err error) {
	asked, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return false, false, err
	}
	if served, err = discovery.IsResourceEnabled(asked, Resource); err != nil || !served {
		return false, false, err
	}
	reviewer, err := authorization.NewForConfig(config)
	if err != nil {
		return true, false, err
	}
	for _, right := range rights {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: right.verb, Group: Resource.Group, Resource: Resource.Resource, Subresource: right.subresource,
			},
		}}
		review, err := reviewer.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return true, false, fmt.Errorf("ask whether Usher may answer evictions: %w", err)
		}
		if !review.Status.Allowed {
			return true, false, nil
		}
	}
	return true, true, nil
}
