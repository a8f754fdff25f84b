// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/checkout"
)

// limitGuard waits until API servers trust the guard, and keeps it away from the stories that measure
// losses without it.
func (s *session) limitGuard(ctx context.Context) error {
	unguarded := list.Only(s.stories, func(story Story) bool { return story.Unguarded })
	excluded := metav1.LabelSelectorRequirement{
		Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn,
		Values: append(list.Map(unguarded, func(story Story) string { return story.Name }), metav1.NamespaceSystem),
	}
	configuration, err := checkout.AwaitGuard(ctx, s.Kube)
	if err != nil {
		return err
	}
	before := configuration.DeepCopy()
	for i := range configuration.Webhooks {
		configuration.Webhooks[i].NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{excluded}}
	}
	return s.Kube.Patch(ctx, configuration, client.MergeFrom(before))
}
