// SPDX-License-Identifier: Apache-2.0

// Package moto starts moto, a server of AWS's APIs that others have written.
package moto

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"

	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
)

// Region is the region of all tests.
const Region = "eu-west-1"

// Server is moto. It forgets everything when it ends.
type Server struct {
	*run.Process
	run.HTTP
}

// Start starts moto for the duration of a test in a folder of test/registries.
func Start(t *testing.T) *Server {
	t.Helper()
	packages := servers.Fetch(t, func(ctx context.Context) (string, error) { return fetch.Python(ctx, "moto", "../internal/moto") })
	port := servers.FreePorts(t, 1)[0]
	s := &Server{HTTP: run.HTTP{Address: fmt.Sprintf("http://127.0.0.1:%d", port)}}
	s.Process = servers.Start(t, run.Spec{
		Name: "moto", Path: "python3", Env: append(os.Environ(), "PYTHONPATH="+packages),
		Args: []string{"-m", "moto.server", "-H", "127.0.0.1", "-p", fmt.Sprint(port)},
		Ready: func(ctx context.Context) error {
			_, err := s.Do(ctx, http.MethodGet, "/moto-api/data.json", nil, nil)
			return err
		},
	})
	return s
}

// Reset has moto forget everything.
func (s *Server) Reset(t *testing.T) {
	t.Helper()
	servers.Must(t, s.HTTP, http.MethodPost, "/moto-api/reset", nil, nil)
}
