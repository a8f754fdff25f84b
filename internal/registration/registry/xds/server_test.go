// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

func newServer(t *testing.T, address string, synced func() bool) *server {
	t.Helper()
	m, err := newMetrics(prometheus.NewRegistry())
	registrytest.NoError(t, err)
	return &server{
		address: address, creds: insecure.NewCredentials(), log: logr.Discard(), synced: synced,
		ads: &adsServer{store: NewStore(), metrics: m, log: logr.Discard()},
	}
}

// free returns an address on which nothing listens.
func free(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	registrytest.NoError(t, err)
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// answers reports whether the server listens or claims to be ready.
func (s *server) answers(t *testing.T) bool {
	t.Helper()
	ready := s.ready(nil) == nil
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
	if err == nil {
		_ = conn.Close()
	}
	if ready && err != nil {
		t.Errorf("it is ready, and does not listen: %v", err)
	}
	return ready || err == nil
}

// TestServerWaits checks that the server does not listen before it knows the full
// state.
func TestServerWaits(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan bool)
	s := newServer(t, free(t), func() bool {
		asked <- struct{}{}
		return <-answer
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	for range 2 {
		<-asked
		if s.answers(t) {
			t.Error("it answers before it knows what there is")
		}
		answer <- false
	}
	<-asked
	answer <- true
	for end := time.Now().Add(10 * time.Second); !s.answers(t); {
		if time.Now().After(end) {
			t.Fatal("it does not answer")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if s.answers(t) {
		t.Error("it answers after its end")
	}
}

func TestServerAddress(t *testing.T) {
	s := newServer(t, "no address", func() bool { return true })
	if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "--xds-bind-address") {
		t.Errorf("an address that is none: %v", err)
	}
	if s.NeedLeaderElection() {
		t.Error("it waits to be the leader")
	}
}

func TestServerFiles(t *testing.T) {
	nothing := filepath.Join(t.TempDir(), "nothing.pem")
	registrytest.NoError(t, os.WriteFile(nothing, []byte("nothing"), 0o600))
	for name, test := range map[string]struct {
		files TLSFiles
		says  string
	}{
		"no key":         {TLSFiles{Certificate: nothing}, "set both"},
		"no certificate": {TLSFiles{ClientCA: nothing}, "set both"},
		"no pair":        {TLSFiles{Certificate: nothing, Key: nothing}, "--xds-tls-cert"},
		"no such file":   {TLSFiles{Certificate: nothing + "x", Key: nothing}, "no such file"},
	} {
		if _, err := test.files.credentials(); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want it to say %s", name, err, test.says)
		}
	}
	if creds, err := (TLSFiles{}).credentials(); err != nil || creds.Info().SecurityProtocol != "insecure" {
		t.Errorf("no files: %v", err)
	}
}
