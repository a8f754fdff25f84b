// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestSucceeds(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[string]int{"/ok": 200, "/moved": 302, "/missing": 404, "/broken": 503}[r.URL.Path])
	}))
	defer server.Close()
	for path, want := range map[string]bool{"/ok": true, "/moved": true, "/missing": false, "/broken": false} {
		if got := succeeds(t.Context(), server.URL+path); got != want {
			t.Errorf("GET %s succeeds: %t, want %t", path, got, want)
		}
	}
	if server.Close(); succeeds(t.Context(), server.URL+"/ok") {
		t.Error("a GET of a server that is gone succeeds")
	}
}
