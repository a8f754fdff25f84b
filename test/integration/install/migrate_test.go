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

	admissionv1 "k8s.io/api/admission/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/integration/openkruise"
)

// TestMigrations plays the stories in testdata/migrations, on clusters where OpenKruise's version of the file's name runs.
func TestMigrations(t *testing.T) {
	for _, version := range []string{"1.9.0", "master"} {
		scenariotest.Stories[*story]{Files: "testdata/migrations/" + version + ".txt", Words: words, Begin: func(t *testing.T) *story {
			t.Helper()
			s := begin(t, openkruise.Arguments)
			s.env = append(s.env, "BACKUP="+t.TempDir())
			s.kruise = s.installOpenKruise(version)
			return s
		}}.Play(t)
	}
}

// leave is "NAMESPACE STATE PATCH": OpenKruise leaves a set in a namespace of its own.
func (s *story) leave(rest string) {
	words := strings.SplitN(rest, " ", 3)
	s.sh("kubectl create namespace %s", words[0])
	s.Must(openkruise.Leave(s.Context(), s, words[0], words[1], words[2]))
}

// asked checks whether the webhooks were asked since the last time: otherwise a story does not show
// how to be rid of them.
func (m *manager) asked(t *testing.T, want bool) {
	t.Helper()
	if n := m.requests.Swap(0); (n > 0) != want {
		t.Errorf("OpenKruise's webhooks were asked %d times", n)
	}
}

// manager stands in for OpenKruise's manager: it answers webhooks, and manages nothing.
type manager struct {
	server *httptest.Server
	// requests counts what its webhooks were asked since somebody looked.
	requests atomic.Int64
}

// installOpenKruise installs a chart that stands in for OpenKruise's.
func (s *story) installOpenKruise(version string) *manager {
	m := &manager{}
	mux := http.NewServeMux()
	for path, answer := range map[string]func(admission.Request) admission.Response{
		"/allow": func(admission.Request) admission.Response { return admission.Allowed("") }, "/fill": fill, "/judge": judge,
	} {
		mux.Handle(path, &admission.Webhook{Handler: admission.HandlerFunc(func(_ context.Context, r admission.Request) admission.Response {
			m.requests.Add(1)
			return answer(r)
		})})
	}
	mux.HandleFunc("/convert", m.convert)
	m.server = httptest.NewTLSServer(mux)
	s.Cleanup(m.server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.server.Certificate().Raw})
	ca := base64.StdEncoding.EncodeToString(authority)
	s.sh("helm install kruise test/integration/install/testdata/kruise --namespace default --wait --set version=%s --set webhook.url=%s --set webhook.ca=%s",
		version, m.server.URL, ca)
	if version == "master" { // its manager writes its authority into the CRD, so that Helm is not the only owner
		s.sh(`kubectl apply --server-side --field-manager kruise-manager -f - <<'END'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clonesets.apps.kruise.io}
spec:
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {url: %s/convert, caBundle: %s}}
END`, m.server.URL, ca)
	}
	return m
}

// fill writes a default into templates, as OpenKruise's webhook does.
func fill(r admission.Request) admission.Response {
	set := &unstructured.Unstructured{}
	if err := set.UnmarshalJSON(r.Object.Raw); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	containers, _, err := unstructured.NestedSlice(set.Object, "spec", "template", "spec", "containers")
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	for _, container := range containers {
		if fields, ok := container.(map[string]any); ok && fields["imagePullPolicy"] == nil {
			fields["imagePullPolicy"] = "IfNotPresent"
		}
	}
	if err := unstructured.SetNestedSlice(set.Object, containers, "spec", "template", "spec", "containers"); err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	filled, err := set.MarshalJSON()
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(r.Object.Raw, filled)
}

// judge refuses updates of one kind of set, as OpenKruise's webhook refused one that it had let in before.
func judge(r admission.Request) admission.Response {
	if r.Operation == admissionv1.Update && strings.Contains(string(r.Object.Raw), `"OnDelete"`) {
		return admission.Denied("spec.updateStrategy.type: OnDelete")
	}
	return admission.Allowed("")
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
