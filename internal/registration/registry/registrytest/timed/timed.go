// SPDX-License-Identifier: Apache-2.0

// Package timed is an HTTP server for tests with a clock, on which servers of clouds' APIs stand.
package timed

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// Server serves a handler on loopback.
type Server struct {
	handler http.Handler
	server  *httptest.Server

	mu sync.Mutex
	// start is since when the clock runs; zero if time passes by Pass alone. passed is the time before that.
	start  time.Time
	passed time.Duration
}

// Serve starts a server. Its time passes by Pass.
func Serve(handler http.Handler) *Server {
	return &Server{handler: handler, server: httptest.NewServer(handler)}
}

// URL is the server's address.
func (s *Server) URL() string { return s.server.URL }

// Close ends the server. Its clock goes on.
func (s *Server) Close() { s.server.Close() }

// Restart serves again at an address.
func (s *Server) Restart(ctx context.Context, address string) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s.server = &httptest.Server{Listener: listener, Config: &http.Server{Handler: s.handler, ReadHeaderTimeout: time.Minute}}
	s.server.Start()
	return nil
}

// Run has the clock run, or stand still.
func (s *Server) Run(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed, s.start = s.now(), time.Time{}
	if on {
		s.start = time.Now()
	}
}

// Pass lets time pass.
func (s *Server) Pass(span time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed += span
}

// Now is how much time has passed.
func (s *Server) Now() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

func (s *Server) now() time.Duration {
	if s.start.IsZero() {
		return s.passed
	}
	return s.passed + time.Since(s.start)
}
