// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

func TestEntryRoundTrip(t *testing.T) {
	want := registrytest.SixEntry()
	stored := checktest.Must(encoded("web", want))(t)
	stored.ModifyIndex = 7
	there := instance{Service: stored, Checks: []check{{CheckID: checkID, Status: passing, ModifyIndex: 9}}}
	there.Node.Node = NodeName("web", want.ID)
	want.Version = "7.1.9"
	checktest.Same(t, "the entry read back", want, there.entry("web"))
}

// TestTags checks that tags become Consul's own tags.
func TestTags(t *testing.T) {
	e := registrytest.SixEntry()
	e.Metadata[registry.MetaTags] = "blue,canary"
	stored := checktest.Must(encoded("web", e))(t)
	if diff := cmp.Diff([]string{"blue", "canary"}, stored.Tags); diff != "" || stored.Meta[registry.MetaTags] != "" {
		t.Errorf("the tags (-want +have):\n%s\nthe metadata: %v", diff, stored.Meta)
	}
	there := instance{Service: stored}
	there.Node.Node = NodeName("web", e.ID)
	there.Service.Tags = []string{"canary", "blue"} // Another writer may have added them.
	if have := there.entry("web").Metadata; !cmp.Equal(have, e.Metadata) {
		t.Errorf("the metadata came back as %v, want %v", have, e.Metadata)
	}
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
		e := registrytest.SixEntry()
		spoil(&e)
		_, err := encoded("web", e)
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
		checktest.Same(t, name+": steps that fit", test.want, fit(test.steps))
	}
}

func TestOptions(t *testing.T) {
	registrytest.CheckAddresses(t, func(address string, secret map[string][]byte) (*Registry, error) { return New(at(address), "", secret) })
	_, err := New(at("http://localhost"), "", token("s3cret\nX: y"))
	registrytest.Check(t, "a token with a break", err, registry.ErrPermanent)
}

func at(address string) *usherv1alpha1.ConsulRegistry {
	return &usherv1alpha1.ConsulRegistry{Address: address}
}

func token(text string) map[string][]byte { return map[string][]byte{KeyToken: []byte(text)} }

func TestAnswersThatAreNone(t *testing.T) {
	registrytest.CheckAnswers(t, func(t *testing.T, a registrytest.Answer) error {
		server := registrytest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("consistent") {
				maps.Copy(w.Header(), a.Header)
			}
			w.WriteHeader(a.Code)
			_, _ = w.Write([]byte(a.Body))
		}))
		_, err := registrytest.Connect(New(at(server), "", token("s3cret\n")))(t).List(t.Context(), "web")
		return err
	})
}

// scripted has no instances, and answers transactions according to the script.
type scripted struct {
	*testing.T
	// commit returns, by service ID, why a transaction of these services is refused.
	// Empty means that the transaction succeeds.
	commit func(round int, ids []string) map[string]string
	rounds int
}

// ServeHTTP implements http.Handler.
func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/txn" {
		_, _ = w.Write([]byte("[]"))
		return
	}
	var ops []struct{ Service *struct{ Service service } }
	if err := json.NewDecoder(r.Body).Decode(&ops); err != nil {
		s.Error(err)
	}
	if len(ops) > maxTxnOps {
		s.Errorf("a transaction of %d operations", len(ops))
	}
	var ids []string
	at := map[string]int{}
	for i, op := range ops {
		if op.Service != nil {
			ids = append(ids, op.Service.Service.ID)
			at[op.Service.Service.ID] = i
		}
	}
	s.rounds++
	refusals := s.commit(s.rounds, ids)
	if len(refusals) == 0 {
		_, _ = w.Write([]byte("{}"))
		return
	}
	var said []map[string]any
	for id, what := range refusals {
		said = append(said, map[string]any{"OpIndex": at[id], "What": what})
	}
	w.WriteHeader(http.StatusConflict)
	if err := json.NewEncoder(w).Encode(map[string]any{"Errors": said}); err != nil {
		s.Error(err)
	}
}

func (s *scripted) apply(n int) error {
	s.Helper()
	server := registrytest.Serve(s.T, s)
	r := registrytest.Connect(New(at(server), "", token("token")))(s.T)
	var entries []registry.Entry
	for i := range n {
		entries = append(entries, registrytest.Entry(fmt.Sprintf("entry-%d", i)))
	}
	return registrytest.TryPut(s.T, r, entries...)
}

// TestRefusedAloneOthersGoOn checks that a transaction is resent without the refused
// changes.
func TestRefusedAloneOthersGoOn(t *testing.T) {
	var last []string
	s := &scripted{T: t, commit: func(round int, ids []string) map[string]string {
		last = ids
		if round == 1 {
			return map[string]string{"entry-1": "Permission denied"}
		}
		return nil
	}}
	registrytest.CheckRefused(t, "three changes", s.apply(3), "entry-1", registry.ErrPermanent)
	checktest.Same(t, "the last transaction", "entry-0 entry-2", strings.Join(last, " "))
}

// TestStaleForEver checks that Apply gives up and reports a conflict.
func TestStaleForEver(t *testing.T) {
	s := &scripted{T: t, commit: func(int, []string) map[string]string {
		return map[string]string{"entry-0": `failed to set service "entry-0" on node "n", index is stale`}
	}}
	registrytest.CheckRefused(t, "one change", s.apply(1), "entry-0", registry.ErrConflict)
	checktest.Same(t, "transactions that were tried", registry.MaxRounds, s.rounds)
}

// TestManyChanges makes more changes than fit into one transaction.
func TestManyChanges(t *testing.T) {
	seen := map[string]bool{}
	s := &scripted{T: t, commit: func(_ int, ids []string) map[string]string {
		for _, id := range ids {
			seen[id] = true
		}
		return nil
	}}
	if err := s.apply(50); err != nil || len(seen) != 50 || s.rounds != 3 {
		t.Errorf("%d entries in %d transactions, %v", len(seen), s.rounds, err)
	}
}

// TestHiddenIsNotGone turns ACLs on after a connector without a token has believed a list: what they
// hide is not gone, whether they hide all or not. Nor does it believe a server that is not Consul.
func TestHiddenIsNotGone(t *testing.T) {
	for _, listed := range []string{"[]", `[{"Node": {"Node": "agent-1"}, "Service": {"ID": "theirs", "Weights": {"Passing": 1}}}]`} {
		asked := http.StatusUnauthorized
		server := registrytest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v1/acl/") {
				w.WriteHeader(asked)
				_, _ = w.Write([]byte("ACL support disabled"))
				return
			}
			_, _ = w.Write([]byte(listed))
		}))
		r := registrytest.Connect(New(at(server), "", nil))(t)
		registrytest.List(t, r)
		for code, want := range map[int]error{
			http.StatusOK: registry.ErrPermanent, http.StatusForbidden: registry.ErrPermanent,
			http.StatusNotFound: registry.ErrPermanent, http.StatusBadGateway: registry.ErrTransient,
		} {
			asked = code
			for range 2 {
				_, err := r.List(t.Context(), "web")
				registrytest.Check(t, fmt.Sprint("list with ", code, " after ", listed), err, want)
			}
			registrytest.Check(t, fmt.Sprint("ping with ", code, " after ", listed), r.Ping(t.Context()), want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	registrytest.FuzzDecode(f, func(text string) []registry.Entry {
		var list []instance
		if json.Unmarshal([]byte(text), &list) != nil {
			return nil
		}
		return registry.Entries(list, func(i instance) registry.Entry { return i.entry("web") })
	})
}
