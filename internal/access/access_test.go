// SPDX-License-Identifier: Apache-2.0

package access

import (
	"cmp"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
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
	"github.com/usher-dev/usher/internal/scenariotest"
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
	scenariotest.Table(t, "testdata/metrics.txt", func(t *testing.T, test struct {
		Method, Path, Authorization string
		Down                        bool
	}) string {
		api.asked, api.down = 0, test.Down
		request := httptest.NewRequestWithContext(t.Context(), cmp.Or(test.Method, http.MethodGet), cmp.Or(test.Path, "/metrics"), nil)
		request.Header.Set("Authorization", test.Authorization)
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		checktest.Same(t, "it is let through", answer.Code == http.StatusOK, answer.Body.String() == "metrics")
		return fmt.Sprintf("%d, after %d questions", answer.Code, api.asked)
	})
}

// TestServices: a certificate's user and groups may read services of the namespaces whose
// EndpointSlices they may get; the answer is remembered, one that failed is not.
func TestServices(t *testing.T) {
	api, config := serve(t)
	r, err := New(config)
	checktest.NoError(t, err)
	scenariotest.Table(t, "testdata/services.txt", func(t *testing.T, test struct {
		User      string
		Groups    []string
		Namespace string
		Down      bool
	}) string {
		api.asked, api.down = 0, test.Down
		client := &x509.Certificate{RawSubject: []byte(test.User), Subject: pkix.Name{CommonName: test.User, Organization: test.Groups}}
		allowed, err := r.MayReadServices(t.Context(), client, test.Namespace)
		return fmt.Sprintf("%s, after %d questions", map[bool]string{true: "allowed", false: "no"}[allowed], api.asked) + map[bool]string{true: ", which failed"}[err != nil]
	})
}
