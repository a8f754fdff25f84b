// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/usher-dev/usher/internal/checktest"
)

// reviewServer is an API server that reviews: a token is known if it begins with a user's name
// and a dot, and the users in readers, or those of the group, may do anything.
type reviewServer struct {
	readers string
	asked   int
	down    bool
}

func (s *reviewServer) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	s.asked++
	if s.down {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(request.URL.Path, "/tokenreviews") {
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(request.Body).Decode(&review)
		review.Status.User.Username, _, review.Status.Authenticated = strings.Cut(review.Spec.Token, ".")
		review.Status.User.Extra = map[string]authenticationv1.ExtraValue{"pod": {"a"}}
		_ = json.NewEncoder(w).Encode(review)
		return
	}
	var review authorizationv1.SubjectAccessReview
	_ = json.NewDecoder(request.Body).Decode(&review)
	asks := review.Spec
	switch {
	case asks.NonResourceAttributes != nil:
		review.Status.Allowed = *asks.NonResourceAttributes == authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"} && len(asks.Extra) == 1
	default:
		review.Status.Allowed = asks.ResourceAttributes.Namespace == "edge" && asks.ResourceAttributes.Resource == "endpointslices"
	}
	review.Status.Allowed = review.Status.Allowed && slices.Contains(append(asks.Groups, asks.User), s.readers)
	_ = json.NewEncoder(w).Encode(review)
}

func serve(t *testing.T) (*reviewServer, *rest.Config) {
	t.Helper()
	api := &reviewServer{readers: "prometheus"}
	served := httptest.NewServer(api)
	t.Cleanup(served.Close)
	return api, &rest.Config{Host: served.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// TestMetrics: only a token that the API server knows, of a user who may get the path, is let
// through; the answer is remembered, one that failed is not.
func TestMetrics(t *testing.T) {
	api, config := serve(t)
	filter := checktest.Must(Metrics(config, nil))(t)
	handler := checktest.Must(filter(logr.Discard(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("metrics")) })))(t)
	for _, test := range []struct {
		name, method, path, authorization string
		down                              bool
		code, asked                       int
	}{
		{"nobody", "GET", "/metrics", "", false, 401, 0},
		{"a password", "GET", "/metrics", "Basic prometheus.a", false, 401, 0},
		{"a token that is none", "GET", "/metrics", "Bearer prometheus", false, 401, 1},
		{"somebody else", "GET", "/metrics", "Bearer web.a", false, 403, 2},
		{"somebody else again", "GET", "/metrics", "Bearer web.a", false, 403, 0},
		{"the API server is down", "GET", "/metrics", "Bearer prometheus.a", true, 500, 1},
		{"a reader", "GET", "/metrics", "Bearer prometheus.a", false, 200, 2},
		{"a reader again, without the API server", "GET", "/metrics", "Bearer prometheus.a", true, 200, 0},
		{"a reader of another path", "GET", "/debug/pprof", "Bearer prometheus.a", false, 403, 2},
		{"a reader who writes", "POST", "/metrics", "Bearer prometheus.a", false, 403, 2},
	} {
		api.asked, api.down = 0, test.down
		request := httptest.NewRequestWithContext(t.Context(), test.method, test.path, nil)
		request.Header.Set("Authorization", test.authorization)
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		if answer.Code != test.code || api.asked != test.asked || (answer.Body.String() == "metrics") != (test.code == 200) {
			t.Errorf("%s: %d %s, after %d questions, want %d after %d", test.name, answer.Code, answer.Body, api.asked, test.code, test.asked)
		}
	}
}

// TestServices: a certificate's user and groups may read services of the namespaces whose
// EndpointSlices they may get.
func TestServices(t *testing.T) {
	api, config := serve(t)
	r, err := New(config)
	checktest.NoError(t, err)
	certificate := func(name string, groups ...string) *x509.Certificate {
		return &x509.Certificate{RawSubject: []byte(name), Subject: pkix.Name{CommonName: name, Organization: groups}}
	}
	for _, test := range []struct {
		client    *x509.Certificate
		namespace string
		down      bool
		allowed   bool
	}{
		{certificate("prometheus"), "edge", false, true},
		{certificate("prometheus"), "other", false, false},
		{certificate("web"), "edge", true, false},
		{certificate("web"), "edge", false, false},
		{certificate("shop", "prometheus"), "edge", false, true},
		{certificate("shop", "prometheus"), "edge", true, true},
	} {
		api.asked, api.down = 0, test.down
		allowed, err := r.MayReadServices(t.Context(), test.client, test.namespace)
		if allowed != test.allowed || (err != nil) != (test.down && api.asked > 0) {
			t.Errorf("%s in %s: %v, %v, want %v", test.client.Subject, test.namespace, allowed, err, test.allowed)
		}
	}
}
