// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

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
	var ops []operation
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
	r := registrytest.Connect(s.T, New, Options{Address: server, Secret: map[string][]byte{KeyToken: []byte("token")}})
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
	if strings.Join(last, " ") != "entry-0 entry-2" {
		t.Errorf("the last transaction was of %v", last)
	}
}

// TestStaleForEver checks that Apply gives up and reports a conflict.
func TestStaleForEver(t *testing.T) {
	s := &scripted{T: t, commit: func(int, []string) map[string]string {
		return map[string]string{"entry-0": `failed to set service "entry-0" on node "n", index is stale`}
	}}
	registrytest.CheckRefused(t, "one change", s.apply(1), "entry-0", registry.ErrConflict)
	if s.rounds != registry.MaxRounds {
		t.Errorf("%d transactions were tried", s.rounds)
	}
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
