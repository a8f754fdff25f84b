// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// guarded is a minimal Consul whose ACLs hide entries.
type guarded struct {
	*testing.T
	*Registry
	entries []registry.Entry
	acls    bool
	asked   int
}

func startGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{T: t}
	server := registrytest.Serve(t, http.HandlerFunc(g.serve))
	r := registrytest.Connect(t, New, Options{Address: server})
	g.Registry = r
	return g
}

func (g *guarded) serve(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/v1/acl/") {
		g.asked++
		code := http.StatusUnauthorized
		if g.acls {
			code = http.StatusForbidden
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte("ACL support disabled"))
		return
	}
	var all []string
	for _, e := range g.entries {
		all = append(all, fmt.Sprintf(`{"Node": {"Node": %q}, "Service": {"ID": %q, "Weights": {"Passing": 1}}}`,
			NodeName("web", e.ID), e.ID))
	}
	_, _ = w.Write([]byte("[" + strings.Join(all, ",") + "]"))
}

func (g *guarded) holds(ids ...string) {
	g.entries = nil
	for _, id := range ids {
		g.entries = append(g.entries, registry.Entry{ID: id})
	}
}

func TestACLsAreAskedForWhereSomethingIsMissing(t *testing.T) {
	g := startGuarded(t)
	for _, step := range []struct {
		name  string
		holds []string
		asks  int
	}{
		{"the first list", []string{"a", "b"}, 1},
		{"nothing has changed", []string{"a", "b"}, 0},
		{"one more", []string{"a", "b", "c"}, 0},
		{"one is gone", []string{"a", "c"}, 1},
		{"and still is", []string{"a", "c"}, 0},
		{"all are", nil, 1},
		{"and still are", nil, 0},
	} {
		g.asked = 0
		g.holds(step.holds...)
		listed, err := g.List(t.Context(), "web")
		if err != nil || len(listed) != len(step.holds) || g.asked != step.asks {
			t.Errorf("%s: %d are listed, %v, asked %d times, want %d", step.name, len(listed), err, g.asked, step.asks)
		}
	}
	if _, err := g.List(t.Context(), "other"); err != nil || g.asked != 1 {
		t.Errorf("another service: %v, asked %d times, want once", err, g.asked)
	}
}

// TestHiddenIsNotGone turns ACLs on after a connector has believed lists.
func TestHiddenIsNotGone(t *testing.T) {
	for name, c := range map[string]struct {
		before, after []string
		writes        string
	}{
		"everything is hidden":             {before: []string{"a"}},
		"our own are hidden":               {before: []string{"a", "theirs"}, after: []string{"theirs"}},
		"what was written last is hidden":  {writes: "a"},
		"what was written again is hidden": {before: []string{"b"}, after: []string{"b"}, writes: "a"},
	} {
		g := startGuarded(t)
		g.holds(c.before...)
		registrytest.List(t, g)
		if c.writes != "" {
			g.memory.wrote("web", []registry.Change{{Op: registry.Put, Entry: registry.Entry{ID: c.writes}}})
		}
		g.holds(c.after...)
		g.acls = true
		for range 2 {
			_, err := g.List(t.Context(), "web")
			registrytest.Check(t, name+": list", err, registry.ErrPermanent)
		}
		registrytest.Check(t, name+": ping", g.Ping(t.Context()), registry.ErrPermanent)
	}
}
