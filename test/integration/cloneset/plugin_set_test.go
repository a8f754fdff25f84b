// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/stage"
)

// The API server refuses two kinds of request, as for any custom resource: a strategic
// merge patch, after which clients send a merge patch, and the update of an object that
// somebody changed meanwhile.
func TestPluginRequestsThatAreRefused(t *testing.T) {
	s := withoutController(t)
	s.Make(s.Prop("tooled"))
	stale := s.raw()
	patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"example.test/web:v2"}]}}}}`))
	if err := s.Patch(t.Context(), s.key(), patch); !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("strategic merge patch: %v", err)
	}
	s.setImage("web:v2")
	if err := s.Update(t.Context(), stale); !apierrors.IsConflict(err) {
		t.Errorf("update of an old version: %v", err)
	}
}

// scale reads the scale of a workload.
func (s *story) scale(workload client.Object) *autoscalingv1.Scale {
	scale := &autoscalingv1.Scale{}
	s.Must(s.SubResource("scale").Get(s.Context(), workload, scale))
	return scale
}

// scaleTo is `scale --replicas`: the subresource is read and written back.
func (s *story) scaleTo(workload client.Object, replicas int32) {
	s.Must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		scale := s.scale(workload)
		scale.Spec.Replicas = replicas
		return s.SubResource("scale").Update(s.Context(), workload, client.WithSubResourceBody(scale))
	}))
}

// `scale` patches the subresource. Or it reads the subresource and writes it back, as an
// autoscaler does; then somebody else's write in between is a conflict.
func TestScaleSubresource(t *testing.T) {
	s := running(t, "tooled")
	stale := s.scale(s.set())
	if stale.Spec.Replicas != 3 || stale.Status.Replicas != 3 || stale.Status.Selector != "app=web" {
		t.Errorf("scale %+v %+v", stale.Spec, stale.Status)
	}
	s.Must(s.SubResource("scale").Patch(t.Context(), s.set(), s.MergePatch("spec: {replicas: 5}"), client.WithSubResourceBody(&autoscalingv1.Scale{})))
	s.settled(5)
	stale.Spec.Replicas = 1
	if err := s.SubResource("scale").Update(t.Context(), s.set(), client.WithSubResourceBody(stale)); !apierrors.IsConflict(err) {
		t.Errorf("with the version before: %v", err)
	}
	s.scaleTo(s.set(), 4)
	s.settled(4)
	if now := s.scale(s.set()); now.Status.Replicas != 4 || now.Status.Selector != "app=web" || s.restarts() != "0+0 0+0 0+0 0+0" {
		t.Errorf("scale %+v, restarts %s", now.Status, s.restarts())
	}
}

// deployment reads the Deployment.
func (s *story) deployment() *appsv1.Deployment {
	s.Helper()
	out := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "former"}}
	s.Read(out)
	return out
}

// migrate is `migrate CloneSet --from Deployment --create`: a CloneSet from the
// Deployment's template, including the nulls and defaults that the Deployment has by
// now.
func (s *story) migrate(replicas string) {
	fields := checktest.Must(runtime.DefaultUnstructuredConverter.ToUnstructured(s.deployment()))(s)
	from := fields["spec"].(map[string]any)
	spec := map[string]any{"replicas": int64(scenariotest.Number(replicas))}
	for _, key := range []string{"selector", "template", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"} {
		if value, ok := from[key]; ok {
			spec[key] = value
		}
	}
	set := s.Ref("CloneSet/web")
	set.SetLabels(map[string]string{"team": "shop"})
	set.Object["spec"] = spec
	s.Make(set)
}

// moved is "2 and 4": it waits until the set and the Deployment own these numbers of Pods, all
// available. Meanwhile there are never fewer ready Pods than the Deployment had.
func (s *story) moved(rest string) {
	first, second, _ := strings.Cut(rest, " and ")
	ours, others := int32(scenariotest.Number(first)), int32(scenariotest.Number(second))
	s.untilStatus(fmt.Sprintf("%d Pods of the set and %d of the Deployment", ours, others), func(status *apps.CloneSetStatus) bool {
		set, deployment := s.set(), s.deployment()
		mine, ready := int32(0), 0
		pods := s.pods()
		for _, pod := range pods {
			if metav1.IsControlledBy(&pod, set) {
				mine++
			}
			if stage.Ready(&pod) {
				ready++
			}
		}
		if ready < 4 {
			s.Fatalf("%d Pods are ready\n%s", ready, s.Picture())
		}
		return status.AvailableReplicas == ours && mine == ours &&
			deployment.Status.AvailableReplicas == others && len(pods) == int(ours+others)
	})
}
