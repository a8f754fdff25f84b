// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// podsOf waits for the Pods that a Kubernetes controller creates.
func (e *env) podsOf(app string, want int) []corev1.Pod {
	e.Helper()
	var list corev1.PodList
	e.Until("the Pods of "+app, func() string {
		e.Must(e.List(e.Context(), &list, client.InNamespace(e.Namespace), client.MatchingLabels{"kind": app}))
		return registrytest.Unless(len(list.Items) == want, fmt.Sprintf("are %d, want %d", len(list.Items), want))
	})
	return list.Items
}

// TestStoryOtherOwners registers Pods of a Deployment, of a StatefulSet and without an
// owner, where no controller knows hooks: a deletion waits for the registry all the
// same.
func TestStoryOtherOwners(t *testing.T) {
	s := newStory(t, "spec: {hooks: null}")
	const pod = `metadata: {labels: {app: nginx, kind: %[1]s}}, spec: {containers: [{name: main, image: "nginx:latest"}]}`
	const owner = `{apiVersion: apps/v1, kind: %[2]s, metadata: {name: %[1]s}, spec: {selector: {matchLabels: {kind: %[1]s}}, template: {` + pod + `}}}`
	deployment := s.Object(fmt.Sprintf(owner, "deployment", "Deployment"))
	s.Make(deployment, s.Object(fmt.Sprintf(owner, "stateful", "StatefulSet")),
		s.Object(fmt.Sprintf("{apiVersion: v1, kind: Pod, "+pod+"}", "bare"), "metadata: {name: bare}"))
	for n, kind := range []string{"deployment", "stateful", "bare"} {
		pod := s.podsOf(kind, 1)[0]
		s.kubelet(pod.Name, fmt.Sprintf("10.0.0.%d", n+1))
		s.registered(pod.Name, metav1.ConditionTrue, "")
	}
	s.lists("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")

	// While the registry is down, a deleted Pod keeps its name.
	s.Must(s.etcd.Kill())
	old := s.podsOf("stateful", 1)[0]
	s.remove(&old)
	s.registered("stateful-0", "", "Waits at deletion for Registry discovery-")
	s.Must(s.etcd.Restart(s.Context()))
	s.Until("another stateful-0", func() string {
		var next corev1.Pod
		err := s.Get(s.Context(), client.ObjectKeyFromObject(&old), &next)
		return registrytest.Unless(err == nil && next.UID != old.UID, "does not exist")
	})
	s.lists("10.0.0.1:80", "10.0.0.3:80")
	s.kubelet("stateful-0", "10.0.0.4")
	s.lists("10.0.0.1:80", "10.0.0.3:80", "10.0.0.4:80")

	s.Must(s.Delete(s.Context(), deployment, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	s.delete("bare")
	s.lists("10.0.0.4:80")
	s.podsOf("deployment", 0)
}

// columns returns what kubectl get -o wide prints for the only Registration, without its
// name, its age and what it waits for.
func (e *env) columns() map[string]string {
	e.Helper()
	kube, err := kubernetes.NewForConfig(e.RESTConfig())
	e.Must(err)
	data, err := kube.RESTClient().Get().
		AbsPath("/apis/usher.dev/v1alpha1/namespaces/"+e.Namespace+"/registrations").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(e.Context())
	e.Must(err)
	var table metav1.Table
	e.Must(json.Unmarshal(data, &table))
	found := map[string]string{}
	for i, column := range table.ColumnDefinitions {
		if len(table.Rows) == 1 && !slices.Contains([]string{"Name", "AGE", "WAITING"}, column.Name) {
			found[column.Name] = fmt.Sprint(table.Rows[0].Cells[i])
		}
	}
	return found
}

// TestColumns prints a Registration with two registries, one of them unknown.
func TestColumns(t *testing.T) {
	s := newStory(t)
	s.Change(s.registration, "spec: {registries: [%s, unknown]}", s.registry.Name)
	s.ready("aaaaa", "10.0.0.1")
	want := map[string]string{
		"SERVICE": s.Namespace, "PODS": "1", "REGISTERED": "0", "DRAINING": "0", "READY": "False",
		"REGISTRIES": `["` + s.registry.Name + `","unknown"]`,
		"MESSAGE":    `there is no Registry "unknown": create it, or take it out of spec.registries`,
	}
	s.Until("the columns", func() string {
		have := s.columns()
		return registrytest.Unless(maps.Equal(have, want), fmt.Sprintf("are %v, want %v", have, want))
	})
}
