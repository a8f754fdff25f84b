// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// T is what a case needs of whoever plays it; a *testing.T has it.
type T interface {
	Helper()
	// Context ends with the case.
	Context() context.Context
	// Errorf reports what does not hold. Fatalf also ends the case.
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// NoError ends the case if there is an error.
func NoError(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// Check checks that an error has the mark, nil for no error, and mentions all the words. It
// reports whether that is so.
func Check(t T, what string, err, mark error, words ...string) bool {
	t.Helper()
	if (err == nil) != (mark == nil) || !errors.Is(err, mark) {
		t.Errorf("%s: the error is %v, want %v", what, orNone(err), orNone(mark))
		return false
	}
	for _, word := range words {
		if message := fmt.Sprint(err); !strings.Contains(message, word) {
			t.Errorf("%s: the error is %q, want it to mention %q", what, message, word)
			return false
		}
	}
	return true
}

func orNone(err error) string {
	if err == nil {
		return "none"
	}
	return fmt.Sprintf("%q", err.Error())
}

// CheckRefused checks that an error of Apply refuses exactly the change of the entry with the ID, and returns the
// reason, nil if it does not.
func CheckRefused(t T, what string, err error, id string) error {
	t.Helper()
	byID, rest := registry.ChangeErrors(err)
	if rest != nil || len(byID) != 1 || byID[id] == nil {
		t.Errorf("%s: the error is %v, want the change of %s alone refused", what, orNone(err), id)
		return nil
	}
	return byID[id]
}

// harness is a fixture under a case.
type harness struct {
	T
	Fixture
}

func (h *harness) within(limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(h.Context(), limit)
	context.AfterFunc(h.Context(), cancel)
	return ctx
}

// entry returns the entry of Pod web-<n> in the cluster.
func entry(cluster string, n int) registry.Entry {
	pod := fmt.Sprintf("web-%03d", n)
	return registry.Entry{
		ID: cluster + "." + pod, Address: fmt.Sprintf("10.0.%d.%d", n/250, n%250+1), Port: 8080, Weight: 10,
		Metadata: map[string]string{"zone": "a"},
		Owner: registry.Owner{
			Cluster: cluster, Namespace: "demo", Registration: "web", Pod: pod, PodUID: fmt.Sprintf("uid-%d", n),
		},
	}
}

func put(entries ...registry.Entry) []registry.Change { return changes(registry.Put, entries) }

func remove(entries ...registry.Entry) []registry.Change { return changes(registry.Remove, entries) }

func changes(op registry.Op, entries []registry.Entry) []registry.Change {
	out := make([]registry.Change, 0, len(entries))
	for _, e := range entries {
		out = append(out, registry.Change{Op: op, Entry: e})
	}
	return out
}

func find(entries []registry.Entry, id string) *registry.Entry {
	for i := range entries {
		if entries[i].ID == id {
			return &entries[i]
		}
	}
	return nil
}

func ownerOf(e *registry.Entry) registry.Owner {
	if e == nil {
		return registry.Owner{}
	}
	return e.Owner
}

func ids(entries []registry.Entry) []string {
	var out []string
	for _, e := range entries {
		out = append(out, e.ID)
	}
	return out
}

func (h *harness) apply(changes []registry.Change) {
	h.Helper()
	NoError(h.T, h.Connector.Apply(h.Context(), h.Service, changes))
}

// change makes changes as a pass does: it starts from a list.
func (h *harness) change(changes []registry.Change) {
	h.Helper()
	_, versions := h.list(h.Service)
	for i := range changes {
		changes[i].Entry.Version = versions[changes[i].Entry.ID]
	}
	h.apply(changes)
}

func (h *harness) put(entries ...registry.Entry) {
	h.Helper()
	h.change(put(entries...))
}

// remove deregisters entries, again as long as they drain.
func (h *harness) remove(entries ...registry.Entry) {
	h.Helper()
	for end := h.within(patience); ; {
		h.change(remove(entries...))
		if !h.drain(entries) {
			return
		}
		select {
		case <-end.Done():
			h.Fatalf("removed entries are still unsettled after %s: %v", patience, ids(entries))
		case <-time.After(again): // as Usher does
		}
	}
}

// drain reports whether removed entries wait for their last requests.
func (h *harness) drain(removed []registry.Entry) (some bool) {
	h.Helper()
	have, _ := h.list(h.Service)
	for _, e := range removed {
		left := find(have, e.ID)
		if left != nil && left.Unsettled == "" {
			h.Errorf("service %s lists %+v, which has been removed", h.Service, *left)
		}
		some = some || left != nil && left.Unsettled != ""
	}
	return some
}

// list returns the entries without their versions, and the versions by ID.
func (h *harness) list(service string) ([]registry.Entry, map[string]string) {
	h.Helper()
	entries, err := h.Connector.List(h.Context(), service)
	NoError(h.T, err)
	versions := map[string]string{}
	for i := range entries {
		if entries[i].Version == "" {
			h.Errorf("entry %s has no version", entries[i].ID)
		}
		versions[entries[i].ID] = entries[i].Version
		entries[i].Version = ""
		if len(entries[i].Metadata) == 0 {
			entries[i].Metadata = nil
		}
	}
	if !slices.IsSortedFunc(entries, func(a, b registry.Entry) int { return strings.Compare(a.ID, b.ID) }) {
		h.Errorf("the list is not sorted by ID: %v", ids(entries))
	}
	return entries, versions
}

// shows checks that exactly these entries are listed, and returns their versions.
func (h *harness) shows(want ...registry.Entry) map[string]string {
	h.Helper()
	have, versions := h.list(h.Service)
	h.same(want, have)
	return versions
}

// callersSee is shows without the entries' owners.
func (h *harness) callersSee(want ...registry.Entry) {
	h.Helper()
	have, _ := h.list(h.Service)
	h.same(disowned(want), disowned(have))
}

func disowned(entries []registry.Entry) []registry.Entry {
	out := slices.Clone(entries)
	for i := range out {
		out[i].Owner = registry.Owner{}
	}
	return out
}

// same compares the listed entries with those that should be. None are a list, too.
func (h *harness) same(want, have []registry.Entry) {
	h.Helper()
	want = append([]registry.Entry{}, want...)
	for i := range want {
		if h.NoMetadata {
			want[i].NoMetadata, want[i].Metadata = true, nil
		}
	}
	if diff := gocmp.Diff(want, append([]registry.Entry{}, have...)); diff != "" {
		h.Errorf("the list of service %s differs (-want +have):\n%s", h.Service, diff)
	}
}

// refused makes changes, and checks that exactly one is refused, with the mark.
func (h *harness) refused(changes []registry.Change, id string, mark error) {
	h.Helper()
	if err := CheckRefused(h.T, "apply", h.Connector.Apply(h.Context(), h.Service, changes), id); err != nil {
		Check(h.T, "apply", err, mark)
	}
}
