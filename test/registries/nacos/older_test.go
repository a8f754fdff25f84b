// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// older has a server of Nacos 3 answer the API of Nacos 2 as well, which is part of it, but off.
var older = map[string]string{
	"nacos.core.api.compatibility.client.enabled": "true", "nacos.core.api.compatibility.console.enabled": "true",
	"nacos.core.api.compatibility.admin.enabled": "true",
}

// startOlder starts a server whose connectors find the API of Nacos 2 and no other.
func startOlder(t *testing.T, settings map[string]string) *server {
	t.Helper()
	all := maps.Clone(older)
	maps.Copy(all, settings)
	s := start(t, all)
	pass := httputil.NewSingleHostReverseProxy(checktest.Must(url.Parse(s.Address))(t))
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/nacos/v1/") {
			http.NotFound(w, r)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	s.front = front.URL
	return s
}

// TestOlderAPI plays the same with the API of Nacos 2, as a server of Nacos 3 still has it.
func TestOlderAPI(t *testing.T) { startOlder(t, nil).play(t) }

// TestUsersOfOlderAPI logs in as Nacos 2 has it. There this server answers an unknown user with an internal error, too.
func TestUsersOfOlderAPI(t *testing.T) { testUsers(t, startOlder(t, users), registry.ErrTransient) }

// TestOrdersOfOlderAPI is TestOrders with an Usher that finds the API of Nacos 2 only.
func TestOrdersOfOlderAPI(t *testing.T) { playOrders(t, startOlder(t, nil)) }
