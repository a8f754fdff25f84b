// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/podhttp"
)

// serve has a Pod answer, and returns its address.
func serve(t *testing.T, answer http.HandlerFunc) netip.AddrPort {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return netip.MustParseAddrPort(server.Listener.Addr().String())
}

// asks asks once.
func asks(t *testing.T, client *http.Client, check plan.Check) string {
	t.Helper()
	places, of := placesOf([]plan.Check{check})
	return answered(ask(t.Context(), client, places[0], of[places[0]]))
}

// TestAsk: what a Pod is asked, and that nothing else is sent.
func TestAsk(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:1")
	var seen string
	at := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen = fmt.Sprintf("%s %s %s %v", r.Method, r.RequestURI, r.Host, r.Header)
		_, _ = fmt.Fprint(w, "active 2\n")
	})
	checktest.Same(t, "the answer", "idle", asks(t, podhttp.NewClient(nil), plan.Check{At: at, Path: "/idle?for=usher"}))
	checktest.Same(t, "the request", fmt.Sprintf("GET /idle?for=usher %s map[Connection:[close] User-Agent:[usher]]", at), seen)
	metric := &usherv1alpha1.UntilMetric{Name: "active"}
	checktest.Same(t, "the metrics", "busy 2", asks(t, podhttp.NewClient(nil), plan.Check{At: at, Path: "/metrics", Metric: metric}))
	checktest.Says(t, "the request", seen, "GET /metrics", "Accept:["+textFormat+"]")
}

// TestAttacks: a Pod that answers cannot lead Usher anywhere, nor hold it up.
func TestAttacks(t *testing.T) {
	var elsewhere atomic.Int32
	other := serve(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	metric := &usherv1alpha1.UntilMetric{Name: "active"}
	quick, patient := podhttp.NewClient(nil), podhttp.NewClient(nil)
	quick.Timeout = 200 * time.Millisecond
	patient.Timeout = time.Minute // a busy machine takes seconds for eight megabytes
	endless := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := fmt.Fprint(w, text); err != nil {
					return
				}
			}
		}
	}
	for _, c := range []struct {
		what   string
		answer http.HandlerFunc
		client *http.Client
		metric *usherv1alpha1.UntilMetric
		says   string
	}{
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+other.String()+"/", http.StatusFound)
		}, podhttp.NewClient(nil), nil, "status 302"},
		{"a redirect of metrics", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+other.String()+"/", http.StatusPermanentRedirect)
		}, podhttp.NewClient(nil), metric, "status 308"},
		{"no end", endless(strings.Repeat("other 1\n", 1000)), patient, metric, "more than 8388608 bytes"},
		{"no line end", endless("other"), patient, metric, "a line of more than 65536 bytes"},
		{"no end of series", endless("active 0\n"), patient, metric, "more than 2000 series"},
		{"silence", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, quick, nil, "does not answer"},
		{"silence after the header", func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, quick, metric, "its answer breaks off"},
		{"a long header", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Long", strings.Repeat("x", 4*podhttp.MaxHeader))
		}, podhttp.NewClient(nil), nil, "does not answer"},
		{"compressed text", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte{0x1f, 0x8b, 8, 0})
		}, podhttp.NewClient(nil), metric, "no metric active"},
	} {
		at := serve(t, c.answer)
		checktest.Says(t, "the answer to "+c.what, asks(t, c.client, plan.Check{At: at, Path: "/", Metric: c.metric}), c.says)
	}
	checktest.Same(t, "requests that went elsewhere", 0, elsewhere.Load())
	for _, path := range []string{"@" + other.String() + "/", ":80@" + other.String() + "/", "/%zz"} {
		at := netip.MustParseAddrPort("127.0.0.1:1")
		checktest.Says(t, "the path "+path, asks(t, podhttp.NewClient(nil), plan.Check{At: at, Path: path}), "cannot be asked for")
	}
	checktest.Same(t, "requests that went elsewhere by a path", 0, elsewhere.Load())
}

// TestNobody: a Pod whose port is closed says the same each time.
func TestNobody(t *testing.T) {
	server := httptest.NewServer(nil)
	at := netip.MustParseAddrPort(server.Listener.Addr().String())
	server.Close()
	want := fmt.Sprintf("it does not answer at %s/: connect: connection refused", at)
	checktest.Same(t, "the answer", want, asks(t, podhttp.NewClient(nil), plan.Check{At: at, Path: "/"}))
}
