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

	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/test/integration/openkruise"
)

// TestMigrations plays the stories in testdata/migrations, on clusters where OpenKruise runs.
func TestMigrations(t *testing.T) {
	scenariotest.Stories[*story]{Files: "testdata/migrations/*.txt", Words: words, Begin: func(t *testing.T) *story {
		t.Helper()
		s := begin(t, openkruise.Arguments)
		s.env = append(s.env, "BACKUP="+t.TempDir())
		s.kruise = s.installOpenKruise()
		return s
	}}.Play(t)
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

// manager stands in for OpenKruise's manager: it only answers webhooks, and a CloneSet's
// life needs no more.
type manager struct {
	server *httptest.Server
	// requests counts what its webhooks were asked since somebody looked.
	requests atomic.Int64
}

// installOpenKruise installs a chart that stands in for OpenKruise's.
func (s *story) installOpenKruise() *manager {
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
