// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// columns are what kubectl get -o wide prints for the only Registration.
func (e *env) columns() map[string]string {
	e.Helper()
	kube, err := kubernetes.NewForConfig(shared.RESTConfig())
	if err != nil {
		e.Fatal(err)
	}
	data, err := kube.RESTClient().Get().
		AbsPath("/apis/usher.dev/v1alpha1/namespaces/"+e.namespace+"/registrations").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(e.Context())
	if err != nil {
		e.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(data, &table); err != nil {
		e.Fatal(err)
	}
	found := map[string]string{}
	for i, column := range table.ColumnDefinitions {
		if len(table.Rows) == 1 {
			found[column.Name] = fmt.Sprint(table.Rows[0].Cells[i])
		}
	}
	return found
}

// TestColumns prints a Registration with two registries, one of them unknown.
func TestColumns(t *testing.T) {
	e := newEnv(t)
	etcd := clustertest.StartEtcd(t)
	set := e.cloneSet(lifecycleDemo)
	known := e.newRegistry(etcd.Endpoint()).Name
	e.newRegistration(time.Second, seedHooks(), known, "unknown")
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, "10.0.0.1", true)
	want := []string{"SERVICE " + e.namespace, "PODS 1", "REGISTERED 0", "DRAINING 0", "READY False",
		`REGISTRIES ["` + known + `","unknown"]`, `MESSAGE there is no Registry "unknown": create it, or take it out of spec.registries`}
	e.eventually("the columns", func() string {
		have := e.columns()
		for _, one := range want {
			if !slices.ContainsFunc([]string{"SERVICE", "PODS", "REGISTERED", "DRAINING", "READY", "REGISTRIES", "MESSAGE"},
				func(column string) bool { return column+" "+have[column] == one }) {
				return fmt.Sprintf("are %v, without %s", have, one)
			}
		}
		return ""
	})
}
