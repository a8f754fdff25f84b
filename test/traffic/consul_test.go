// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestConsul follows a service whose second list differs, and gives up on an error.
func TestConsul(t *testing.T) {
	const one = `[{"Service":{"ID":"a","Address":"10.0.0.1","Port":80}}]`
	const two = `[{"Service":{"ID":"b","Address":"10.0.0.2","Port":80}},{"Service":{"ID":"a","Address":"10.0.0.1","Port":80}}]`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		index := r.URL.Query().Get("index")
		if r.URL.Path != "/v1/health/service/web" || !r.URL.Query().Has("passing") {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("X-Consul-Index", index+"1")
		switch index {
		case "0":
			_, _ = fmt.Fprint(w, one)
		case "01":
			_, _ = fmt.Fprint(w, two)
		default:
			http.Error(w, "no leader", http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	received := &recorder{}
	err := Consul{Address: server.URL, Service: "web"}.Follow(t.Context(), received)
	if err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("the error is %v", err)
	}
	if want := `{"a":"10.0.0.1:80","b":"10.0.0.2:80"}`; !received.has(want) || len(received.sizes) != 2 {
		t.Errorf("received %v in %v steps, want %s in two", received.entries, received.sizes, want)
	}
}
