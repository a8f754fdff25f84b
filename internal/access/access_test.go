// SPDX-License-Identifier: Apache-2.0

package access

import (
	"cmp"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// reviewServer is an API server for reviews: a token is known if it begins with a user's name and a
// dot, and the users in readers, and those in the group, may do anything.
type reviewServer struct {
	mu      sync.Mutex
	readers string
	asked   int
	down    bool
}

func (s *reviewServer) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
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

// TestMetrics: only a token that the API server knows, of a user that may get the path, is allowed. The
// answer is remembered, unless it was an error.
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
// EndpointSlices they may get; the answer is remembered, unless it was an error.
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

// waits makes an attacker's and a scraper's requests wait in line, until the test admits them.
type waits struct {
	t     *testing.T
	api   *reviewServer
	r     *Reviewer
	clock *clocktesting.FakeClock
	// turns admits unconfirmed tokens, one for each value.
	turns chan struct{}
	all   sync.WaitGroup
}

func newWaits(t *testing.T) *waits {
	t.Helper()
	api, config := serve(t)
	w := &waits{t: t, api: api, r: checktest.Must(New(config))(t), clock: clocktesting.NewFakeClock(time.Unix(0, 0)), turns: make(chan struct{})}
	w.r.remember(w.clock)
	w.r.unconfirmed.next = func(context.Context) error { <-w.turns; return nil }
	w.r.confirmed.next = func(context.Context) error { return nil }
	t.Cleanup(func() { close(w.turns); w.all.Wait() })
	return w
}

// ask sends a request from an address with a token. The channel has the status of the answer.
func (w *waits) ask(from, token string) <-chan int {
	answered := make(chan int, 1)
	request := httptest.NewRequestWithContext(w.t.Context(), http.MethodGet, "/metrics", nil)
	request.RemoteAddr = from
	request.Header.Set("Authorization", "Bearer "+token)
	w.all.Go(func() {
		code, err := w.r.ofRequest(request.Context(), request)
		if err != nil {
			code = http.StatusInternalServerError
		}
		answered <- code
	})
	return answered
}

// flood sends made-up tokens from an address: as many as may wait, and more.
func (w *waits) flood(from string) {
	w.t.Helper()
	for i := range perAddress {
		w.ask(from, fmt.Sprintf("%d.%s", i, from))
		w.until(func() bool { return len(w.r.unconfirmed.waiting[w.key(from)]) == i+1 })
	}
	for i := range 50 {
		checktest.Same(w.t, "the answer to one too many", http.StatusTooManyRequests, <-w.ask(from, fmt.Sprint("more-", i)))
	}
}

// asked returns how many requests the API server got.
func (w *waits) asked() int {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	return w.api.asked
}

func (w *waits) key(from string) string { return NetworkOf(from) }

func (w *waits) until(holds func() bool) {
	w.t.Helper()
	for w.t.Context().Err() == nil {
		w.r.unconfirmed.mu.Lock()
		done := holds()
		w.r.unconfirmed.mu.Unlock()
		if done {
			return
		}
		runtime.Gosched()
	}
}

// TestMadeUpTokensStarveNobody is an attack: hosts that reach the port send as many made-up tokens as
// they can, from several addresses. A new scraper waits for one question of each address, and a scraper
// whose token was allowed before for none. Answers about made-up tokens drive no others out of the
// cache.
func TestMadeUpTokensStarveNobody(t *testing.T) {
	w := newWaits(t)
	attackers := []string{"10.0.0.1:1", "10.0.0.2:1", "[fd00::1]:1", "[fd00:0:0:1::1]:1"}
	for _, from := range attackers {
		w.flood(from)
	}
	checktest.Same(t, "questions before any turn", 0, w.asked())
	scrape := w.ask("10.0.0.9:1", "prometheus.a")
	w.until(func() bool { return len(w.r.unconfirmed.waiting["10.0.0.9/32"]) == 1 })
	for range len(attackers) + 1 { // one for each attacker, and one for the scraper
		w.turns <- struct{}{}
	}
	checktest.Same(t, "the answer to a new scraper", http.StatusOK, <-scrape)

	for range 3 { // without admitting made-up ones
		checktest.Same(t, "the answer that is remembered", http.StatusOK, <-w.ask("10.0.0.9:1", "prometheus.a"))
		w.clock.Step(answersLast + time.Second)
		checktest.Same(t, "the answer to a token that could read before", http.StatusOK, <-w.ask("10.0.0.8:1", "prometheus.a"))
	}
	for i := range 2 * maxAnswers {
		w.r.no.Add([3]string{fmt.Sprint(i)}, http.StatusUnauthorized, answersLast)
	}
	before := w.asked()
	checktest.Same(t, "the answer beside many others", http.StatusOK, <-w.ask("10.0.0.8:1", "prometheus.a"))
	checktest.Same(t, "questions for it", before, w.asked())

	// A token that was allowed before is not trusted for that: the API server is asked again.
	w.api.mu.Lock()
	w.api.readers = "nobody"
	w.api.mu.Unlock()
	w.clock.Step(answersLast + time.Second)
	checktest.Same(t, "the answer after the right was withdrawn", http.StatusForbidden, <-w.ask("10.0.0.9:1", "prometheus.a"))
}

// TestOneCallerHasOneNetwork: a host that takes other addresses of its IPv6 network, or other ports, is
// one caller.
func TestOneCallerHasOneNetwork(t *testing.T) {
	w := newWaits(t)
	w.flood("[fd00::1]:1")
	for _, from := range []string{"[fd00::2]:7", "[fd00::3%eth0]:1"} {
		checktest.Same(t, "the answer to "+from, http.StatusTooManyRequests, <-w.ask(from, "a.b"))
	}
	checktest.Same(t, "an IPv4 address in IPv6", w.key("10.0.0.1:1"), w.key("[::ffff:10.0.0.1]:2"))
}

// TestLineIsBounded: the line forgets callers that were admitted and callers that gave up.
func TestLineIsBounded(t *testing.T) {
	l, turns := NewLine(1, 1, 9), make(chan struct{})
	l.next = func(context.Context) error { <-turns; return nil }
	ctx, giveUp := context.WithCancel(t.Context())
	var all sync.WaitGroup
	entered := func() int { l.mu.Lock(); defer l.mu.Unlock(); return len(l.callers) }
	for i := range l.most {
		all.Go(func() { _ = l.Turn(ctx, fmt.Sprint(i)) })
	}
	for entered() < l.most {
		runtime.Gosched()
	}
	if err := l.Turn(ctx, "more"); !errors.Is(err, ErrBusy) {
		t.Errorf("one caller more: %v", err)
	}
	giveUp()
	all.Wait()
	checktest.Same(t, "callers who wait", 0, entered()+len(l.waiting))
	all.Go(func() { checktest.NoError(t, l.Turn(t.Context(), "next")) })
	for entered() == 0 {
		runtime.Gosched()
	}
	close(turns)
	all.Wait()
}
