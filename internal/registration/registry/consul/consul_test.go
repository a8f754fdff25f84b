// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

func entry() registry.Entry {
	e := registrytest.Entry("demo.web-1.0a")
	e.Address, e.Port = "fd00::1", 80
	return e
}

func TestEntryRoundTrip(t *testing.T) {
	want := entry()
	stored, err := encode("web", want)
	registrytest.NoError(t, err)
	stored.ModifyIndex = 7
	there := instance{Service: stored, Checks: []check{{CheckID: checkID, Status: passing, ModifyIndex: 9}}}
	there.Node.Node = NodeName("web", want.ID)
	want.Version = "7.1.9"
	registrytest.Same(t, "the entry read back", want, there.entry("web"))
}

// TestTags checks that tags become Consul's own tags.
func TestTags(t *testing.T) {
	e := entry()
	e.Metadata[metaTags] = "blue,canary"
	stored, err := encode("web", e)
	registrytest.NoError(t, err)
	if diff := cmp.Diff([]string{"blue", "canary"}, stored.Tags); diff != "" || stored.Meta[metaTags] != "" {
		t.Errorf("the tags (-want +have):\n%s\nthe metadata: %v", diff, stored.Meta)
	}
	there := instance{Service: stored}
	there.Node.Node = NodeName("web", e.ID)
	there.Service.Tags = []string{"canary", "blue"} // Another writer may have added them.
	if have := there.entry("web").Metadata; !cmp.Equal(have, e.Metadata) {
		t.Errorf("the metadata came back as %v, want %v", have, e.Metadata)
	}
}

func TestEntriesOfOthers(t *testing.T) {
	stored, err := encode("web", entry())
	registrytest.NoError(t, err)
	copied := instance{Service: stored}
	copied.Node.Node = "agent-1"
	if e := copied.entry("web"); e.Owner != (registry.Owner{}) || e.ID != "demo.web-1.0a@agent-1" {
		t.Errorf("a copy on another node became %+v", e)
	}
	bare := instance{Service: service{ID: "web"}, Checks: []check{{Status: passing}, {Status: "warning"}}}
	bare.Node.Node, bare.Node.Address = "agent-1", "192.0.2.1"
	want := registry.Entry{ID: "web@agent-1", Address: "192.0.2.1", Version: "0.2.0"}
	registrytest.Same(t, "an instance without an address", want, bare.entry("web"))
}

func TestWhatConsulCannotHoldIsRefused(t *testing.T) {
	many := map[string]string{}
	for n := range maxMeta {
		many[fmt.Sprintf("key-%d", n)] = ""
	}
	for name, spoil := range map[string]func(*registry.Entry){
		"a key of Usher's":    func(e *registry.Entry) { e.Metadata = map[string]string{"usher-uid": "x"} },
		"a key of Consul's":   func(e *registry.Entry) { e.Metadata = map[string]string{"consul-x": "x"} },
		"a key with a dot":    func(e *registry.Entry) { e.Metadata = map[string]string{"a.b": "x"} },
		"no key":              func(e *registry.Entry) { e.Metadata = map[string]string{"": "x"} },
		"a long key":          func(e *registry.Entry) { e.Metadata = map[string]string{strings.Repeat("k", maxMetaKey+1): ""} },
		"a long value":        func(e *registry.Entry) { e.Metadata = map[string]string{"k": strings.Repeat("v", maxMetaValue+1)} },
		"too many keys":       func(e *registry.Entry) { e.Metadata = many },
		"a weight beyond DNS": func(e *registry.Entry) { e.Weight = maxWeight + 1 },
	} {
		e := entry()
		spoil(&e)
		_, err := encode("web", e)
		registrytest.Check(t, name, err, registry.ErrPermanent)
	}
}

func TestNodeNames(t *testing.T) {
	name := NodeName("Web", strings.Repeat("x", 300))
	if len(name) > 63 || !strings.HasPrefix(name, "usher-") || strings.ToLower(name) != name {
		t.Errorf("%s is no DNS label", name)
	}
	if NodeName("web", "a") == NodeName("Web", "a") || NodeName("ab", "c") == NodeName("a", "bc") {
		t.Error("two entries have one node")
	}
}

func TestTransactionsFit(t *testing.T) {
	sized := func(ops, bytes int) step { return step{ops: make([]operation, ops), bytes: bytes} }
	for name, test := range map[string]struct {
		steps []step
		want  int
	}{
		"all":              {[]step{sized(3, 1), sized(2, 1)}, 2},
		"too large":        {[]step{sized(3, maxTxnBytes-1), sized(3, 2)}, 1},
		"one alone is all": {[]step{sized(3, 2*maxTxnBytes)}, 1},
	} {
		if have := fit(test.steps); have != test.want {
			t.Errorf("%s: %d steps fit, want %d", name, have, test.want)
		}
	}
}

func TestOptions(t *testing.T) {
	registrytest.CheckOptions(t, New, map[string]Options{
		"no address":       {},
		"no scheme":        {Address: "localhost:8500"},
		"user in address":  {Address: "http://me:s3cret@localhost:8500"},
		"token with break": {Address: "http://localhost", Secret: map[string][]byte{KeyToken: []byte("s3cret\nX: y")}},
		"no certificate":   {Address: "https://localhost", Secret: map[string][]byte{credentials.KeyCA: []byte("s3cret")}},
	})
}

// fake gives the same answer to every list.
func fake(t *testing.T, code int, header http.Header, body string) *Registry {
	t.Helper()
	server := registrytest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("consistent") {
			for key, values := range header {
				w.Header()[key] = values
			}
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}))
	return registrytest.Connect(t, New, Options{Address: server, Secret: map[string][]byte{KeyToken: []byte("s3cret\n")}})
}

func TestAnswersThatAreNone(t *testing.T) {
	registrytest.CheckAnswers(t, func(code int, body string) error {
		_, err := fake(t, code, http.Header{"Location": {"/other"}}, body).List(t.Context(), "web")
		return err
	})
	for name, test := range map[string]struct {
		code   int
		header http.Header
		body   string
		want   error
	}{
		"null":          {http.StatusOK, nil, "null", registry.ErrPermanent},
		"nothing":       {http.StatusOK, nil, "", registry.ErrPermanent},
		"filtered":      {http.StatusOK, http.Header{headerFiltered: {"true"}}, "[]", registry.ErrPermanent},
		"not found":     {http.StatusNotFound, nil, "", registry.ErrPermanent},
		"no leader":     {http.StatusInternalServerError, nil, "No cluster leader", registry.ErrTransient},
		"an empty list": {http.StatusOK, nil, "[]", nil},
	} {
		_, err := fake(t, test.code, test.header, test.body).List(t.Context(), "web")
		registrytest.Check(t, name, err, test.want)
	}
}

// TestNoTokenIsNoReasonToListLess checks that an empty list is not believed from a
// server with ACLs, or from one that is not Consul.
func TestNoTokenIsNoReasonToListLess(t *testing.T) {
	for code, want := range map[int]error{
		http.StatusOK: registry.ErrPermanent, http.StatusForbidden: registry.ErrPermanent,
		http.StatusNotFound: registry.ErrPermanent, http.StatusBadGateway: registry.ErrTransient,
	} {
		r := fake(t, code, nil, "[]")
		r.token = ""
		_, err := r.List(t.Context(), "web")
		registrytest.Check(t, fmt.Sprint("an answer with ", code), err, want)
	}
}
