// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

// tokenEvery is how often a stream has a token.
const tokenEvery = 100 * time.Millisecond

// streams answers with tokens, as servers of language models do, and counts the streams that are under way.
type streams struct{ active atomic.Int64 }

// stream sends a line every tokenEvery for so long, and "end" last.
func (s *streams) stream(w http.ResponseWriter, r *http.Request) {
	duration, ok := span(w, r)
	if !ok {
		return
	}
	s.active.Add(1)
	defer s.active.Add(-1)
	tokens := time.NewTicker(tokenEvery)
	defer tokens.Stop()
	out := http.NewResponseController(w)
	for end := time.Now().Add(duration); time.Now().Before(end); {
		select {
		case <-tokens.C:
			_, _ = fmt.Fprintln(w, "token")
		case <-r.Context().Done():
			return
		}
		if out.Flush() != nil {
			return // the client went away
		}
	}
	_, _ = fmt.Fprintln(w, "end")
}

// metrics says how many streams are under way, in Prometheus' text format.
func (s *streams) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = fmt.Fprintf(w, "# TYPE streams_active gauge\nstreams_active %d\n", s.active.Load())
}

// span reads how long an answer is to take; false if the request does not say so.
func span(w http.ResponseWriter, r *http.Request) (duration time.Duration, ok bool) {
	duration, err := time.ParseDuration(r.URL.Query().Get("d"))
	if err != nil || duration < 0 || duration > slowest {
		http.Error(w, fmt.Sprintf("d: give a duration of up to %s, such as 1500ms", slowest), http.StatusBadRequest)
		return 0, false
	}
	return duration, true
}
