// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestSilence: the page shows since when the API server does not answer, until new watches have
// started, which may fail at first.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers, begins, begun := error(nil), errors.New("list Pods: refused"), 0
		c := &cluster{changed: make(chan struct{}, 1)}
		c.ask = func(context.Context) error { return answers }
		c.begin = func(context.Context) error { begun++; return begins }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = c.listen(ctx) }()
		synctest.Wait()
		checktest.Same(t, "what it says while it is there", "", c.note(time.Now()))
		last := time.Now()

		answers = errors.New("connection refused")
		time.Sleep(4*clockEvery + time.Second)
		synctest.Wait()
		checktest.Same(t, "since when", last, c.silence.Load().at)
		checktest.Same(t, "notifications", 1, len(c.changed))
		if note := c.note(time.Now()); !strings.Contains(note, "does not answer: connection refused") {
			t.Errorf("it says %q", note)
		}

		answers = nil
		time.Sleep(clockEvery)
		synctest.Wait()
		checktest.Same(t, "since when, as long as nothing is known", last, c.silence.Load().at)
		begins = nil
		time.Sleep(2 * clockEvery)
		synctest.Wait()
		checktest.Same(t, "how often the watches began", 2, begun)
		if c.silence.Load() != nil {
			t.Error("it still counts as silent")
		}
	})
}

// TestAnswers: an API server that refuses a request answers; a gateway without an API server, or no
// server at all, does not.
func TestAnswers(t *testing.T) {
	code := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
	flags := genericclioptions.NewConfigFlags(false)
	flags.APIServer, flags.CacheDir, flags.KubeConfig = &server.URL, new(t.TempDir()), new("")
	s := &session{discovery: checktest.Must(flags.ToDiscoveryClient())(t)}
	for _, code = range []int{http.StatusOK, http.StatusUnauthorized, http.StatusForbidden} {
		checktest.NoError(t, s.answers(t.Context()))
	}
	code = http.StatusServiceUnavailable
	if s.answers(t.Context()) == nil {
		t.Error("a gateway counts as the API server")
	}
	server.Close()
	if s.answers(t.Context()) == nil {
		t.Error("a server that is not there answers")
	}
}
