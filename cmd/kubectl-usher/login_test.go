// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestLogins runs a command with a kubeconfig whose user has an auth-provider, as kubectl does: the API
// server gets the user's token.
func TestLogins(t *testing.T) {
	var sent atomic.Value
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent.Store(r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	part := base64.RawURLEncoding.EncodeToString
	token := part([]byte(`{"alg":"none"}`)) + "." + part(fmt.Appendf(nil, `{"exp":%d}`, time.Now().Add(time.Hour).Unix())) + "."
	file := filepath.Join(t.TempDir(), "config")
	checktest.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users:
- name: u
  user:
    auth-provider:
      name: oidc
      config: {idp-issuer-url: https://issuer.example, client-id: kubernetes, id-token: %q}
`, server.URL, token), 0o600))
	var out bytes.Buffer
	command := newCommand(genericiooptions.IOStreams{In: &out, Out: &out, ErrOut: &out})
	command.SetArgs([]string{"status", "pod/web", "--kubeconfig", file, "--cache-dir", t.TempDir()})
	err := command.ExecuteContext(t.Context())
	if want := "Bearer " + token; sent.Load() != want {
		t.Errorf("the API server got %q, wanted %q; the command says: %v", sent.Load(), want, err)
	}
}
