// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/origin"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// TestCopiedClusters: a cluster restored from a copy of another one has the same UID of kube-system, and takes the
// entries of Pods that it does not have for its own orphans, unless it has a name of its own, or notices that other API
// servers answer. In the first of these cases the Pod that is deleted here goes, because its entry is somebody else's;
// in the second one nothing is known of the registry, and it waits.
func TestCopiedClusters(t *testing.T) {
	for name, c := range map[string]struct {
		id                    string
		notices               bool
		keepsEntries, podGoes bool
	}{
		"as the original":        {"", false, false, true},
		"with a name of its own": {"copy", false, true, true},
		"other API servers":      {"", true, true, false},
		"both":                   {"copy", true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := attack(t, podOf("bad", "web", "web"))
			a.options.ClusterID = c.id
			if c.notices {
				a.known("10.0.0.1:6443")
				a.keepOrigin(a.keeper("10.9.0.1:6443"))
			}
			entry := registry.Entry{ID: "later", Address: "192.0.2.2", Port: 80, Weight: 1}
			entry.Owner = registry.Owner{Cluster: clusterNamespace, Namespace: namespace, Registration: "web", Pod: "later", PodUID: "later"}
			checktest.NoError(t, a.store.Apply(t.Context(), "web", []registry.Change{{Op: registry.Put, Entry: entry}}))
			for range 10 {
				_, _, err := a.pass()
				checktest.NoError(t, err)
			}
			for _, kept := range []string{"good", "later"} { // good goes here, and not in the original
				there := slices.ContainsFunc(a.store.Entries("web"), func(e registry.Entry) bool { return e.ID == kept })
				checktest.Same(t, "the original's entry "+kept+" is there", c.keepsEntries, there)
			}
			checktest.Same(t, "the Pod that is deleted here is gone", c.podGoes, a.goes())
		})
	}
}

// keeper notices copies, by the address of the API server that answers.
func (a *attacked) keeper(address string) *origin.Keeper {
	look := func(context.Context) (origin.Sight, error) { return origin.Sight{Servers: []string{address}}, nil }
	return origin.NewKeeper(a.client, a.client, namespace, a.keepClusterID, look, a.clock)
}

// known is the record of an original with this API server.
func (a *attacked) known(address string) {
	record := origin.Record{Cluster: clusterNamespace}
	record, _ = record.With(origin.Sight{Servers: []string{address}}, a.clock.Now())
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: origin.Name}, Data: record.Data()}
	checktest.NoError(a, a.client.Create(a.Context(), kept))
}

// TestCopySaysSo: the Registry, an event and the metric say why nothing is called, and what to do.
func TestCopySaysSo(t *testing.T) {
	a := attack(t, podOf("bad", "web", "web"))
	a.known("10.0.0.1:6443")
	a.keepOrigin(a.keeper("10.9.0.1:6443"))
	checktest.NoError(t, a.metrics.showCopies(a.scraped, a.origin.Copied))
	name := types.NamespacedName{Name: "discovery"}
	_, err := a.ReconcileRegistry(t.Context(), ctrl.Request{NamespacedName: name})
	checktest.NoError(t, err)
	var object usherv1alpha1.Registry
	checktest.NoError(t, a.client.Get(t.Context(), name, &object))
	checktest.Says(t, "the condition", object.Status.Conditions, "ClusterCopied", "10.9.0.1:6443", "--cluster-id", "delete that ConfigMap")
	select {
	case event := <-a.events.Events:
		checktest.Says(t, "the event", event, "Warning", "ClusterCopied", "10.0.0.1:6443")
	default:
		t.Error("there is no event")
	}
	families := checktest.Must(a.scraped.Gather())(t)
	at := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "usher_cluster_copied" })
	checktest.Same(t, "the metric", 1, families[at].GetMetric()[0].GetGauge().GetValue())
}

// TestInsideACopy: what is kept in the cluster itself is nobody else's, and goes on in a copy.
func TestInsideACopy(t *testing.T) {
	a := attack(t, podOf("bad", "web", "web"))
	a.known("10.0.0.1:6443")
	a.keepOrigin(a.keeper("10.9.0.1:6443"))
	for about, c := range map[string]struct {
		spec usherv1alpha1.RegistrySpec
		may  bool
	}{
		"webhook":       {usherv1alpha1.RegistrySpec{Webhook: &usherv1alpha1.WebhookRegistry{}}, false},
		"etcd":          {usherv1alpha1.RegistrySpec{Etcd: &usherv1alpha1.EtcdRegistry{}}, false},
		"service":       {usherv1alpha1.RegistrySpec{Service: &usherv1alpha1.ServiceRegistry{}}, true},
		"xds":           {usherv1alpha1.RegistrySpec{XDS: &usherv1alpha1.XDSRegistry{}}, true},
		"endpointSlice": {usherv1alpha1.RegistrySpec{EndpointSlice: &usherv1alpha1.EndpointSliceRegistry{}}, true},
	} {
		err := a.pool.MayCall(t.Context(), &usherv1alpha1.Registry{Spec: c.spec})
		checktest.Same(t, "it may be called: "+about, c.may, err == nil)
	}
}

// TestForgedCopy: a tenant claims to be another cluster, in a ConfigMap of the name that Usher's has, and with entries that
// have Usher's own mark. Usher believes neither, and goes on.
func TestForgedCopy(t *testing.T) {
	a := attack(t, podOf("bad", "web", "web"))
	a.known("10.9.0.1:6443") // in the tenant's namespace
	look := func(context.Context) (origin.Sight, error) {
		return origin.Sight{Servers: []string{"10.0.0.1:6443"}}, nil
	}
	a.keepOrigin(origin.NewKeeper(a.client, a.client, "usher-system", a.keepClusterID, look, a.clock))
	forged := registry.Entry{ID: "forged", Address: "192.0.2.2", Port: 80, Weight: 1, Metadata: map[string]string{
		"servers": "10.9.0.1:6443", "cluster": clusterNamespace,
	}}
	forged.Owner = registry.Owner{Cluster: clusterNamespace, Namespace: namespace, Registration: "web", Pod: "none", PodUID: "none"}
	checktest.NoError(t, a.store.Apply(t.Context(), "web", []registry.Change{{Op: registry.Put, Entry: forged}}))
	for range 10 {
		_, _, err := a.pass()
		checktest.NoError(t, err)
	}
	checktest.Same(t, "Usher stops", false, a.origin.Copied())
	checktest.Same(t, "the Pod that is deleted is gone", true, a.goes())
}
