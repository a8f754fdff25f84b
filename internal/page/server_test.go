// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
	"github.com/usher-dev/usher/internal/view"
)

const host = "127.0.0.1:8080"

// served returns a server whose page offers to pause CloneSet shop/web.
func served(t *testing.T, do Do) *Server {
	t.Helper()
	s := NewServer(NewRecorder(noon, "", 0), do)
	seen := web(pod("a", "Normal", 0))
	seen.Actions = Actions(&seen.Workload)
	s.Observe(noon, "", []Seen{seen})
	return s
}

// TestGuards: which requests of a foreign page, of a foreign name for this machine, or of another user
// on it are answered. Each row changes one thing of a request that is answered.
func TestGuards(t *testing.T) {
	did := 0
	s := served(t, func(context.Context, string, string, string) error { did++; return nil })
	const pause = `{"set": "CloneSet/shop/web", "action": "pause"}`
	scenariotest.Table(t, "testdata/guards.txt", func(t *testing.T, test struct {
		Method, Path string
		Host         *string
		Header       map[string]string
		Without      string // a header
		InQuery      bool   // sends the token there
	}) string {
		did = 0
		r := asked(t, s, pause)
		r.Method, r.URL.Path, r.Host = cmp.Or(test.Method, r.Method), cmp.Or(test.Path, r.URL.Path), *cmp.Or(test.Host, &r.Host)
		for name, value := range test.Header {
			r.Header.Set(name, value)
		}
		if r.Header.Del(test.Without); test.InQuery {
			r.URL.RawQuery = "token=" + s.token
		}
		w := httptest.NewRecorder()
		s.Handler(host).ServeHTTP(w, r)
		if w.Header().Get("X-Frame-Options") != "DENY" || w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("headers %v", w.Header())
		}
		checktest.Same(t, "it is done", w.Code == http.StatusNoContent, did == 1)
		return fmt.Sprint(w.Code)
	})
}

// asked returns a request as the page sends it.
func asked(t *testing.T, s *Server, body string) *http.Request {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+host+"/do", strings.NewReader(body))
	r.Header.Set("Origin", "http://"+host)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+s.token)
	return r
}

// TestDo: only actions that the page offers are carried out, and the reader sees the error of any
// other.
func TestDo(t *testing.T) {
	s := served(t, func(context.Context, string, string, string) error { return errors.New("it has changed meanwhile") })
	for body, want := range map[string]string{
		`{"set": "CloneSet/shop/web", "action": "pause"}`:            "it has changed meanwhile",
		`{"set": "CloneSet/shop/web", "action": "resume"}`:           "not on offer",
		`{"action": "namespace", "to": "billing"}`:                   "not on offer",
		`{"set": "CloneSet/shop/other", "action": "pause"}`:          "not on offer",
		`{"set": "CloneSet/shop/web", "action": "pause", "to": "x"}`: "not on offer",
		`{"set": "` + strings.Repeat("x", mostBody) + `"}`:           "too large",
	} {
		w := httptest.NewRecorder()
		s.Handler(host).ServeHTTP(w, asked(t, s, body))
		if w.Code < 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%.60s: %d %s, want %q", body, w.Code, w.Body, want)
		}
	}
}

// TestActions: the actions that are offered in each phase.
func TestActions(t *testing.T) {
	for phase, want := range map[view.Phase]string{
		view.PhaseDone: "undo", view.PhaseUpdating: "pause undo", view.PhaseStalled: "pause undo", view.PhasePaused: "resume undo", view.PhaseDeleting: "",
	} {
		w := view.Workload{Summary: view.Summary{Kind: "CloneSet", Phase: phase}, Previous: &view.Revision{Name: "web-1", Number: 1}}
		checktest.Same(t, string(phase), want, strings.Join(list.Map(Actions(&w), func(a Action) string { return a.Name }), " "))
	}
	checktest.Same(t, "Deployment", nil, Actions(&view.Workload{Summary: view.Summary{Kind: "Deployment", Phase: view.PhaseUpdating}}))
}

// TestFollow: when the recording is replaced, readers get all of the new one.
func TestFollow(t *testing.T) {
	s := served(t, nil)
	_, news := s.join()
	s.Follow(NewRecorder(at(3), "another", 0))
	if text := string(<-news); !strings.Contains(text, "another") || !strings.Contains(text, `"reset":true`) {
		t.Errorf("a reader gets %s", text)
	}
	if whole, _ := s.join(); !strings.Contains(string(whole), "another") {
		t.Errorf("a new reader gets %s", whole)
	}
}

// TestEvents follows a server over a real connection: everything, then deltas, then the end of the
// server.
func TestEvents(t *testing.T) {
	s := served(t, nil)
	stop, ended, lines := follow(t, s)
	if whole := event(t, lines); !whole.Reset || len(whole.Runs[0].Sets[0].Lanes) != 1 {
		t.Errorf("at first %+v", whole)
	}
	s.Observe(at(1), "", []Seen{web(pod("a", "Normal", 0), pod("b", "Normal", 0))})
	if delta := event(t, lines); delta.Reset || len(delta.Runs[0].Sets[0].Lanes) != 1 || delta.Runs[0].Sets[0].Lanes[0].Name != "b" {
		t.Errorf("then %+v", delta)
	}
	s.Observe(at(2), "", []Seen{web(pod("a", "Normal", 0), pod("b", "Normal", 0))}, Mark{At: 2000, Kind: MarkPhase})
	if delta := event(t, lines); len(delta.Runs[0].Marks) != 1 || len(delta.Runs[0].Sets) != 0 {
		t.Errorf("with a mark %+v", delta)
	}
	stop()
	for lines.Scan() {
		checktest.Same(t, "after the end", "", lines.Text())
	}
	checktest.NoError(t, <-ended)
}

// follow serves the page, and follows it.
func follow(t *testing.T, s *Server) (stop context.CancelFunc, ended <-chan error, lines *bufio.Scanner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	listener := checktest.Must((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))(t)
	serving, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	end := make(chan error, 1)
	go func() { end <- s.Serve(serving, listener) }()
	address, token, _ := strings.Cut(s.Address(listener), "#")
	r := checktest.Must(http.NewRequestWithContext(ctx, http.MethodGet, address+"events?token="+token, nil))(t)
	answer, err := http.DefaultClient.Do(r)
	checktest.NoError(t, err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	return stop, end, bufio.NewScanner(answer.Body)
}

func event(t *testing.T, lines *bufio.Scanner) (r Recording) {
	t.Helper()
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok && text != "1" { // a beat
			checktest.NoError(t, json.Unmarshal([]byte(text), &r))
			return r
		}
	}
	t.Fatalf("no event: %v", lines.Err())
	return r
}

// TestSilence: readers, and those that join later, get once the moment after which nothing is known,
// and its end.
func TestSilence(t *testing.T) {
	s := served(t, nil)
	_, news := s.join()
	s.Silent(time.Time{})
	s.Silent(at(3))
	s.Silent(at(3))
	for what, text := range map[string][]byte{"a reader": <-news, "a later one": first(s.join())} {
		var r Recording
		checktest.NoError(t, json.Unmarshal(text, &r))
		checktest.Same(t, "what "+what+" hears", at(3).UnixMilli(), r.Silent)
	}
	s.Silent(time.Time{})
	if end := string(<-news); strings.Contains(end, "silent") || len(news) > 0 {
		t.Errorf("at last %s, and %d more", end, len(news))
	}
}

func first(text []byte, _ chan []byte) []byte { return text }

// TestBeats: a reader gets beats although nothing happens.
func TestBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := served(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 2*beatEvery+time.Second)
		defer cancel()
		w := httptest.NewRecorder()
		s.events(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/events", nil))
		checktest.Same(t, "beats", 2, strings.Count(w.Body.String(), "event: beat\ndata: 1\n\n"))
	})
}

// TestLateReader: a reader that does not keep up is dropped, and holds up no other one.
func TestLateReader(t *testing.T) {
	s := served(t, nil)
	_, news := s.join()
	for i := range behind + 2 {
		s.Observe(at(i), "", []Seen{web(pod("a", "Normal", i))})
	}
	got := 0
	for range news {
		got++
	}
	if got != behind || len(s.readers) != 0 {
		t.Errorf("%d deltas, %d readers", got, len(s.readers))
	}
}
