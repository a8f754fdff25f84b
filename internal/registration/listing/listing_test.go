// SPDX-License-Identifier: Apache-2.0

package listing

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// byPod finds entries by their Pod. Those of nobody have no owner.
func byPod(e *registry.Entry) (types.UID, bool) {
	return types.UID(e.Owner.PodUID), e.Owner.PodUID != ""
}

func entry(id, pod, address string) registry.Entry {
	return registry.Entry{ID: id, Address: address, Owner: registry.Owner{PodUID: pod}, Metadata: map[string]string{"id": id}}
}

func ids(entries []*registry.Entry) string {
	return strings.Join(list.Map(entries, func(e *registry.Entry) string { return e.ID + "@" + e.Address }), " ")
}

// TestUpdate: what has changed is another entry, and what has not is the same object as before.
func TestUpdate(t *testing.T) {
	l := Update(nil, []registry.Entry{entry("a", "x", "1"), entry("b", "x", "2"), entry("c", "", "3")}, byPod)
	kept, other := l.ByID("a"), l.ByID("b")
	l = Update(l, []registry.Entry{entry("a", "x", "1"), entry("b", "y", "2"), entry("d", "x", "4")}, byPod)
	checktest.Same(t, "all", "a@1 b@2 d@4", ids(l.Entries()))
	checktest.Same(t, "those of x", "a@1 d@4", ids(l.ByOwner("x")))
	checktest.Same(t, "those of y", "b@2", ids(l.ByOwner("y")))
	checktest.Same(t, "those of nobody", "", ids(l.ByOwner("")))
	checktest.Same(t, "the one that is gone", nil, l.ByID("c"))
	if l.ByID("a") != kept || l.ByID("b") == other {
		t.Error("the entry that stays has to be the same object, and the one with another owner another")
	}
}

// TestIsOf: a listing is that of one answer until it is released, and keeps nothing of the answer.
func TestIsOf(t *testing.T) {
	answer := []registry.Entry{entry("a", "x", "1")}
	l := Update(nil, answer, byPod)
	checktest.Same(t, "of its answer", true, l.IsOf(answer))
	checktest.Same(t, "of an equal one", false, l.IsOf(slices.Clone(answer)))
	answer[0].Address = "2"
	checktest.Same(t, "its entries", "a@1", ids(l.Entries()))
	l.Release()
	checktest.Same(t, "of its answer, when the pass is over", false, l.IsOf(answer))
	checktest.Same(t, "none of any", false, (*Listing)(nil).IsOf(answer))
	empty := []registry.Entry{}
	checktest.Same(t, "of an empty answer", true, Update(nil, empty, byPod).IsOf(empty))
}

// TestUpdatesAgree compares listings that were brought up to date, sorted and not, with new ones.
func TestUpdatesAgree(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var l *Listing
	for round := range 2000 {
		entries := []registry.Entry{}
		for i := range 12 {
			if random.IntN(3) > 0 {
				pod := []string{"", "x", "y", "z"}[random.IntN(4)]
				entries = append(entries, entry(fmt.Sprintf("%02d", i), pod, fmt.Sprint(random.IntN(2))))
			}
		}
		if random.IntN(10) == 0 {
			random.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
		}
		l = Update(l, entries, byPod)
		anew := Update(nil, entries, byPod)
		what := fmt.Sprintf("round %d: ", round)
		checktest.Same(t, what+"all", ids(anew.Entries()), ids(l.Entries()))
		checktest.Same(t, what+"size", anew.Size(), l.Size())
		for _, pod := range []types.UID{"", "x", "y", "z"} {
			checktest.Same(t, what+"those of "+string(pod), ids(anew.ByOwner(pod)), ids(l.ByOwner(pod)))
		}
		for _, e := range entries {
			checktest.Same(t, what+"entry "+e.ID, true, Same(l.ByID(e.ID), anew.ByID(e.ID)))
		}
		if t.Failed() {
			return
		}
	}
}
