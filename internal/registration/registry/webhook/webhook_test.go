// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
	"github.com/usher-dev/usher/internal/registration/registry/webhook"
)

const key = "a secret of the test"

func now() time.Time { return time.Unix(1_800_000_000, 0) }

// server is a receiver as in docs/registry/webhook.md, backed by package memory.
type server struct {
	store *memory.Registry
	down  atomic.Bool
	// hangs is locked while no request is answered.
	hangs sync.RWMutex
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.hangs.RLock()
	defer s.hangs.RUnlock()
	body, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case s.down.Load():
		http.Error(w, "maintenance", http.StatusServiceUnavailable)
	case !signed(r, body):
		http.Error(w, "the signature is wrong", http.StatusUnauthorized)
	default:
		s.serve(w, r, body)
	}
}

// signed checks the signature without package webhook's code.
func signed(r *http.Request, body []byte) bool {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(r.Header.Get("Usher-Timestamp") + "\n" + strings.TrimPrefix(r.URL.Path, "/base") + "\n"))
	mac.Write(body)
	want := "v1=" + hex.EncodeToString(mac.Sum(nil))
	return r.Header.Get("Usher-Timestamp") == "1800000000" && hmac.Equal([]byte(want), []byte(r.Header.Get("Usher-Signature")))
}

func (s *server) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	switch r.URL.Path {
	case "/base/v1/ping":
		w.WriteHeader(http.StatusNoContent)
	case "/base/v1/list":
		var q webhook.ListRequest
		_ = json.Unmarshal(body, &q)
		entries, _ := s.store.List(r.Context(), q.Service)
		_ = json.NewEncoder(w).Encode(webhook.ListResponse{Entries: entries})
	case "/base/v1/apply":
		var q webhook.ApplyRequest
		_ = json.Unmarshal(body, &q)
		_ = json.NewEncoder(w).Encode(webhook.ApplyResponse{Refused: refusals(s.store.Apply(r.Context(), q.Service, q.Changes))})
	default:
		http.NotFound(w, r)
	}
}

func refusals(err error) []webhook.Refusal {
	byID, _ := registry.ChangeErrors(err)
	var all []webhook.Refusal
	for id, err := range byID {
		code := webhook.CodeConflict
		if errors.Is(err, registry.ErrForeign) {
			code = webhook.CodeForeign
		}
		all = append(all, webhook.Refusal{ID: id, Code: code, Message: err.Error()})
	}
	return all
}

// connect returns a connector to a server with this handler.
func connect(t *testing.T, handler http.Handler) *webhook.Registry {
	t.Helper()
	s := registrytest.Serve(t, handler)
	r := registrytest.Connect(webhook.New(s+"/base/", map[string][]byte{webhook.KeyHMAC: []byte(key)}))(t)
	r.Now = now
	return r
}

func TestConformance(t *testing.T) {
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		s := &server{store: memory.New()}
		return registrytest.Fixture{
			Connector: connect(t, s), Atomic: true,
			Seed: func(service, id string) {
				s.store.Seed(service, registry.Entry{ID: id, Address: "192.0.2.1", Port: 1})
			},
			Break:  func() error { s.down.Store(true); return nil },
			Mend:   func(context.Context) error { s.down.Store(false); return nil },
			Hang:   func() error { s.hangs.Lock(); return nil },
			Resume: func() error { s.hangs.Unlock(); return nil },
		}
	})
}

// answering returns a connector to a server that always gives the same answer.
func answering(t *testing.T, code int, body string) *webhook.Registry {
	t.Helper()
	return connect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}))
}

func TestStatusCodes(t *testing.T) {
	registrytest.CheckAnswers(t, func(t *testing.T, a registrytest.Answer) error {
		_, err := answering(t, a.Code, strings.ReplaceAll(a.Body, registrytest.Secret, "no")).List(t.Context(), "web")
		return err
	})
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	asked := atomic.Bool{}
	thief := registrytest.Serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) }))
	_, err := connect(t, http.RedirectHandler(thief, http.StatusTemporaryRedirect)).List(t.Context(), "web")
	registrytest.Check(t, "a redirect", err, registry.ErrPermanent, thief)
	if asked.Load() {
		t.Error("the signed request was sent on to another host")
	}
}

func TestAnswersAreBounded(t *testing.T) {
	endless := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"entries":[`)
		chunk := strings.Repeat(" ", 1<<20)
		for range 64 {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
		_, _ = io.WriteString(w, `]}`)
	})
	short := answering(t, http.StatusOK, `{"entries":[`+strings.Repeat("{},", 1<<20)+`{}]}`)
	for name, answers := range map[string]*webhook.Registry{"an answer that is too long": connect(t, endless), "too many entries": short} {
		_, err := answers.List(registrytest.Counted(t, 64<<20), "web")
		registrytest.Check(t, name, err, registry.ErrPermanent, "more than")
	}
}

func TestUnsettledEntriesAreListed(t *testing.T) {
	body := `{"entries":[{"id":"a","version":"1","unsettled":"it waits for 2 requests"},` +
		`{"id":"b","version":"1","unsettled":"` + strings.Repeat("long ", 1000) + `"}]}`
	have, err := answering(t, http.StatusOK, body).List(t.Context(), "web")
	if err != nil || len(have) != 2 {
		t.Fatalf("listed are %v, %v", have, err)
	}
	if have[0].Unsettled != "it waits for 2 requests" || len(have[1].Unsettled) > 300 {
		t.Errorf("unsettled is %q, and %d bytes long", have[0].Unsettled, len(have[1].Unsettled))
	}
}

func TestOptionsAreChecked(t *testing.T) { registrytest.CheckAddresses(t, webhook.New) }

func FuzzDecode(f *testing.F) {
	var body atomic.Pointer[string]
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, *body.Load()) }))
	f.Cleanup(receiver.Close)
	r := checktest.Must(webhook.New(receiver.URL, nil))(f)
	registrytest.FuzzDecode(f, func(text string) []registry.Entry {
		body.Store(&text)
		entries, _ := r.List(context.Background(), "web")
		return entries
	})
}
