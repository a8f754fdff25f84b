// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// newServices registers the Pods with app=nginx in the Service web of the story's
// namespace.
func (e *env) newServices() {
	e.Helper()
	r := e.registryOf("services-", "endpointSlice: {}")
	e.register(r.Name, "spec: {instance: {service: web, weight: 7}}")
}

// unchanged checks for two seconds that the Service web has one slice of this version.
func (k *kube) unchanged(version string) {
	k.Helper()
	k.Stays("the only slice", 2*time.Second, func() string {
		now := k.slices()
		return registrytest.Unless(len(now) == 1 && now[0].ResourceVersion == version, fmt.Sprintf("has changed: %+v", now))
	})
}

// managers waits until the Service web has slices of exactly these managers.
func (k *kube) managers(want ...string) {
	k.Helper()
	k.Until("slices of "+fmt.Sprint(want), func() string {
		var have []string
		for _, s := range k.slices() {
			if len(s.Endpoints) > 0 {
				have = append(have, s.Labels[discoveryv1.LabelManagedBy])
			}
		}
		slices.Sort(have)
		return registrytest.Unless(slices.Equal(have, want), fmt.Sprintf("are those of %v", have))
	})
}

// bind assigns a Pod to a node: Kubernetes leaves Pods without a node out of slices.
func (e *env) bind(name string) {
	e.Helper()
	node := e.Object("{apiVersion: v1, kind: Node, metadata: {generateName: node-}}")
	e.Make(node)
	e.Cleanup(func() { _ = e.Delete(context.Background(), node) })
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node.GetName()}}
	e.Must(e.SubResource("binding").Create(e.Context(), e.Pod(name), binding))
}

// TestStoryServiceMoves takes over a Service from Kubernetes' own controllers, which
// run too: its Pod is listed all the time, and in the end only by Usher.
func TestStoryServiceMoves(t *testing.T) {
	const theirs, mirror = "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"
	e := newEnv(t)
	set := e.cloneSet("lifecycle.yaml")
	service := e.Object(`{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: None, selector: {app: nginx}, ports: [{port: 80}]}}`)
	e.Make(service)
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal)
	e.bind(name)
	e.kubelet(name, "10.0.0.1", true)
	k := &kube{Scene: e.Scene}
	k.managers(theirs)
	e.newServices()
	e.hasLabel(name, keyCreated, "false")
	k.managers(theirs, "usher.dev")

	e.Change(service, "spec: {selector: null}")
	k.managers(theirs, mirror, "usher.dev")
	e.Must(e.DeleteAllOf(t.Context(), &discoveryv1.EndpointSlice{}, client.InNamespace(e.Namespace),
		client.MatchingLabels{discoveryv1.LabelManagedBy: theirs}))
	e.remove(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "web"}}) //nolint:staticcheck // Kubernetes still makes them.
	k.managers("usher.dev")
	k.unchanged(k.slices()[0].ResourceVersion)
	e.gate(name, appsv1alpha1.StatePreparingDelete, keyDelete, "false")
	k.managers()
}
