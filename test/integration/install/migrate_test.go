// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/integration/openkruise"
)

// takenOver are the sets that OpenKruise leaves: one in the middle of a rollout that
// its partition stops, one that waits for a hook, one whose kubelet is busy.
var takenOver = map[string]struct{ state, patch string }{
	"stopped-by-partition": {"Normal", "spec: {updateStrategy: {partition: 1}}"},
	"waits-for-a-hook":     {"PreparingUpdate", "{}"},
	"being-updated":        {"Updating", "{}"},
}

// keepingPods is a control plane that leaves Pods of missing nodes alone: the Pods
// that OpenKruise leaves are on a node without an agent.
func keepingPods() clustertest.Option {
	return clustertest.WithExtraArgs(cluster.ExtraArgs{
		build.ControllerManager: {"--controllers=*,-pod-garbage-collector-controller"},
	})
}

// underOpenKruise begins a story on a cluster where OpenKruise has been active.
func underOpenKruise(t *testing.T) (*story, *manager) {
	t.Helper()
	s := begin(t, keepingPods())
	s.env = append(s.env, "BACKUP="+t.TempDir())
	kruise := s.installOpenKruise()
	for namespace, set := range takenOver {
		s.sh("kubectl create namespace %s", namespace)
		registrytest.NoError(t, openkruise.Leave(t.Context(), s, namespace, set.state, set.patch))
	}
	if asked := kruise.requests.Load(); asked == 0 {
		t.Error("OpenKruise's webhooks were not asked, so that this test does not show how to be rid of them")
	}
	return s, kruise
}

// unwritten lists the versions of all Pods and revisions of CloneSets.
func (s *story) unwritten() string {
	s.Helper()
	return s.sh(`kubectl get pods,controllerrevisions -A -o jsonpath='{range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} {.metadata.resourceVersion}{"\n"}{end}' | grep -E ' (stopped|waits|being)-'`)
}

// observed waits until the controller has seen every set, whatever its form.
func (s *story) observed() {
	s.Helper()
	for namespace := range takenOver {
		s.sh(`kubectl -n %s patch cloneset web --type merge -p '{"spec":{"revisionHistoryLimit":9}}'`, namespace)
		s.until("the CloneSet in "+namespace+" to be observed", func() bool {
			seen, wanted, _ := strings.Cut(s.sh("kubectl -n %s get cloneset web -o jsonpath='{.status.observedGeneration}/{.metadata.generation}'", namespace), "/")
			return seen == wanted
		})
	}
}

// The steps of docs/migrate.md in order: nothing is written to a Pod or a revision on
// the way, each set resumes where it was, OpenKruise is removed, and no CloneSet with
// it.
func TestMigration(t *testing.T) {
	s, kruise := underOpenKruise(t)
	s.moved(kruise)

	// The set that waits for a hook continues once the hook is answered.
	s.sh("kubectl -n waits-for-a-hook label pods -l app=web --overwrite example.com/unready-blocker-inplace=false")
	s.until("the Pod to get its new image", func() bool {
		return s.sh("kubectl -n waits-for-a-hook get pods -o jsonpath='{.items[*].spec.containers[*].image}'") == "example.test/web:v2"
	})
	s.removed()
}

// removed follows the last step for a CRD that Helm still considers OpenKruise's, as
// when Usher was not installed by Helm.
func (s *story) removed() {
	s.Helper()
	s.sh("kubectl annotate crd clonesets.apps.kruise.io --overwrite meta.helm.sh/release-name=kruise meta.helm.sh/release-namespace=default")
	all := "kubectl get clonesets,pods -A --no-headers -o custom-columns=KIND:.kind,NS:.metadata.namespace,NAME:.metadata.name,UID:.metadata.uid,DELETED:.metadata.deletionTimestamp | grep -v kruise-"
	before := s.sh("%s", all)
	if out := s.follow("migrate.md remove OpenKruise"); !strings.Contains(out, "usher.dev/protected") {
		s.Errorf("nothing was refused, so that this test does not show what protects the CRD: %s", out)
	}
	if after := s.sh("%s", all); after != before {
		s.Errorf("CloneSets and Pods were\n%s\nand are\n%s", before, after)
	}
	s.sh("kubectl wait --for delete namespace/kruise-system --timeout 60s")
	left := s.sh("kubectl get crd,deployments,daemonsets -A -o name | grep -e kruise || true")
	if left != "customresourcedefinition.apiextensions.k8s.io/clonesets.apps.kruise.io" {
		s.Errorf("left of OpenKruise are %s", left)
	}
	if releases := s.sh("helm list -A -q"); releases != "usher" {
		s.Errorf("Helm knows the releases %s, want usher alone", releases)
	}
}

// moved follows the steps up to where Usher manages the sets.
func (s *story) moved(kruise *manager) *usher {
	s.Helper()
	for _, step := range []string{"which kinds", "check the sets", "keep a copy"} {
		s.follow("migrate.md " + step)
	}
	if strings.Contains(s.sh("kubectl get crd -o name"), "check.usher.dev") {
		s.Error("the check has left its CRD behind")
	}
	before := s.unwritten()
	if out, err := s.try("kubectl apply --server-side --force-conflicts -f dist/crds.yaml"); err == nil || !strings.Contains(out, "storedVersions") {
		s.Errorf("a CRD without the stored version was taken: %s", out)
	}
	s.follow("migrate.md store v1alpha1")
	s.follow("migrate.md stop OpenKruise")
	kruise.server.Close()
	asked := kruise.requests.Load()
	s.follow("migrate.md install Usher")
	running := s.run("usher")
	s.observed()
	if out := s.follow("migrate.md compare"); out != "" {
		s.Errorf("the Pods are not the same: %s", out)
	}
	if after := s.unwritten(); after != before {
		s.Errorf("Pods and revisions were\n%s\nand are\n%s", before, after)
	}
	if now := kruise.requests.Load(); now != asked {
		s.Errorf("OpenKruise's webhooks were asked %d times after it was stopped", now-asked)
	}
	return running
}

// Back again: OpenKruise has its CRD and its webhooks, Usher is gone, and nothing was
// written to a Pod.
func TestMigrationAndBack(t *testing.T) {
	s, kruise := underOpenKruise(t)
	running := s.moved(kruise)
	before := s.unwritten()
	running.stop()
	s.follow("migrate.md stop Usher")
	if held := s.protected(); held != "CloneSet CloneSet CloneSet" {
		t.Errorf("finalizers are on %q, want three CloneSets", held)
	}
	s.follow("migrate.md take the finalizer off")
	if held := s.protected(); held != "" {
		t.Errorf("finalizers are left on %s", held)
	}
	s.follow("migrate.md start OpenKruise")
	if after := s.unwritten(); after != before {
		t.Errorf("Pods and revisions were\n%s\nand are\n%s", before, after)
	}
	crd := s.sh("kubectl get crd clonesets.apps.kruise.io -o jsonpath='{.spec.conversion.strategy} {.spec.versions[*].name}'")
	if crd != "Webhook v1alpha1 v1beta1" {
		t.Errorf("the CRD is %q, want OpenKruise's again", crd)
	}
	if replicas := s.sh("kubectl -n kruise-system get deployment kruise-controller-manager -o jsonpath='{.spec.replicas}'"); replicas != "2" {
		t.Errorf("OpenKruise's manager has %s replicas, want 2", replicas)
	}
	if hooks := s.sh("kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations -o name"); strings.Count(hooks, "kruise-") != 2 {
		t.Errorf("the webhooks are %q", hooks)
	}
	if files := s.sh(`ls "$BACKUP"`); files == "" {
		t.Error("no copy was kept")
	}
}

// manager stands in for OpenKruise's manager: it only answers webhooks, and a CloneSet's
// life needs no more.
type manager struct {
	server *httptest.Server
	// requests counts what its webhooks were asked.
	requests atomic.Int64
}

// installOpenKruise installs a chart that stands in for OpenKruise's.
func (s *story) installOpenKruise() *manager {
	s.Helper()
	m := &manager{}
	mux := http.NewServeMux()
	mux.Handle("/allow", &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		m.requests.Add(1)
		return admission.Allowed("")
	})})
	mux.HandleFunc("/convert", m.convert)
	m.server = httptest.NewTLSServer(mux)
	s.Cleanup(m.server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.server.Certificate().Raw})
	s.sh("helm install kruise test/integration/install/testdata/kruise --namespace default --wait --set webhook.url=%s --set webhook.ca=%s",
		m.server.URL, base64.StdEncoding.EncodeToString(authority))
	return m
}

// convert changes the version of objects and nothing else.
func (m *manager) convert(w http.ResponseWriter, r *http.Request) {
	m.requests.Add(1)
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range review.Request.Objects {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw.Raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		object.SetAPIVersion(review.Request.DesiredAPIVersion)
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: object})
	}
	review.Request, review.Response = nil, response
	_ = json.NewEncoder(w).Encode(review) // A caller that is gone needs no answer.
}
