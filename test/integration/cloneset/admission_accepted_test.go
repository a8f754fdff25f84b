// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// storage requests one of the volumes that withVolumes offers.
const storage = `{storageClassName: "", accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, selector: {matchLabels: {story: admission}}}`

// accepted is what Usher accepts.
var accepted = []manifest{
	{name: "what is required alone", openkruise: accepts},
	{name: "no replicas", openkruise: accepts, edits: []any{"spec.replicas", null}},
	{name: "no strategy", openkruise: accepts, edits: []any{"spec.updateStrategy", null}},
	{name: "no counts", openkruise: accepts, edits: []any{"spec.updateStrategy", of(`{maxUnavailable: null, maxSurge: null, partition: null, type: ReCreate}`)}},
	{name: "nulls in the template", openkruise: unasked, edits: []any{
		"spec.template.spec.volumes", null, "spec.template.spec.initContainers", null, "spec.template.spec.hostNetwork", null}},
	{name: "a status", openkruise: accepts, edits: []any{
		"status", of(`{replicas: 0, readyReplicas: 0, availableReplicas: 0, updatedReplicas: 0, updatedReadyReplicas: 0}`)}},
	{name: "a name with dots", openkruise: accepts, edits: []any{"metadata.name", "a.b.c"}},
	{name: "a name of 60 characters", openkruise: accepts, goal: refusedByTheServer("must be no more than 63 "), edits: []any{"metadata.name", strings.Repeat("a", 60)}},

	{name: "many labels", openkruise: accepts, edits: []any{"spec.selector.matchLabels", manyLabels(70), "spec.template.metadata.labels", manyLabels(70)}},
	{name: "no labels in the selector", openkruise: accepts, edits: []any{
		"spec.selector", of(`{matchLabels: null, matchExpressions: [{key: app, operator: Exists}]}`)}},
	{name: "a selector by In", openkruise: accepts, edits: []any{"spec.selector", of(`{matchExpressions: [{key: app, operator: In, values: [web, other]}]}`)}},
	{name: "a selector by NotIn", openkruise: accepts, edits: []any{
		"spec.selector", of(`{matchExpressions: [{key: app, operator: NotIn, values: [z]}, {key: app, operator: Exists}]}`)}},
	{name: "a selector by DoesNotExist", openkruise: accepts, edits: []any{"spec.selector.matchExpressions", of(`[{key: example.com/x, operator: DoesNotExist}]`)}},
	{name: "many expressions", openkruise: accepts, edits: []any{"spec.selector.matchExpressions", many(100, "{key: $, operator: DoesNotExist}")}},
	{name: "many values", openkruise: accepts, edits: []any{
		"spec.selector.matchExpressions", []any{map[string]any{"key": "app", "operator": "NotIn", "values": many(81, "$")}}}},

	{name: "ports with hostNetwork", openkruise: accepts, goal: settledAt(3), edits: []any{"spec.template.spec.hostNetwork", true,
		"spec.template.spec.containers", of(`[{name: main, image: "example.test/web:v1", ports: [{containerPort: 8080}, {containerPort: 8081, hostPort: 8081}]}]`)}},
	{name: "a port of the node that is not the container's", openkruise: accepts, goal: settledAt(3), edits: []any{
		"spec.template.spec.containers", of(`[{name: main, image: "example.test/web:v1", ports: [{containerPort: 80, hostPort: 8082}]}]`)}},
	{name: "serviceAccount", openkruise: accepts, edits: []any{"spec.template.spec.serviceAccount", "default"}},
	{name: "metadata of a Pod", openkruise: accepts, goal: settledAt(3), edits: []any{"spec.template.metadata", map[string]any{
		"labels": of(`{app: web}`), "annotations": map[string]any{"a": strings.Repeat("b", 2000)}, "creationTimestamp": nil,
		"namespace": "other", "name": "foo", "finalizers": of(`[a.b/c]`)}}},
	{name: "volumes that are mounted", openkruise: accepts, edits: []any{"spec.template.spec.volumes", of(`[{name: data, emptyDir: {}}]`),
		"spec.template.spec.containers", of(mountsData), "spec.template.spec.initContainers",
		of(`[{name: first, image: "example.test/web:v1", volumeMounts: [{name: data, mountPath: /data}]}]`)}},

	{name: "claims", openkruise: accepts, goal: withVolumes(3), edits: []any{"spec.volumeClaimTemplates", of(`[{metadata: {name: data}, spec: ` + storage + `}]`)}},
	{name: "claims that are mounted", openkruise: accepts, goal: withVolumes(3), edits: []any{"spec.template.spec.containers", of(mountsData),
		"spec.volumeClaimTemplates", of(`[{metadata: {name: data}, spec: ` + storage + `}]`)}},
	{name: "many claims", openkruise: accepts, goal: withVolumes(70), edits: []any{"spec.replicas", 1,
		"spec.volumeClaimTemplates", many(70, `{metadata: {name: $}, spec: `+storage+`}`)}},

	{name: "a type that is empty", openkruise: accepts, edits: []any{"spec.updateStrategy.type", ""}},
	{name: "OnDelete", openkruise: refuses, why: "it works, as in v1beta1", goal: settledAt(3), edits: []any{"spec.updateStrategy.type", "OnDelete"}},
	{name: "a partition beyond replicas", openkruise: accepts, goal: heldBack, edits: []any{"spec.updateStrategy.partition", 10}},
	{name: "a partition of 150 %", openkruise: accepts, goal: heldBack, edits: []any{"spec.updateStrategy.partition", "150%"}},
	{name: "a partition of 10,000 %", openkruise: accepts, goal: heldBack, edits: []any{"spec.updateStrategy.partition", "10000%"}},
	{name: "a budget of 10,000 %", openkruise: accepts, edits: []any{"spec.updateStrategy.maxUnavailable", "10000%"}},
	{name: "a budget that is rounded up", openkruise: accepts, edits: []any{"spec.updateStrategy", of(`{maxUnavailable: 1%, maxSurge: 0}`)}},
	{name: "a surge alone", openkruise: accepts, edits: []any{"spec.updateStrategy", of(`{maxUnavailable: 0%, maxSurge: 1}`)}},
	{name: "nothing may move of nothing", openkruise: accepts, goal: settledAt(0), edits: []any{
		"spec.replicas", 0, "spec.updateStrategy", of(`{maxUnavailable: 0, maxSurge: 0}`)}},
	{name: "a surge in place alone, of nothing", openkruise: accepts, goal: settledAt(0), edits: []any{
		"spec.replicas", 0, "spec.updateStrategy", of(`{type: InPlaceOnly, maxSurge: 1}`)}},
	{name: "a scale-out without room", openkruise: accepts, goal: limited, edits: []any{"spec.scaleStrategy.maxUnavailable", 0}},
	{name: "no deadline", openkruise: accepts, edits: []any{"spec.progressDeadlineSeconds", 2147483647}},
	{name: "no deadline, and never available", openkruise: accepts, goal: ready, edits: []any{
		"spec.progressDeadlineSeconds", 2147483647, "spec.minReadySeconds", 2147483647}},

	{name: "a weight of 0", openkruise: accepts, edits: []any{
		"spec.updateStrategy.priorityStrategy.weightPriority", of(`[{weight: 0, matchSelector: {matchLabels: {a: b}}}]`)}},
	{name: "a weight of 100", openkruise: accepts, edits: []any{
		"spec.updateStrategy.priorityStrategy.weightPriority", of(`[{weight: 100, matchSelector: {matchLabels: {a: b}}}]`)}},
	{name: "many weights", openkruise: accepts, edits: []any{
		"spec.updateStrategy.priorityStrategy.weightPriority", many(100, "{weight: 1, matchSelector: {matchLabels: {a: $}}}")}},
	{name: "many keys of an order", openkruise: accepts, edits: []any{"spec.updateStrategy.priorityStrategy.orderPriority", many(100, "{orderedKey: $}")}},
	{name: "scattering", openkruise: accepts, edits: []any{"spec.updateStrategy.scatterStrategy", of(`[{key: a, value: b}, {key: a, value: c}]`)}},
	{name: "scattering by a label without a value", openkruise: accepts, edits: []any{"spec.updateStrategy.scatterStrategy", of(`[{key: a, value: ""}]`)}},
	{name: "many labels to scatter by", openkruise: accepts, edits: []any{"spec.updateStrategy.scatterStrategy", many(100, "{key: a, value: $}")}},

	{name: "a hook by label", openkruise: accepts, edits: []any{"spec.lifecycle", of(`{preDelete: {labelsHandler: {a: "true"}}}`)}},
	{name: "a hook by a label without a value", openkruise: accepts, edits: []any{"spec.lifecycle", of(`{inPlaceUpdate: {labelsHandler: {a: ""}}}`)}},
	{name: "a hook by a finalizer without a domain", openkruise: accepts, edits: []any{"spec.lifecycle", of(`{preDelete: {finalizersHandler: [slow-rollout]}}`)}},
	{name: "a hook by label and finalizer", openkruise: accepts, edits: []any{
		"spec.lifecycle", of(`{preDelete: {labelsHandler: {a: "true"}, finalizersHandler: [a.b/c]}}`)}},
	{name: "a finalizer that a hook lists twice", openkruise: accepts, goal: heldTwice, edits: []any{
		"spec.replicas", 1, "spec.updateStrategy.type", "InPlaceIfPossible", "spec.template.metadata.finalizers", of("[a.b/c]"),
		"spec.lifecycle", of(`{inPlaceUpdate: {finalizersHandler: [a.b/c, a.b/c]}}`)}},

	{name: "a field of newer Pods", openkruise: unasked, goal: refusedByTheServer("unknown field"), edits: []any{"spec.template.spec.fieldOfTheFuture", "x"}},
	{name: "a template that the API server refuses", openkruise: refuses, goal: refusedByTheServer("must be unique"),
		why: "a dry run finds it before any Pod is touched; FailedScale and FailedUpdate say what is wrong", edits: []any{
			"spec.template.spec.volumes", of(`[{name: data, emptyDir: {}}]`), "spec.template.spec.containers",
			of(`[{name: main, image: a, volumeMounts: [{name: data, mountPath: /data}, {name: data, mountPath: /data}]}]`)}},
}

// rolledOut: all Pods are created, and an update reaches all of them.
func rolledOut(s *story) {
	s.settled(s.replicas())
	s.newImage()
	s.settled(s.replicas())
}

// newImage changes only the image of the first container.
func (s *story) newImage() {
	s.Helper()
	patch := []byte(`[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "example.test/web:v2"}]`)
	if err := s.client.Patch(s.Context(), s.set(), client.RawPatch(types.JSONPatchType, patch)); err != nil {
		s.Fatal(err)
	}
}

// settledAt: that many Pods are created.
func settledAt(replicas int32) func(*story) { return func(s *story) { s.settled(replicas) } }

// withVolumes is rolledOut with storage for the claims, including those of an update.
func withVolumes(count int) func(*story) {
	return func(s *story) {
		s.offerVolumes(2*count, "admission")
		rolledOut(s)
	}
}

// heldBack: a partition holds the whole update.
func heldBack(s *story) {
	s.settled(3)
	s.newImage()
	s.until("the update to be seen", func() bool {
		set := s.set()
		return set.Status.ObservedGeneration == set.Generation && set.Status.CurrentRevision != set.Status.UpdateRevision
	})
	if status := s.set().Status; status.UpdatedReplicas != 0 || status.ExpectedUpdatedReplicas != 0 || status.AvailableReplicas != 3 {
		s.Errorf("updated %d, expected %d, available %d", status.UpdatedReplicas, status.ExpectedUpdatedReplicas, status.AvailableReplicas)
	}
}

// limited: no Pod may be added, and an event reports it.
func limited(s *story) {
	s.event("ScaleUpLimited")
	if len(s.pods()) > 0 {
		s.Errorf("there are Pods: %s", s.picture())
	}
}

// ready: all Pods are ready, and none is available.
func ready(s *story) {
	s.until("three ready Pods", func() bool { return s.set().Status.ReadyReplicas == 3 })
	if status := s.set().Status; status.AvailableReplicas != 0 {
		s.Errorf("%d Pods are available at once", status.AvailableReplicas)
	}
}

// heldTwice: the finalizer is on the Pod once, and holds it at both gates.
func heldTwice(s *story) {
	s.settled(1)
	s.newImage()
	for _, want := range []struct {
		state      apps.LifecycleState
		finalizers []string
	}{{apps.StatePreparingUpdate, nil}, {apps.StateUpdated, []string{"a.b/c"}}} {
		pod := s.one(want.state)
		s.until("the finalizer to be told of once", func() bool {
			message := s.condition(apps.ConditionBlocked).Message
			return strings.Contains(message, pod.Name) && strings.Count(message, "a.b/c") == 1
		})
		s.withFinalizers(want.finalizers...)
	}
	s.settled(1)
	if pod := s.pods()[0]; !slices.Equal(pod.Finalizers, []string{"a.b/c"}) {
		s.Errorf("finalizers %v", pod.Finalizers)
	}
}

// refusedByTheServer: no Pod is created, and the condition quotes the server's answer.
func refusedByTheServer(answer string) func(*story) {
	return func(s *story) {
		s.until(fmt.Sprintf("a condition that says %q", answer), func() bool {
			return slices.ContainsFunc(s.set().Status.Conditions, func(c apps.CloneSetCondition) bool {
				return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, answer)
			})
		})
		if len(s.pods()) > 0 {
			s.Errorf("there are Pods: %s", s.picture())
		}
	}
}
