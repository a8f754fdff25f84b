// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
)

const (
	// behind is how many deltas a reader may be late. A later one gets everything anew.
	behind = 64
	// mostBody bounds what a reader may send, in bytes.
	mostBody = 4096
	// headerTimeout is how long a reader may take to send a request's header.
	headerTimeout = 10 * time.Second
	// beatEvery is how often the server sends a beat. The page gives up after three missing beats.
	beatEvery = 5 * time.Second
)

// Do carries out an action that the page offered for a set. The reader sees its error.
type Do func(ctx context.Context, set, action, to string) error

// Server serves the live page to readers with its token.
//
// It runs with its user's rights, on a machine where others may run programs and where the user's
// browser shows pages of others. So it listens only on loopback. It answers only requests to its own
// host name, since a foreign page may have made another name point here. Requests that read or change
// the cluster need the token, which no browser adds by itself. A change has to come from the page
// itself, and no other page may embed or read it.
type Server struct {
	do    Do
	token string

	mu       sync.Mutex // guards the fields below
	recorder *Recorder
	readers  map[chan []byte]bool
}

// NewServer returns a server of the recorder's recording.
func NewServer(recorder *Recorder, do Do) *Server {
	return &Server{do: do, token: rand.Text(), recorder: recorder, readers: map[chan []byte]bool{}}
}

// Observe records the workloads as they are, and the marks of the whole run since the last observation,
// and sends the delta to the readers. The note is a message about the whole recording.
func (s *Server) Observe(now time.Time, note string, all []Seen, marks ...Mark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	recording := s.recorder.Recording()
	noted := recording.Note != note
	recording.Note = note
	delta := s.recorder.Observe(now, all, marks...)
	if len(s.readers) == 0 || len(delta.Runs[0].Sets)+len(delta.Runs[0].Marks) == 0 && !noted {
		return
	}
	s.send(delta)
}

// send sends a delta to all readers. The caller holds the lock.
func (s *Server) send(delta *Recording) {
	text := encode.JSON(delta)
	for reader := range s.readers {
		select {
		case reader <- text:
		default:
			delete(s.readers, reader)
			close(reader)
		}
	}
}

// Silent informs the readers of the moment after which nothing is known; the zero time means that the
// present is known again.
func (s *Server) Silent(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	recording, silent := s.recorder.Recording(), int64(0)
	if !since.IsZero() {
		silent = since.UnixMilli()
	}
	if recording.Silent == silent {
		return
	}
	recording.Silent = silent
	delta := *recording
	delta.Runs = []Run{{Title: recording.Runs[0].Title, Start: recording.Runs[0].Start, Now: recording.Runs[0].Now}}
	s.send(&delta)
}

// Follow continues with another recorder. Readers get all of its recording, in place of the previous
// one.
func (s *Server) Follow(recorder *Recorder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorder = recorder
	s.send(s.whole())
}

// whole returns everything so far. The caller holds the lock.
func (s *Server) whole() *Recording {
	whole := *s.recorder.Recording()
	whole.Reset = true
	return &whole
}

// join returns everything so far, and a channel of deltas.
func (s *Server) join() ([]byte, chan []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	whole := s.whole()
	reader := make(chan []byte, behind)
	s.readers[reader] = true
	return encode.JSON(whole), reader
}

func (s *Server) leave(reader chan []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.readers, reader)
}

// Address returns the address of the page for a browser. The token comes after #, which browsers do not
// send.
func (s *Server) Address(listener net.Listener) string {
	return "http://" + listener.Addr().String() + "/#" + s.token
}

// Serve serves the page until ctx ends.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s.Handler(listener.Addr().String()), ReadHeaderTimeout: headerTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // Serve returns the error
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

// Handler answers requests that are addressed to host, such as 127.0.0.1:8080.
func (s *Server) Handler(host string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("POST /do", s.act)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		if code, why := s.refuse(host, r); code != 0 {
			http.Error(w, why, code)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

var headers = map[string]string{
	"Content-Security-Policy":      policy() + "; frame-ancestors 'none'",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Referrer-Policy":              "no-referrer",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Cache-Control":                "no-store",
}

// refuse returns why a request is not answered; 0 if it is.
func (s *Server) refuse(host string, r *http.Request) (code int, why string) {
	_, port, _ := net.SplitHostPort(host)
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	switch {
	case r.Host != host && r.Host != "localhost:"+port:
		return http.StatusMisdirectedRequest, "this server is not " + r.Host
	case r.URL.Path == "/":
		return 0, "" // the page itself contains nothing of the cluster
	case site != "" && site != "same-origin", origin != "" && origin != "http://"+r.Host:
		return http.StatusForbidden, "another page may not ask"
	case subtle.ConstantTimeCompare([]byte(tokenOf(r)), []byte(s.token)) == 0:
		return http.StatusUnauthorized, "the token is wrong: open the address that was printed at the start"
	case r.Method != http.MethodPost:
		return 0, ""
	case origin == "" || r.Header.Get("Content-Type") != "application/json":
		return http.StatusForbidden, "only the page itself may ask for a change"
	}
	return 0, ""
}

// tokenOf returns the token of a request. For events, a browser can only send it in the query.
func tokenOf(r *http.Request) string {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok || r.Method == http.MethodPost {
		return token
	}
	return r.URL.Query().Get("token")
}

func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = WriteFile(w, nil) // an error means that the reader has gone
}

// events sends everything, and then deltas, until either side ends the connection.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	whole, news := s.join()
	defer s.leave(news)
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(text []byte) bool {
		event := "data: " + string(text)
		if text == nil { // a browser drops events without data
			event = "event: beat\ndata: 1"
		}
		_, err := io.WriteString(w, event+"\n\n")
		return err == nil && http.NewResponseController(w).Flush() == nil
	}
	beats := time.NewTicker(beatEvery)
	defer beats.Stop()
	for text, open := whole, true; open && send(text); {
		select {
		case <-r.Context().Done():
			return
		case text, open = <-news:
		case <-beats.C:
			text = nil
		}
	}
}

// act carries out an action that the reader has confirmed.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	var wanted struct{ Set, Action, To string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody)).Decode(&wanted); err != nil {
		http.Error(w, "read the request: "+err.Error(), http.StatusBadRequest)
		return
	}
	if !s.offers(wanted.Set, wanted.Action, wanted.To) {
		http.Error(w, "this is not on offer any more: look again", http.StatusConflict)
		return
	}
	if err := s.do(r.Context(), wanted.Set, wanted.Action, wanted.To); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// offers reports whether the page offers the action now.
func (s *Server) offers(set, action, to string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if action == ActionNamespace {
		return set == "" && slices.Contains(s.recorder.Recording().Namespaces, to)
	}
	known := list.Find(s.recorder.Recording().Runs[0].Sets, func(one *Set) bool { return one.ID == set })
	return known != nil && slices.ContainsFunc(known.Actions, func(a Action) bool { return a.Name == action && a.To == to })
}
