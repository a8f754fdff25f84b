// SPDX-License-Identifier: Apache-2.0

package call

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/podhttp"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// toPod dials a server whatever the address, and notes the addresses.
type toPod struct {
	server string
	mu     sync.Mutex
	dialed []string
}

func (p *toPod) dial(ctx context.Context, network, address string) (net.Conn, error) {
	p.mu.Lock()
	p.dialed = append(p.dialed, address)
	p.mu.Unlock()
	return (&net.Dialer{}).DialContext(ctx, network, p.server)
}

func serve(t *testing.T, handler http.HandlerFunc) *toPod {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return &toPod{server: server.Listener.Addr().String()}
}

// ask makes one call on behalf of the entry web-1.
func ask(t *testing.T, dial podhttp.Dial, call plan.Call) error {
	t.Helper()
	call.At = netip.MustParseAddrPort("10.0.0.1:8080")
	change := registry.Change{Op: registry.TakeOut, Entry: registry.Entry{ID: "web-1"}}
	return New(dial).All(registrytest.Bounded(t), []registry.Change{change}, map[string]plan.Call{"web-1": call})
}

func TestCall(t *testing.T) {
	var seen []string
	pod := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = append(seen, r.Method, r.Host, r.URL.RequestURI(), r.Header.Get("Content-Type"), string(body))
		w.WriteHeader(http.StatusAccepted)
	})
	checktest.NoError(t, ask(t, pod.dial, plan.Call{Method: "POST", Path: "/out?now=1", Body: `{"status":"DOWN"}`}))
	checktest.Same(t, "what was asked", []string{"POST", "10.0.0.1:8080", "/out?now=1", "application/json", `{"status":"DOWN"}`}, seen)
	checktest.Same(t, "who was called", []string{"10.0.0.1:8080"}, pod.dialed)
}

// TestAnswers: what is no 2xx is an error of that entry, is tried again, and says what to look at.
func TestAnswers(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"a refusal": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "no\x1b[31m"+strings.Repeat("x", 1<<20))
		}, "with 403 Forbidden: no"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusTemporaryRedirect)
		}, "307"},
		"no HTTP": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			_, _ = io.WriteString(conn, "Foreign Ip Not Permitted, Consider Config It In Whitelist\r\n")
			_ = conn.Close()
		}, "not HTTP"},
		"an endless header": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("A", strings.Repeat("a", podhttp.MaxHeader+1<<10))
		}, "not HTTP"},
	} {
		pod := serve(t, test.handler)
		err := ask(t, pod.dial, plan.Call{Method: "GET", Path: "/offline", Hint: "set qos-accept-foreign-ip"})
		registrytest.CheckRefused(t, name, err, "web-1", registry.ErrTransient, test.want, "set qos-accept-foreign-ip")
		if len(err.Error()) > 1<<10 || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: the error is %q", name, err)
		}
		checktest.Same(t, name+": who was called", []string{"10.0.0.1:8080"}, pod.dialed)
	}
	refused := ask(t, func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: io.ErrClosedPipe}
	}, plan.Call{Method: "GET", Path: "/offline", Hint: "a hint"})
	registrytest.CheckRefused(t, "nobody there", refused, "web-1", registry.ErrTransient, "does not answer", io.ErrClosedPipe.Error(), "a hint")
}

// TestPathsStayThere is an attack: a path that is a part of another address, or that a proxy of the environment would see.
func TestPathsStayThere(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://169.254.169.254:80")
	for _, path := range []string{"@169.254.169.254/", "/@169.254.169.254/", "//169.254.169.254/", ".example.com/", ":80/", "/\r\nHost: x"} {
		pod := serve(t, func(http.ResponseWriter, *http.Request) {})
		_ = ask(t, pod.dial, plan.Call{Method: "GET", Path: path}) // an error, or a request to the Pod
		for _, address := range pod.dialed {
			checktest.Same(t, path+": who was called", "10.0.0.1:8080", address)
		}
	}
}
