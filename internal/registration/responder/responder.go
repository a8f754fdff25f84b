// SPDX-License-Identifier: Apache-2.0

// Package responder reads and answers Evictions of lifecycle.k8s.io, Kubernetes' own requests to evict Pods
// (docs/design/0005-eviction-requests.md). It is a package of its own because the right to do so is a role of its own.
package responder

import (
	"context"
	"fmt"
	"slices"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// +kubebuilder:rbac:groups=lifecycle.k8s.io,resources=evictions,verbs=list;watch
// +kubebuilder:rbac:groups=lifecycle.k8s.io,resources=evictions/status,verbs=patch

// Resource is what the API server has to serve.
var Resource = lifecyclev1alpha1.SchemeGroupVersion.WithResource("evictions")

// fieldManager owns what Usher says of evictions.
const fieldManager = "usher-responder"

// Selector selects the evictions that name Usher: Kubernetes' controller labels them so.
func Selector() labels.Selector {
	roles := []string{
		string(lifecyclev1alpha1.EvictionParticipantRoleResponder),
		string(lifecyclev1alpha1.EvictionParticipantRoleRequesterResponder),
	}
	named, err := labels.NewRequirement(usherv1alpha1.EvictionResponder, selection.In, roles)
	if err != nil {
		panic(fmt.Errorf("select evictions: %w", err)) // all of it is constant
	}
	return labels.NewSelector().Add(*named)
}

// Strip leaves of an Eviction what Read reads, for a cache.
func Strip(object any) (any, error) {
	if full, ok := object.(*lifecyclev1alpha1.Eviction); ok {
		full.ManagedFields, full.Annotations, full.OwnerReferences, full.Labels = nil, nil, nil, nil
	}
	return object, nil
}

// Read is what plans read of an Eviction. One that Kubernetes' controller has not seen yet names nobody.
func Read(object *lifecyclev1alpha1.Eviction) plan.Eviction {
	status := &object.Status
	e := plan.Eviction{
		Name: object.Name, UID: object.UID, Turn: turnIn(status), Requesters: requestersIn(status),
		Over: isTrue(status, lifecyclev1alpha1.EvictionConditionFailed) ||
			isTrue(status, lifecyclev1alpha1.EvictionConditionTargetEvicted),
	}
	if target := object.Spec.Target.Pod; target != nil {
		e.Pod, e.PodUID = target.Name, target.UID
	}
	for i := range status.Responders {
		if r := &status.Responders[i]; r.Name == usherv1alpha1.EvictionResponder {
			e.Started = timeOf(r.StartTime)
			e.Response = plan.Response{
				Heartbeat: timeOf(r.HeartbeatTime), Expected: timeOf(r.ExpectedCompletionTime), Completed: timeOf(r.CompletionTime),
			}
			if r.Message != nil {
				e.Message = *r.Message
			}
		}
	}
	return e
}

func isTrue(status *lifecyclev1alpha1.EvictionStatus, kind lifecyclev1alpha1.EvictionConditionType) bool {
	return meta.IsStatusConditionTrue(status.Conditions, string(kind))
}

func turnIn(status *lifecyclev1alpha1.EvictionStatus) plan.Turn {
	for _, r := range status.TargetResponders {
		if r.Name == usherv1alpha1.EvictionResponder {
			return plan.Turn(r.State)
		}
	}
	return plan.TurnNone
}

// requestersIn are those who still want the Pod to go, sorted.
func requestersIn(status *lifecyclev1alpha1.EvictionStatus) []string {
	want := list.Only(status.Requesters, func(r lifecyclev1alpha1.Requester) bool {
		return r.Intent == lifecyclev1alpha1.RequesterIntentEviction
	})
	return slices.Sorted(slices.Values(list.Map(want, func(r lifecyclev1alpha1.Requester) string { return r.Name })))
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// status is what Usher applies of an Eviction: its own entry among those of the responders.
type status struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Status     struct {
		Responders []entry `json:"responders"`
	} `json:"status"`
}

type metadata struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

type entry struct {
	Name                   string       `json:"name"`
	HeartbeatTime          metav1.Time  `json:"heartbeatTime"`
	ExpectedCompletionTime *metav1.Time `json:"expectedCompletionTime,omitempty"`
	CompletionTime         *metav1.Time `json:"completionTime,omitempty"`
	Message                string       `json:"message"`
}

// Write says it. The API server's errors are returned: one that is invalid is of an eviction that has gone on.
func Write(ctx context.Context, c client.Client, namespace string, r plan.Responding) error {
	object := &lifecyclev1alpha1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: r.Eviction.Name}}
	return c.Status().Patch(ctx, object, client.RawPatch(types.ApplyPatchType, encodeResponse(namespace, r)),
		client.ForceOwnership, client.FieldOwner(fieldManager))
}

// encodeResponse is the patch. It has the UID, so that it is of no other Eviction of that name.
func encodeResponse(namespace string, r plan.Responding) []byte {
	applied := status{
		APIVersion: lifecyclev1alpha1.SchemeGroupVersion.String(), Kind: "Eviction",
		Metadata: metadata{namespace, r.Eviction.Name, r.Eviction.UID},
	}
	applied.Status.Responders = []entry{{
		Name: usherv1alpha1.EvictionResponder, HeartbeatTime: metav1.NewTime(r.Heartbeat), Message: r.Message,
		ExpectedCompletionTime: optional(r.Expected), CompletionTime: optional(r.Completed),
	}}
	return encode.JSON(applied)
}

func optional(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return new(metav1.NewTime(t))
}
