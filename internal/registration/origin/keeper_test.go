// SPDX-License-Identifier: Apache-2.0

package origin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/checktest/pki"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// world is what processes of Usher meet, one after the other.
type world struct {
	testing.TB
	client.Client
	clock   *clocktesting.FakePassiveClock
	cluster string
	// answers are the API servers that the next looks reach; the last one answers all others. refuses is the answer of the
	// API server to everything about the record.
	answers []string
	refuses error
	looks   int
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, clock: clocktesting.NewFakePassiveClock(epoch), cluster: "uid", answers: []string{"10.0.0.1:6443"}}
	scheme := runtime.NewScheme()
	checktest.NoError(t, corev1.AddToScheme(scheme))
	w.Client = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if w.refuses != nil {
				return w.refuses
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	return w
}

// process is a new process of Usher.
func (w *world) process() *Keeper {
	named := func(context.Context) (string, error) { return w.cluster, nil }
	return NewKeeper(w, w, "usher-system", named, func(context.Context) (Sight, error) {
		w.looks++
		address := w.answers[0]
		if len(w.answers) > 1 {
			w.answers = w.answers[1:]
		}
		if address == "" {
			return Sight{}, errors.New("nobody answers")
		}
		return Sight{[]string{address}, []string{"aa"}}, nil
	}, w.clock)
}

func (w *world) record() *corev1.ConfigMap {
	w.Helper()
	kept := &corev1.ConfigMap{}
	checktest.NoError(w, w.Get(w.Context(), client.ObjectKey{Namespace: "usher-system", Name: Name}, kept))
	return kept
}

func forbidden() error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, Name, errors.New("no rights"))
}

// TestCheck: which processes may call registries, after the first one has noted its API server.
func TestCheck(t *testing.T) {
	for about, c := range map[string]struct {
		then func(w *world)
		want string
	}{
		"the same API server":           {func(*world) {}, ""},
		"another one":                   {func(w *world) { w.answers = []string{"10.9.0.1:6443"} }, "ConfigMap usher-system/usher-cluster knows cluster uid by the API servers 10.0.0.1:6443"},
		"another one of several":        {func(w *world) { w.answers = []string{"10.9.0.1:6443", "10.9.0.2:6443", "10.0.0.1:6443"} }, ""},
		"another one, and another name": {func(w *world) { w.cluster, w.answers = "copy", []string{"10.9.0.1:6443"} }, ""},
		"another one, and the record is gone": {func(w *world) {
			w.answers = []string{"10.9.0.1:6443"}
			checktest.NoError(w, w.Delete(w.Context(), w.record()))
		}, ""},
		"the record is damaged": {func(w *world) {
			record := w.record()
			record.Data[keyServers] = "?"
			checktest.NoError(w, w.Update(w.Context(), record))
		}, "delete it if no copy of this cluster runs"},
		"no right to read it":    {func(w *world) { w.answers, w.refuses = []string{"10.9.0.1:6443"}, forbidden() }, ""},
		"nobody answers":         {func(w *world) { w.answers = []string{""} }, "ask the API server who it is: nobody answers"},
		"the API server is away": {func(w *world) { w.refuses = errors.New("away") }, "which tells this cluster from a copy: away"},
	} {
		t.Run(about, func(t *testing.T) {
			w := newWorld(t)
			checktest.NoError(t, w.process().Check(t.Context()))
			c.then(w)
			err := w.process().Check(t.Context())
			if c.want == "" {
				checktest.NoError(t, err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the answer is %v, want %q", err, c.want)
			}
		})
	}
}

// TestCopiedIsAskedAgain: a copy stays one as long as nothing is done about it, is asked about it every few seconds, and
// goes on once the record is gone.
func TestCopiedIsAskedAgain(t *testing.T) {
	w := newWorld(t)
	checktest.NoError(t, w.process().Check(t.Context()))
	w.answers = []string{"10.9.0.1:6443"}
	copied := w.process()
	before := w.record().Data
	for range 3 {
		err := copied.Check(t.Context())
		checktest.Same(t, "it may be a copy", true, errors.Is(err, registry.ErrCopied) && errors.Is(err, registry.ErrPermanent))
	}
	checktest.Same(t, "looks", 1+looks, w.looks)
	checktest.Same(t, "it says so", true, copied.Copied())
	checktest.Same(t, "the record", before[keyServers], w.record().Data[keyServers])
	w.clock.SetTime(w.clock.Now().Add(againAfter))
	checktest.NoError(t, w.Delete(t.Context(), w.record()))
	checktest.NoError(t, copied.Check(t.Context()))
	checktest.Same(t, "it still says so", false, copied.Copied())
	checktest.Same(t, "the new record has the API server that answers", true, strings.Contains(w.record().Data[keyServers], "10.9.0.1:6443"))
}

// TestRunningProcess: a process that knows its cluster notes the API servers that replace the old ones, so that the next
// process knows them; and it goes on meanwhile.
func TestRunningProcess(t *testing.T) {
	w := newWorld(t)
	running := w.process()
	checktest.NoError(t, running.Check(t.Context()))
	w.answers = []string{"10.0.0.7:6443"}
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	checktest.NoError(t, running.Check(t.Context()))
	running.note(t.Context())
	checktest.NoError(t, w.process().Check(t.Context()))
	var known []string
	for line := range strings.Lines(w.record().Data[keyServers]) {
		known = append(known, strings.Fields(line)[0])
	}
	checktest.Same(t, "known", "10.0.0.1:6443 10.0.0.7:6443", strings.Join(known, " "))
}

// TestLook: who an API server is comes from its answer and from the authorities that it is checked with.
func TestLook(t *testing.T) {
	var connections []string
	status, body := http.StatusOK, `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"10.0.0.1:6443"},{"clientCIDR":"10.0.0.0/8"}]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if connections = append(connections, r.RemoteAddr); r.URL.Path != "/prefix/api" {
			t.Errorf("it is asked for %s", r.URL.Path)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	defer server.Close()
	authority := checktest.Must(pki.NewAuthority("a", time.Now()))(t)
	config := &rest.Config{Host: server.URL + "/prefix", TLSClientConfig: rest.TLSClientConfig{CAData: slices.Concat(authority.PEM(), authority.PEM())}}
	look := checktest.Must(NewLook(config))(t)
	for range 2 {
		seen := checktest.Must(look(t.Context()))(t)
		checktest.Same(t, "servers", "10.0.0.1:6443", strings.Join(seen.Servers, " "))
		checktest.Same(t, "authorities", 2, len(seen.Authorities))
		checktest.Same(t, "characters of a fingerprint", 16, len(seen.Authorities[0]))
	}
	checktest.Same(t, "connections", 2, len(slices.Compact(connections)))
	status = http.StatusForbidden
	if _, err := look(t.Context()); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("the answer is %v", err)
	}
	status, body = http.StatusOK, "<html>"
	if _, err := look(t.Context()); err == nil {
		t.Error("a page is an answer")
	}
}
