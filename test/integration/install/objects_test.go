// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/checkout"
)

// The API server accepts every object of the chart, without an unknown field, and would
// run the Pods in a namespace with the strictest Pod Security standard.
func TestObjectsAreTaken(t *testing.T) {
	s := begin(t, nil)
	s.sh("kubectl apply --server-side -f dist/crds.yaml")
	s.sh("kubectl create namespace usher-system && kubectl label namespace usher-system pod-security.kubernetes.io/enforce=restricted")
	s.sh("kubectl create namespace usher-registries && kubectl create namespace credentials") // where golden files read Secrets
	s.Await("the namespace's service account", func() bool {
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
		created = s.rendered(created)
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
	for _, object := range checktest.Must(checkout.ReadObjects(file))(t) {
		switch object.GetKind() {
		case "ServiceMonitor", "PrometheusRule", "Certificate": // Their CRDs are those of the Prometheus operator and of cert-manager.
		case "Namespace", "CustomResourceDefinition":
			applied = append(applied, object)
		case "Deployment":
			created = append(created, object)
			// Usher's namespace is restricted: with guard.hostNetwork it has to be another one.
			if host, _, err := unstructured.NestedBool(object.Object, "spec", "template", "spec", "hostNetwork"); err == nil && !host {
				created = append(created, podOf(t, object))
			}
		default:
			created = append(created, object)
		}
	}
	return created, applied
}

// rendered are the objects that the chart makes for this API server: older ones have no MutatingAdmissionPolicies.
func (s *story) rendered(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	if strings.Contains(s.sh("kubectl get --raw /apis/admissionregistration.k8s.io/v1"), "MutatingAdmissionPolicy") {
		return objects
	}
	return list.Only(objects, func(o *unstructured.Unstructured) bool {
		return !strings.HasPrefix(o.GetKind(), "MutatingAdmissionPolicy")
	})
}

// taken sends objects as a dry run.
func (s *story) taken(file string, objects []*unstructured.Unstructured, how string) {
	var text strings.Builder
	for _, object := range objects {
		content := checktest.Must(yaml.Marshal(object.Object))(s)
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
