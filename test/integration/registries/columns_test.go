// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// columns returns what kubectl get -o wide prints for the only Registration, without its
// name, its age and what it waits for.
func (e *env) columns() map[string]string {
	e.Helper()
	kube, err := kubernetes.NewForConfig(shared.RESTConfig())
	e.must(err)
	data, err := kube.RESTClient().Get().
		AbsPath("/apis/usher.dev/v1alpha1/namespaces/"+e.namespace+"/registrations").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(e.Context())
	e.must(err)
	var table metav1.Table
	e.must(json.Unmarshal(data, &table))
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
	s := newStory(t, func(r *usherv1alpha1.RegistrationSpec) { r.Registries = append(r.Registries, "unknown") })
	s.ready("aaaaa", "10.0.0.1")
	want := map[string]string{
		"SERVICE": s.namespace, "PODS": "1", "REGISTERED": "0", "DRAINING": "0", "READY": "False",
		"REGISTRIES": `["` + s.registry.Name + `","unknown"]`,
		"MESSAGE":    `there is no Registry "unknown": create it, or take it out of spec.registries`,
	}
	s.eventually("the columns", func() string {
		have := s.columns()
		return registrytest.Unless(maps.Equal(have, want), fmt.Sprintf("are %v, want %v", have, want))
	})
}
