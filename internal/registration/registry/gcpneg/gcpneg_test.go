// SPDX-License-Identifier: Apache-2.0

package gcpneg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/neg"
	"github.com/usher-dev/usher/internal/scenariotest"
)

const (
	project = "shop-prod-1"
	zone    = "europe-west1-b"
	web     = zone + "/web"
)

var times = neg.Times{Attach: 2 * time.Second, Checks: 10 * time.Second, Drain: 30 * time.Second}

func newFake(t *testing.T, groups ...string) *neg.Server {
	t.Helper()
	f := neg.New(times, groups...)
	t.Cleanup(f.Close)
	return f
}

// keyOf is a key of a service account whose tokens come from a server.
func keyOf(server string) []byte {
	return []byte(strings.ReplaceAll(whole(), "http://server/token", server))
}

var whole = sync.OnceValue(func() string { return neg.Key("http://server") })

func secretOf(f *neg.Server) map[string][]byte {
	return map[string][]byte{Key: keyOf(f.URL() + "/token")}
}

// spec is a Registry that names groups of the Service web, at a fake.
func spec(f *neg.Server, groups ...string) *usherv1alpha1.GCPNEGRegistry {
	s := &usherv1alpha1.GCPNEGRegistry{Project: project, Endpoint: f.URL()}
	if len(groups) > 0 {
		s.Groups = []usherv1alpha1.GCPNEGs{{Namespace: "demo", Service: "web", Names: groups, Zones: []string{zone}}}
	}
	return s
}

func connector(t *testing.T, f *neg.Server, s *usherv1alpha1.GCPNEGRegistry, reader client.Reader) registry.Connector {
	t.Helper()
	return registry.Follower(checktest.Must(New(s, reader, nil, "demo", secretOf(f)))(t))
}

// TestConformance runs the suite's part for connectors that only list.
func TestConformance(t *testing.T) {
	registrytest.RunFollower(t, func(t *testing.T) registrytest.Followed {
		f := newFake(t, web)
		address := strings.TrimPrefix(f.URL(), "http://")
		return registrytest.Followed{
			Connector: connector(t, f, spec(f, "web"), nil),
			Write:     func(_ *testing.T, _, address string, port int32) { f.Attach(web, address, port) },
			Serve:     func(*testing.T, string, string, int32) { f.Pass(times.Attach + times.Checks) },
			Leave:     func(_ *testing.T, _, address string, _ int32) { f.Detach(web, address) },
			End:       func(*testing.T, string, string, int32) { f.Pass(times.Drain) },
			Break:     func() error { f.Close(); return nil },
			Mend:      func(ctx context.Context) error { return f.Restart(ctx, address) },
			Throttle: func(on bool) {
				status := map[bool]int{true: http.StatusForbidden}[on]
				f.Answer(status, neg.Error(http.StatusForbidden, "rateLimitExceeded", "Quota exceeded for quota metric"))
			},
		}
	})
}

// TestStates: what each state of an endpoint, of one load balancer or of several, is to callers, and what is said of it.
func TestStates(t *testing.T) {
	scenariotest.Table(t, "testdata/states.txt", func(_ *testing.T, test struct {
		Healths  []string
		Draining usherv1alpha1.TargetDraining
	}) string {
		e := endpoint{address: "10.0.0.1", port: 80, healths: test.Healths}.target(group{zone, "web"}, test.Draining).Entry()
		what := "gets requests"
		switch {
		case e.Unsettled != "" && e.Weight == 0:
			what = "leaves"
		case e.Unsettled != "":
			what = "between"
		case e.Weight == 0:
			what = "gets none"
		}
		return strings.TrimSuffix(what+": "+e.Unsettled+e.Hidden, ": ")
	})
}

// TestZones: a Pod is in the group of one zone, and that is enough; of several groups each has to have it.
func TestZones(t *testing.T) {
	f := newFake(t, web, "europe-west1-c/web", zone+"/admin")
	s := spec(f, "web")
	s.Groups[0].Zones = append(s.Groups[0].Zones, "europe-west1-c", "europe-west1-d")
	c := connector(t, f, s, nil)
	f.Attach(web, "10.0.0.1", 80)
	f.Attach("europe-west1-c/web", "10.0.0.2", 80)
	f.Pass(time.Minute)
	for _, e := range registrytest.List(t, c) {
		if e.Weight == 0 || e.Unsettled != "" {
			t.Errorf("%+v is not in service", e)
		}
	}
	checktest.Same(t, "the IDs", []string{"web/europe-west1-b/10.0.0.1:80", "web/europe-west1-c/10.0.0.2:80"}, idsOf(registrytest.List(t, c)))
	both := connector(t, f, spec(f, "web", "admin"), nil)
	checktest.Same(t, "why, in one group of two", "network endpoint group admin does not have it yet", registrytest.Only(t, both).Unsettled)
	f.Attach(zone+"/admin", "10.0.0.1", 81)
	f.Pass(time.Minute)
	checktest.Same(t, "endpoints", 2, len(registrytest.List(t, both)))
	checktest.Same(t, "why, in both", "", registrytest.List(t, both)[0].Unsettled)
	f.Remove(web)
	f.Remove(zone + "/admin")
	_, err := both.List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "no group is left", err, registry.ErrNoService, "no such network endpoint group")
}

func idsOf(entries []registry.Entry) (ids []string) {
	for _, e := range entries {
		ids = append(ids, e.ID)
	}
	return ids
}

// TestPages: a list comes in pages, and all of it counts.
func TestPages(t *testing.T) {
	f := newFake(t, web)
	f.Pages(7)
	for n := range 60 {
		f.Attach(web, fmt.Sprint("10.0.0.", n+1), 80)
	}
	checktest.Same(t, "endpoints", 60, len(registrytest.List(t, connector(t, f, spec(f, "web"), nil))))
	f.Pages(1)
	_, err := connector(t, f, spec(f, "web"), nil).List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "pages without end", err, registry.ErrOneService, "pages")
}

// TestNodes: the health of nodes says nothing of Pods, and the error says what to do.
func TestNodes(t *testing.T) {
	f := newFake(t, web)
	f.Nodes()
	f.Attach(web, "10.0.0.1", 0)
	_, err := connector(t, f, spec(f, "web"), nil).List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "endpoints that are nodes", err, registry.ErrPermanent, "GCE_VM_IP", "cloud.google.com/neg", "kube-proxy")
	registrytest.Check(t, "endpoints that are nodes", err, registry.ErrOneService)
}

// TestRefusals: what Google Cloud answers becomes an error with a mark, which stays the same for each attempt.
func TestRefusals(t *testing.T) {
	scenariotest.Table(t, "testdata/refusals.txt", func(t *testing.T, test struct {
		Status       int
		Reason, Body string
	}) string {
		f := newFake(t, web)
		f.Answer(test.Status, cmp.Or(test.Body, neg.Error(test.Status, test.Reason, "it is so")))
		c := connector(t, f, spec(f, "web"), nil)
		_, err := c.List(registrytest.Bounded(t), "web")
		_, again := c.List(registrytest.Bounded(t), "web")
		checktest.Same(t, "the second error", fmt.Sprint(err), fmt.Sprint(again))
		said := []string{registrytest.Verdict(t, err)}
		if errors.Is(err, registry.ErrOneService) {
			said = append(said, "of this service alone")
		}
		if errors.Is(err, registry.ErrNoService) {
			said = append(said, "nobody is called through it")
		}
		return strings.Join(said, ", ") + ": " + strings.ReplaceAll(err.Error(), f.URL(), "URL")
	})
}

// TestAnswersOfOthers: an answer that is none of Google Cloud's is not an empty list.
func TestAnswersOfOthers(t *testing.T) {
	for _, answer := range []string{
		"", "{}", "[]", "null", "<html><body>It works!</body></html>", `{"items": []}`, `{"kind": "compute#other", "items": []}`,
		`{"kind": "compute#networkEndpointGroupsListNetworkEndpoints", "items": [{}]}`,
		`{"kind": "compute#networkEndpointGroupsListNetworkEndpoints", "items": [{"networkEndpoint": {"port": 80}}]}`,
	} {
		f := newFake(t, web)
		f.Answer(http.StatusOK, answer)
		if listed, err := connector(t, f, spec(f, "web"), nil).List(registrytest.Bounded(t), "web"); err == nil {
			t.Errorf("%q is a list of %v", answer, listed)
		}
	}
}

// TestFewCalls: one call lists all endpoints of a group, and a token serves for many.
func TestFewCalls(t *testing.T) {
	f := newFake(t, web)
	for n := range 200 {
		f.Attach(web, fmt.Sprint("10.0.0.", n+1), 80)
	}
	clients := NewClients()
	one := checktest.Must(New(spec(f, "web"), nil, clients, "demo", secretOf(f)))(t)
	two := checktest.Must(New(spec(f, "web"), nil, clients, "demo", secretOf(f)))(t)
	for _, r := range []*Registry{one, two, one} {
		checktest.Same(t, "endpoints", 200, len(checktest.Must(r.List(registrytest.Bounded(t), "web"))(t)))
	}
	checktest.Same(t, "calls for three lists and a token", 4, len(f.Calls()))
	checktest.NoError(t, one.Close())
	checktest.Same(t, "clients while one connector is left", 1, clients.Len())
	checktest.NoError(t, two.Close())
	checktest.Same(t, "clients when none is left", 0, clients.Len())
}

// TestCallsAreBounded: whoever has groups without end takes no more than the project's turns.
func TestCallsAreBounded(t *testing.T) {
	f := newFake(t, web)
	c := connector(t, f, spec(f, "web"), nil)
	registrytest.List(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var err error
	for range 10 * callsBurst {
		if _, err = c.List(ctx, "web"); err != nil {
			break
		}
	}
	registrytest.Check(t, "more calls than there are turns", err, registry.ErrTransient)
	if n := len(f.Calls()) - 1; n > callsBurst+1 {
		t.Errorf("%d calls, of %d at once", n, callsBurst)
	}
}

// TestKey is an attack, or a slip: whoever writes the Secret names another server for tokens, or another kind of
// credentials that has Usher call any address or run a program. It is refused before anything is sent.
func TestKey(t *testing.T) {
	asked := false
	others := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer others.Close()
	f := newFake(t)
	for what, test := range map[string]struct {
		secret map[string][]byte
		words  string
	}{
		"another server for tokens": {map[string][]byte{Key: keyOf(others.URL + "/token")}, "token_uri"},
		"no server for tokens":      {map[string][]byte{Key: keyOf("")}, "token_uri"},
		"no JSON":                   {map[string][]byte{Key: []byte(registrytest.Secret)}, "no key of a service account"},
		"an external account": {map[string][]byte{Key: []byte(`{"type": "external_account", "token_url": "` + others.URL + `", ` +
			`"credential_source": {"executable": {"command": "/bin/sh"}}}`)}, "no key of a service account"},
		"a CA that is none": {map[string][]byte{credentials.KeyCA: []byte(registrytest.Secret)}, credentials.KeyCA},
	} {
		_, err := New(spec(f), nil, nil, "demo", test.secret)
		registrytest.Check(t, what, err, registry.ErrPermanent, test.words)
	}
	checktest.Same(t, "the other server was asked", false, asked)
	google := map[string][]byte{Key: keyOf(tokenURL)}
	checktest.Must(New(spec(f), nil, nil, "demo", google))(t)
}

// TestNoCredentials: the error says where they may come from.
func TestNoCredentials(t *testing.T) {
	f := newFake(t)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", t.TempDir()+"/none.json")
	err := checktest.Must(New(spec(f), nil, nil, "demo", nil))(t).Ping(registrytest.Bounded(t))
	registrytest.Check(t, "nobody has credentials", err, registry.ErrTransient, "Workload Identity Federation", "credentialsSecret")
	checktest.Same(t, "calls without credentials", 0, len(f.Calls()))
}

// service is the Service web with an annotation of GKE's.
func service(status string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web"}}
	if status != "" {
		s.Annotations = map[string]string{annotation: status}
	}
	return s
}

// TestAnnotation: the groups of a Service are those that GKE has noted.
func TestAnnotation(t *testing.T) {
	f := newFake(t, zone+"/k8s1-web-80", "europe-west1-c/k8s1-web-80", zone+"/other")
	f.Attach(zone+"/k8s1-web-80", "10.0.0.1", 8080)
	f.Attach("europe-west1-c/k8s1-web-80", "10.0.0.2", 8080)
	f.Attach(zone+"/other", "10.0.0.3", 8080)
	noted := service(`{"network_endpoint_groups": {"80": "k8s1-web-80"}, "zones": ["europe-west1-b", "europe-west1-c"]}`)
	c := connector(t, f, spec(f), fake.NewClientBuilder().WithObjects(noted).Build())
	want := []string{"k8s1-web-80/europe-west1-b/10.0.0.1:8080", "k8s1-web-80/europe-west1-c/10.0.0.2:8080"}
	checktest.Same(t, "the endpoints", want, idsOf(registrytest.List(t, c)))
	named := connector(t, f, spec(f, "other"), fake.NewClientBuilder().WithObjects(noted).Build())
	checktest.Same(t, "those that the Registry names instead", "other/europe-west1-b/10.0.0.3:8080", registrytest.Only(t, named).ID)
}

// noting is a ServiceNetworkEndpointGroup of the Service web.
func noting(name string, groups ...string) *unstructured.Unstructured {
	var all []any
	for _, one := range groups {
		link, kind, _ := strings.Cut(one, " ")
		all = append(all, map[string]any{"id": "1", "selfLink": link, "networkEndpointType": kind})
	}
	o := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"networkEndpointGroups": all}}}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "networking.gke.io", Version: "v1beta1", Kind: "ServiceNetworkEndpointGroup"})
	o.SetNamespace("demo")
	o.SetName(name)
	o.SetLabels(map[string]string{"networking.gke.io/service-name": "web"})
	return o
}

// link is that of a group in a zone.
func link(zone, name string) string {
	return "https://www.googleapis.com/compute/v1/projects/" + project + "/zones/" + zone + "/networkEndpointGroups/" + name
}

// TestObjects: the groups of a Service whose annotation names none are those of its ServiceNetworkEndpointGroups.
func TestObjects(t *testing.T) {
	f := newFake(t, zone+"/a", "europe-west1-c/b", zone+"/other")
	f.Attach(zone+"/a", "10.0.0.1", 8080)
	f.Attach("europe-west1-c/b", "10.0.0.2", 8080)
	f.Attach(zone+"/other", "10.0.0.3", 8080)
	others, elsewhere := noting("others", link(zone, "other")), noting("elsewhere", link(zone, "other"))
	others.SetLabels(map[string]string{"networking.gke.io/service-name": "other"})
	elsewhere.SetNamespace("other")
	in := func(status string, more ...client.Object) registry.Connector {
		objects := append(more, service(status), others, elsewhere, noting("b", link("europe-west1-c", "b"), link(zone, "nodes")+" GCE_VM_IP"))
		return connector(t, f, spec(f), fake.NewClientBuilder().WithObjects(objects...).Build())
	}
	want := []string{"a/europe-west1-b/10.0.0.1:8080", "b/europe-west1-c/10.0.0.2:8080"}
	for _, status := range []string{"", "{}"} {
		c := in(status, noting("a", link(zone, "a")+" GCE_VM_IP_PORT"))
		checktest.Same(t, "the endpoints", want, idsOf(registrytest.List(t, c)))
	}
	annotated := in(`{"network_endpoint_groups": {"80": "a"}, "zones": ["` + zone + `"]}`)
	checktest.Same(t, "those of the annotation", want[:1], idsOf(registrytest.List(t, annotated)))
	calls := len(f.Calls())
	for _, wrong := range []string{
		link("a/../b", "x"), link(zone, "../x"), link(zone, "x?y"), link(zone, "x") + "/y", "web", strings.Replace(link(zone, "x"), project, "another-1", 1),
	} {
		_, err := in("", noting("a", wrong)).List(registrytest.Bounded(t), "web")
		registrytest.Check(t, wrong, err, registry.ErrPermanent, "ServiceNetworkEndpointGroup a")
		registrytest.Check(t, wrong, err, registry.ErrOneService)
	}
	checktest.Same(t, "calls for other paths", calls, len(f.Calls()))
}

// TestNoObjects: without the kind, or the right to list it, the error says what would help.
func TestNoObjects(t *testing.T) {
	kind := schema.GroupKind{Group: "networking.gke.io", Kind: "ServiceNetworkEndpointGroup"}
	for name, test := range map[string]struct{ fails, mark error }{
		"no kind":     {&meta.NoKindMatchError{GroupKind: kind}, registry.ErrNoService},
		"forbidden":   {apierrors.NewForbidden(schema.GroupResource{}, "", nil), registry.ErrNoService},
		"unavailable": {apierrors.NewServiceUnavailable("later"), registry.ErrTransient},
	} {
		f := newFake(t)
		reader := fake.NewClientBuilder().WithObjects(service("")).WithInterceptorFuncs(interceptor.Funcs{
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				return test.fails
			}}).Build()
		_, err := connector(t, f, spec(f), reader).List(registrytest.Bounded(t), "web")
		registrytest.Check(t, name, err, test.mark)
		registrytest.Check(t, name, err, registry.ErrOneService)
		if errors.Is(test.mark, registry.ErrNoService) {
			registrytest.Check(t, name, err, test.mark, "rbac.networkEndpointGroups")
		}
	}
}

// TestNoGroups: an error says why no groups are found, and what to do. It is also an attack: whoever may write the Service
// writes names that would become other paths, or groups without end. Nothing is sent then.
func TestNoGroups(t *testing.T) {
	elsewhere := noting("elsewhere")
	elsewhere.SetNamespace("other")
	reads := func(s *corev1.Service) client.Reader {
		return fake.NewClientBuilder().WithObjects(s, elsewhere).Build()
	}
	down := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return apierrors.NewServiceUnavailable("later")
		}}).Build()
	many := make([]string, maxGroups+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"%d": "g%d"`, i, i)
	}
	for name, test := range map[string]struct {
		reader client.Reader
		mark   error
		words  []string
	}{
		"no Service":    {fake.NewClientBuilder().Build(), registry.ErrNoService, []string{"no Service web", "spec.gcpNEG.groups"}},
		"no annotation": {reads(service("")), registry.ErrNoService, []string{"cloud.google.com/neg", "spec.gcpNEG.groups", "rbac.networkEndpointGroups"}},
		"none yet":      {reads(service(`{}`)), registry.ErrNoService, []string{"yet"}},
		"no JSON":       {reads(service(`web`)), registry.ErrPermanent, []string{"none of GKE's"}},
		"another path": {reads(service(`{"network_endpoint_groups": {"80": "../../../other/zones/a/x"}, "zones": ["europe-west1-b"]}`)),
			registry.ErrPermanent, []string{"none of GKE's"}},
		"another zone": {reads(service(`{"network_endpoint_groups": {"80": "web"}, "zones": ["a/../b"]}`)),
			registry.ErrPermanent, []string{"none of GKE's"}},
		"too many": {reads(service(`{"network_endpoint_groups": {` + strings.Join(many, ",") + `}, "zones": ["europe-west1-b"]}`)),
			registry.ErrPermanent, []string{"17 network endpoint groups", "16 at most"}},
		"a long one":  {reads(service(`{"zones": ["` + strings.Repeat("a", maxStatus) + `"]}`)), registry.ErrPermanent, []string{"none of GKE's"}},
		"unavailable": {down, registry.ErrTransient, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			_, err := connector(t, f, spec(f), test.reader).List(registrytest.Bounded(t), "web")
			registrytest.Check(t, name, err, test.mark, test.words...)
			registrytest.Check(t, name, err, registry.ErrOneService)
			checktest.Same(t, "calls to Google Cloud", 0, len(f.Calls()))
		})
	}
}

// TestForeignGroup is an attack: a tenant names a group of others. What Google Cloud says of it is an error of that Service,
// and keeps the Registry from nobody.
func TestForeignGroup(t *testing.T) {
	f := newFake(t, web)
	f.Answer(http.StatusForbidden, neg.Error(http.StatusForbidden, "forbidden", "Required 'compute.networkEndpointGroups.get' permission"))
	_, err := connector(t, f, spec(f, "web"), nil).List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "forbidden", err, registry.ErrOneService, "gcpneg.html")
}

// TestTokensAreHidden: no error repeats the token, or the key.
func TestTokensAreHidden(t *testing.T) {
	f := newFake(t, web)
	for _, status := range []int{http.StatusForbidden, http.StatusBadGateway, http.StatusTeapot} {
		for _, body := range []string{neg.Token, neg.Error(status, "forbidden", "Bearer "+neg.Token)} {
			f.Answer(status, body)
			_, err := connector(t, f, spec(f, "web"), nil).List(registrytest.Bounded(t), "web")
			if err == nil || strings.Contains(err.Error(), neg.Token) {
				t.Errorf("the error of %d: %v", status, err)
			}
		}
	}
	if slices.Contains(f.Calls(), "") {
		t.Error("a call without a path")
	}
}
