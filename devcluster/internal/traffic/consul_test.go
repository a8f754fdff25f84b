// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// heard is a Sink that remembers, and stops who follows after some lists.
type heard struct {
	lists []string
	stop  context.CancelFunc
	after int
}

func (h *heard) Replace(entries []Entry) {
	text := ""
	for _, e := range entries {
		text += e.Key + "=" + e.Addr + " "
	}
	h.lists = append(h.lists, strings.TrimSpace(text))
	if len(h.lists) == h.after {
		h.stop()
	}
}

func (h *heard) Update([]Entry, []string) {}

// answers is a Consul that answers each query with the next of its texts, an
// index and a body each, and then never again. It keeps the queries' indexes.
func answers(t *testing.T, texts ...string) (s *httptest.Server, asked *[]string) {
	t.Helper()
	asked = &[]string{}
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/health/service/web" || !r.URL.Query().Has("passing") {
			t.Errorf("asked for %s", r.URL)
		}
		*asked = append(*asked, r.URL.Query().Get("index"))
		if len(*asked) > len(texts) {
			<-r.Context().Done()
			return
		}
		index, body, _ := strings.Cut(texts[len(*asked)-1], " ")
		w.Header().Set("X-Consul-Index", index)
		_, _ = fmt.Fprint(w, body)
	}))
	t.Cleanup(s.Close)
	return s, asked
}

func follows(t *testing.T, source Source, lists int) (*heard, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	h := &heard{stop: cancel, after: lists}
	return h, source.Follow(ctx, h)
}

func TestConsulIsFollowedByItsIndex(t *testing.T) {
	s, asked := answers(t,
		`7 [{"Service":{"ID":"a","Address":"10.0.0.1","Port":8080}},{"Service":{"ID":"b","Address":"10.0.0.2","Port":8080}}]`,
		`9 []`,
		`2 [{"Service":{"ID":"a","Address":"10.0.0.1","Port":8080}}]`, // It lost its state.
		`3 []`,
	)
	h, err := follows(t, Consul{Address: s.URL, Service: "web"}, 4)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Follow: %v", err)
	}
	if want := []string{"a=10.0.0.1:8080 b=10.0.0.2:8080", "", "a=10.0.0.1:8080", ""}; !slices.Equal(h.lists, want) {
		t.Errorf("heard %q, want %q", h.lists, want)
	}
	if want := []string{"0", "7", "9", "0"}; !slices.Equal((*asked)[:4], want) {
		t.Errorf("asked with the indexes %v, want %v", *asked, want)
	}
}

func TestWhatConsulDoesNotAnswerIsAnError(t *testing.T) {
	for _, text := range []string{"nonsense []", "7 nonsense", "7 {}"} {
		s, _ := answers(t, text)
		if h, err := follows(t, Consul{Address: s.URL, Service: "web"}, 1); err == nil || len(h.lists) > 0 {
			t.Errorf("%q: heard %v, %v; want an error", text, h.lists, err)
		}
	}
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer broken.Close()
	if h, err := follows(t, Consul{Address: broken.URL, Service: "web"}, 1); err == nil || len(h.lists) > 0 {
		t.Errorf("without a leader: heard %v, %v; want an error", h.lists, err)
	}
}

// Callers of a balancer begin when it has an instance.
func TestABalancerIsThereWhenItAnswers(t *testing.T) {
	ready := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	balancer := Balancer{Addr: addr(s)}
	if h, err := follows(t, balancer, 1); err == nil || len(h.lists) > 0 {
		t.Errorf("without an instance: heard %v, %v; want an error", h.lists, err)
	}
	ready = true
	h, err := follows(t, balancer, 1)
	if want := []string{addr(s) + "=" + addr(s)}; !errors.Is(err, context.Canceled) || !slices.Equal(h.lists, want) {
		t.Errorf("heard %v, %v; want %v", h.lists, err, want)
	}
}
