// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// openkruise stands in for OpenKruise's manager: it only answers webhooks, and a
// CloneSet's life needs no more.
type openkruise struct {
	server *httptest.Server
	// asked counts the requests.
	asked atomic.Int64
}

// installOpenKruise installs a chart that stands in for OpenKruise's.
func (s *story) installOpenKruise() *openkruise {
	s.Helper()
	o := &openkruise{}
	mux := http.NewServeMux()
	mux.HandleFunc("/allow", func(w http.ResponseWriter, r *http.Request) {
		o.answer(w, r, func(map[string]any) map[string]any { return map[string]any{"allowed": true} })
	})
	mux.HandleFunc("/convert", func(w http.ResponseWriter, r *http.Request) { o.answer(w, r, convert) })
	o.server = httptest.NewTLSServer(mux)
	s.Cleanup(o.server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.server.Certificate().Raw})
	s.sh("helm install kruise test/integration/install/testdata/kruise --namespace default --wait --set webhook.url=%s --set webhook.ca=%s",
		o.server.URL, base64.StdEncoding.EncodeToString(authority))
	return o
}

// answer answers a review.
func (o *openkruise) answer(w http.ResponseWriter, r *http.Request, decide func(request map[string]any) map[string]any) {
	o.asked.Add(1)
	var review map[string]any
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	request, _ := review["request"].(map[string]any)
	response := decide(request)
	response["uid"] = request["uid"]
	review["response"] = response
	delete(review, "request")
	_ = json.NewEncoder(w).Encode(review) // A caller that is gone needs no answer.
}

// convert changes the version and nothing else.
func convert(request map[string]any) map[string]any {
	objects, _ := request["objects"].([]any)
	for _, object := range objects {
		if fields, ok := object.(map[string]any); ok {
			fields["apiVersion"] = request["desiredAPIVersion"]
		}
	}
	return map[string]any{"convertedObjects": objects, "result": map[string]any{"status": "Success"}}
}

// leave creates, in a namespace of that name, what OpenKruise leaves of a set in one of
// the states in stories/cloneset, with the set changed by the edit.
func (s *story) leave(namespace, state, edit string) {
	s.Helper()
	s.sh("kubectl create namespace %s", namespace)
	set, _, _ := strings.Cut(s.golden("set.yaml", namespace, ""), "\n---\n")
	s.put(merged(s.decode(set), s.decode(edit)))
	uid := s.sh("kubectl -n %s get cloneset web -o jsonpath='{.metadata.uid}'", namespace)
	_, revisions, _ := strings.Cut(s.golden("set.yaml", namespace, uid), "\n---\n")
	s.apply(revisions)
	states := s.decode(s.golden("states.yaml", namespace, uid))
	change, ok := states[state].(map[string]any)
	if !ok {
		s.Fatalf("states.yaml has no state %q", state)
	}
	s.put(merged(s.decode(s.golden("pod.yaml", namespace, uid)), change))
}

func (s *story) golden(file, namespace, uid string) string {
	s.Helper()
	content, err := os.ReadFile(filepath.Join("..", "cloneset", "testdata", "openkruise", file))
	if err != nil {
		s.Fatal(err)
	}
	return strings.NewReplacer("NAMESPACE", namespace, "UID", uid).Replace(string(content))
}

func (s *story) decode(text string) map[string]any {
	s.Helper()
	var object map[string]any
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		s.Fatalf("%v\n%s", err, text)
	}
	return object
}

// put creates an object with its status.
func (s *story) put(object map[string]any) {
	s.Helper()
	text, err := yaml.Marshal(object)
	if err != nil {
		s.Fatal(err)
	}
	status, err := json.Marshal(map[string]any{"status": object["status"]})
	if err != nil {
		s.Fatal(err)
	}
	o := unstructured.Unstructured{Object: object}
	s.sh("kubectl create -f - <<'END'\n%s\nEND", text)
	s.sh("kubectl -n %s patch %s %s --subresource status --type merge -p '%s'", o.GetNamespace(), o.GetKind(), o.GetName(), status)
}

// merged applies a merge patch.
func merged(into, change map[string]any) map[string]any {
	for key, value := range change {
		members, isMap := value.(map[string]any)
		inner, wasMap := into[key].(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isMap && wasMap:
			merged(inner, members)
		default:
			into[key] = value
		}
	}
	return into
}
