// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/checkout"
	servers "github.com/usher-dev/usher/test/servers/run"
)

// A Helm release is installed, upgraded, rolled back, removed and reinstalled while a
// CloneSet is in service: nothing happens to its Pods, and the CRDs stay.
func TestHelm(t *testing.T) {
	s := begin(t)
	s.follow("install.md", "helm install")
	s.follow("install.md", "ready")
	running := s.run("usher")
	s.apply(web)
	s.available("3")
	before := s.pods()

	running.stop()
	s.sh("helm upgrade usher %s --namespace usher-system --wait", s.nextChart())
	if chart := s.sh("helm list --namespace usher-system"); !strings.Contains(chart, "usher-7.") {
		t.Errorf("the upgrade is not to the next chart: %s", chart)
	}
	if columns := s.sh("kubectl get crd clonesets.apps.kruise.io -o jsonpath='{.spec.versions[0].additionalPrinterColumns[*].name}'"); !strings.Contains(columns, "NEXT") {
		t.Errorf("the upgrade left the CRD as it was, with the columns %s", columns)
	}
	running = s.run("usher")
	s.available("3")
	s.same(before, "after an upgrade")

	running.stop()
	s.follow("install.md", "helm rollback")
	running = s.run("usher")
	s.sh(`kubectl patch cloneset web --type merge -p '{"spec":{"revisionHistoryLimit":9}}'`)
	s.available("3")
	s.same(before, "after a rollback")

	running.stop()
	s.follow("install.md", "helm uninstall")
	s.remaining(before, "after helm uninstall")
	s.follow("install.md", "helm install")
	running = s.run("usher")
	s.sh("kubectl scale cloneset web --replicas 4")
	s.available("4")
	if after := s.pods(); len(strings.Split(after, "\n")) != 4 || !containsLines(after, before) {
		t.Errorf("a new release did not take the Pods over as they were: %s, then %s", before, after)
	}

	running.stop()
	s.follow("install.md", "helm uninstall")
	if out, err := s.try("helm install other charts/usher --namespace usher-system"); err == nil || !strings.Contains(out, "clonesets.apps.kruise.io") {
		t.Errorf("a release of another name took the CRDs without consent: %s", out)
	}
	s.follow("install.md", "another release")
	s.same(s.pods(), "under another release")
}

func containsLines(text, lines string) bool {
	for line := range strings.Lines(lines) {
		if !strings.Contains(text, strings.TrimSpace(line)) {
			return false
		}
	}
	return true
}

// remaining checks that everything is unchanged without Usher.
func (s *story) remaining(before, when string) {
	s.Helper()
	s.same(before, when)
	if crds := s.sh("kubectl get crd -l usher.dev/protected -o name"); len(strings.Fields(crds)) != 3 {
		s.Errorf("%s there are the CRDs %q, want three", when, crds)
	}
	if set := s.sh("kubectl get cloneset web -o jsonpath='{.spec.replicas} {.metadata.finalizers} {.metadata.deletionTimestamp}'"); strings.TrimSpace(set) != "3" {
		s.Errorf("%s the CloneSet is %q", when, set)
	}
}

// nextChart is the chart with a higher version and a CRD with one more column.
func (s *story) nextChart() string {
	s.Helper()
	folder := filepath.Join(s.TempDir(), "usher")
	s.sh(`cp -r charts/usher %[1]s
		sed -i 's/ersion: 0[.]/ersion: 7./' %[1]s/Chart.yaml
		sed -i 's/additionalPrinterColumns:/&\n    - {jsonPath: .spec.replicas, name: NEXT, type: integer}/' %[1]s/files/crds/apps.kruise.io_clonesets.yaml`, folder)
	return folder
}

// The plain manifests behave the same, and deleting them with the applied file keeps
// the CRDs, the CloneSets and the Pods.
func TestPlainManifests(t *testing.T) {
	s := begin(t)
	s.plays("without-usher.txt")
	s.follow("install.md", "kubectl apply")
	s.follow("install.md", "ready")
	running := s.run("usher")
	s.apply(web)
	s.available("3")
	s.plays("complete.txt")
	before := s.pods()
	s.follow("install.md", "kubectl apply") // Again, as in an upgrade.
	s.same(before, "after an upgrade")
	running.stop()

	out, err := s.try("kubectl delete -f dist/install.yaml")
	if err == nil || strings.Count(out, "take the label usher.dev/protected off") != 3 {
		t.Errorf("kubectl delete -f was to be refused for three CRDs: %v\n%s", err, out)
	}
	s.remaining(before, "after kubectl delete -f")
	s.sh("kubectl wait --for delete namespace/usher-system --timeout 60s")
	s.follow("install.md", "kubectl apply")
	s.follow("install.md", "kubectl delete")
	s.remaining(before, "after an uninstall")

	s.follow("install.md", "kubectl apply")
	running = s.run("usher")
	s.sh("kubectl scale cloneset web --replicas 2")
	s.available("2")
	if after := s.pods(); !containsLines(before, after) {
		t.Errorf("Pods %s became %s", before, after)
	}
	s.sh("kubectl delete cloneset web --wait")
	running.stop()
	s.follow("install.md", "kubectl delete")
	s.apply(web)
	s.sh(`kubectl patch crd clonesets.apps.kruise.io --type json -p '[{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/updateStrategy/properties/paused"}]'`)
	s.sh("kubectl label crd registries.usher.dev usher.dev/protected- && kubectl delete crd registries.usher.dev")
	s.plays("older-crds.txt")
	s.sh("kubectl delete cloneset web --wait && kubectl apply --server-side -f config/crd/usher.dev_registries.yaml")
	s.follow("install.md", "remove the CRDs")
	if crds := s.sh("kubectl get crd -o name"); strings.Contains(crds, "usher.dev") || strings.Contains(crds, "kruise") {
		t.Errorf("CRDs are left: %s", crds)
	}
}

// Each half runs alone in its own process, with the rights of its own role.
func TestHalvesApart(t *testing.T) {
	s := begin(t)
	s.follow("install.md", "halves apart")
	ports, err := servers.FreePorts(t.Context(), 1)
	s.Must(err)
	metrics := fmt.Sprintf("127.0.0.1:%d", ports[0])
	s.run("usher-cloneset")
	s.run("usher-registration", "--metrics-bind-address="+metrics)
	s.apply(web)
	s.available("3")
	if leases := s.sh("kubectl -n usher-system get leases -o name"); len(strings.Fields(leases)) != 2 {
		t.Errorf("leases %q, want one for each half", leases)
	}
	for what, may := range map[string]string{
		"get secrets -n usher-system --as " + account("cloneset"):                           "no",
		"get secrets -n usher-system --as " + account("registration"):                       "yes",
		"get secrets -n default --as " + account("registration"):                            "no",
		"create pods -n default --as " + account("registration"):                            "no",
		"list endpointslices.discovery.k8s.io -n default --as " + account("registration"):   "yes",
		"create endpointslices.discovery.k8s.io -n default --as " + account("registration"): "no",
	} {
		if got, _ := s.try("kubectl auth can-i " + what); got != may {
			t.Errorf("%s: %s, want %s", what, got, may)
		}
	}
	s.apply(stranger)
	s.until("the Registry to say why its Secret is not read", func() bool {
		return strings.Contains(s.sh("kubectl get registry stranger -o jsonpath={.status.conditions}"), "rbac.secretNamespaces")
	})
	s.stolenAccount()
	s.scrapes(metrics)
}

// account is the service account of a half that is apart.
func account(half string) string { return "system:serviceaccount:usher-system:usher-" + half }

// stolenAccount does with the accounts of the hook operator and the guard what an attacker would,
// and what they themselves do.
func (s *story) stolenAccount() {
	s.Helper()
	var pods corev1.PodList
	s.Must(s.List(s.Context(), &pods, client.MatchingLabels{"app": "web"}))
	for _, test := range []struct{ subresource, patch, refusal string }{
		{"", `{"spec": {"containers": [{"name": "main", "image": "attacker.test/miner"}]}}`, "never change the spec"},
		{"status", `{"status": {"phase": "Failed"}}`, "nothing in the status of a Pod but a condition"},
		{"status", `{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`, "no condition of a Pod but usher.dev/registered"},
		{"", `{"metadata": {"ownerReferences": null}}`, "never change the owners"},
		{"", `{"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}}`, "Kubernetes' own finalizers"},
		{"", `{"metadata": {"labels": {"app.kubernetes.io/name": "shop"}}}`, "Kubernetes' own labels"},
		{"status", `{"metadata": {"labels": {"controller-revision-hash": null}}}`, "Kubernetes' own labels"},
		{"", `{"metadata": {"annotations": {"sidecar.istio.io/inject": "false"}}}`, "no annotations of a Pod but those of usher.dev"},
		{"", `{"metadata": {"labels": {"example.com/drained": "false"}, "finalizers": ["usher.dev/registration", "example.com/drained"],
			"annotations": {"usher.dev/registrations": "a", "controller.kubernetes.io/pod-deletion-cost": "-1"}}}`, ""},
		{"status", `{"status": {"conditions": [{"type": "usher.dev/registered", "status": "True"}]}}`, ""},
	} {
		for _, half := range []string{"registration", "guard"} {
			refusal := test.refusal
			if half == "guard" && test.subresource == "status" {
				refusal = `cannot patch resource "pods/status"`
			}
			err := s.patchAs(account(half), &pods.Items[0], test.subresource, test.patch)
			if (err == nil) != (refusal == "") || err != nil && !strings.Contains(err.Error(), refusal) {
				s.Errorf("%s patches %s with %s: %v, want %q", half, test.subresource, test.patch, err, refusal)
			}
		}
	}
}

// patchAs tries a strategic merge patch as somebody else.
func (s *story) patchAs(user string, pod *corev1.Pod, subresource, patch string) error {
	s.Helper()
	config := rest.CopyConfig(s.RESTConfig())
	config.Impersonate.UserName = user
	api, err := client.New(config, client.Options{})
	s.Must(err)
	change := client.RawPatch(types.StrategicMergePatchType, []byte(patch))
	if subresource != "" {
		return api.SubResource(subresource).Patch(s.Context(), pod.DeepCopy(), change, client.DryRunAll)
	}
	return api.Patch(s.Context(), pod.DeepCopy(), change, client.DryRunAll)
}

// scrapes reads metrics as strangers, and as somebody who may.
func (s *story) scrapes(address string) {
	s.Helper()
	s.sh("kubectl create namespace monitoring && kubectl -n monitoring create serviceaccount prometheus")
	s.follow("metrics.md", "reader")
	plain := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // The certificate is one that nobody can check.
	defer plain.CloseIdleConnections()
	for _, test := range []struct {
		url, token string
		code       int
	}{
		{"http://" + address, "", http.StatusBadRequest},
		{"https://" + address, "", http.StatusUnauthorized},
		{"https://" + address, "made-up", http.StatusUnauthorized},
		{"https://" + address, s.sh("kubectl -n default create token default"), http.StatusForbidden},
		{"https://" + address, s.sh("kubectl -n monitoring create token prometheus"), http.StatusOK},
	} {
		request, err := http.NewRequestWithContext(s.Context(), http.MethodGet, test.url+"/metrics", nil)
		s.Must(err)
		request.Header.Set("Authorization", "Bearer "+test.token)
		answer, err := (&http.Client{Transport: plain}).Do(request)
		s.Must(err)
		body, err := io.ReadAll(answer.Body)
		s.Must(errors.Join(err, answer.Body.Close()))
		if answer.StatusCode != test.code || strings.Contains(string(body), "usher_") != (test.code == http.StatusOK) {
			s.Errorf("%s with the token %.10q: %s, want %d", test.url, test.token, answer.Status, test.code)
		}
	}
}

// The API server accepts every object of the chart, without an unknown field, and would
// run the Pods in a namespace with the strictest Pod Security standard.
func TestObjectsAreTaken(t *testing.T) {
	s := begin(t)
	s.sh("kubectl apply --server-side -f dist/crds.yaml")
	s.sh("kubectl create namespace usher-system && kubectl label namespace usher-system pod-security.kubernetes.io/enforce=restricted")
	s.until("the namespace's service account", func() bool {
		_, err := s.try("kubectl -n usher-system get serviceaccount default")
		return err == nil
	})
	files, err := filepath.Glob(filepath.Join(root, "tools", "chart", "testdata", "golden", "*.yaml"))
	if err != nil || len(files) < 5 {
		t.Fatalf("golden files %v: %v", files, err)
	}
	pods := 0
	for _, file := range append(files, filepath.Join(root, "dist", "install.yaml")) {
		created, applied := requests(t, file)
		for _, object := range created {
			if object.GetKind() == "Pod" {
				pods++
			}
		}
		s.taken(file, created, "create")
		if len(applied) > 0 {
			s.taken(file, applied, "apply --server-side --force-conflicts")
		}
	}
	if pods < 8 {
		t.Errorf("%d Deployments were found, want one a file and two where halves are apart", pods)
	}
	if out, err := s.try(`kubectl create --dry-run=server --validate=strict -f - <<< '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "dat": {}}'`); err == nil || !strings.Contains(out, `unknown field "dat"`) {
		t.Errorf("a field that nobody knows is taken, so that this test proves nothing: %s", out)
	}
}

// requests lists the objects of a file, plus a Pod of each Deployment: those to create,
// and those that already exist.
func requests(t *testing.T, file string) (created, applied []*unstructured.Unstructured) {
	t.Helper()
	content, err := os.ReadFile(file)
	registrytest.NoError(t, err)
	objects, err := checkout.ReadObjects(bytes.NewReader(content))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for _, object := range objects {
		switch object.GetKind() {
		case "ServiceMonitor", "PrometheusRule", "Certificate": // Their CRDs are those of the Prometheus operator and of cert-manager.
		case "Namespace", "CustomResourceDefinition":
			applied = append(applied, object)
		case "Deployment":
			created = append(created, object, podOf(t, object))
		default:
			created = append(created, object)
		}
	}
	return created, applied
}

// taken sends objects as a dry run.
func (s *story) taken(file string, objects []*unstructured.Unstructured, how string) {
	s.Helper()
	var text strings.Builder
	for _, object := range objects {
		content, err := yaml.Marshal(object.Object)
		s.Must(err)
		text.WriteString("---\n" + string(content))
	}
	manifest := filepath.Join(s.TempDir(), "manifest.yaml") // a script has no room for CRDs
	s.Must(os.WriteFile(manifest, []byte(text.String()), 0o600))
	out, err := s.try("kubectl " + how + " --dry-run=server --validate=strict -f " + manifest)
	if err != nil || strings.Count(out, "(server dry run)") != len(objects) {
		s.Errorf("%s: %d objects: %v\n%s", filepath.Base(file), len(objects), err, out)
	}
}

// podOf is a Pod as the Deployment would create it, with an existing service account.
func podOf(t *testing.T, deployment *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	template, found, err := unstructured.NestedMap(deployment.Object, "spec", "template")
	if err == nil {
		err = unstructured.SetNestedField(template, "default", "spec", "serviceAccountName")
	}
	if err != nil || !found {
		t.Fatalf("Deployment %s has no template: %v", deployment.GetName(), err)
	}
	pod := &unstructured.Unstructured{Object: template}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	pod.SetName("usher-pod")
	pod.SetNamespace(deployment.GetNamespace())
	return pod
}
