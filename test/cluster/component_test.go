// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestEssence(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"one line":            {"ok\n", "ok"},
		"JSON over two lines": {"{\"a\":\n 1}", "{\"a\": 1}"},
		"failed checks": {
			"[+]ping ok\n[-]etcd failed: reason withheld\n[-]hook failed\nreadyz check failed",
			"etcd failed: reason withheld; hook failed",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := essence(c.text); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestGet(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.UserAgent() != "usher-devcluster" {
			t.Errorf("user agent is %q", r.UserAgent())
		}
		if r.URL.Path != "/good" {
			http.Error(w, "[-]etcd failed", http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	if err := get(t.Context(), server.Client(), server.URL+"/good"); err != nil {
		t.Errorf("200: %v", err)
	}
	err := get(t.Context(), server.Client(), server.URL+"/bad")
	if err == nil || !strings.Contains(err.Error(), "500") || !strings.Contains(err.Error(), "etcd failed") {
		t.Errorf("500: %v", err)
	}
}

func TestProberNeedsACertificate(t *testing.T) {
	if _, err := NewProber([]byte("no certificate")); err == nil {
		t.Error("it was made without one")
	}
	if _, err := ProberFor(t.TempDir()); err == nil {
		t.Error("a folder without a cluster gave one")
	}
}
