// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"reflect"
	"testing"
	"time"
)

func at(seconds float64) time.Time {
	return time.Unix(1_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func keys(entries []Entry) []string {
	out := []string{}
	for _, entry := range entries {
		out = append(out, entry.Key)
	}
	return out
}

// A caller knows what the registry knew, as long ago as the caller lags.
func TestViewLagsBehindTheRegistry(t *testing.T) {
	d := &directory{keep: 2 * time.Second}
	d.replace(at(0), []Entry{{"a", "a:1"}})
	d.update(at(1), []Entry{{"b", "b:1"}}, nil)
	d.update(at(2), nil, []string{"a"})
	for _, c := range []struct {
		now  float64
		lag  time.Duration
		want []string
	}{
		{2, 0, []string{"b"}},
		{2, time.Second, []string{"a", "b"}},
		{2, 2 * time.Second, []string{"a"}},
		{2.9, time.Second, []string{"a", "b"}}, // gone for 0.9 s, still used
		{3, time.Second, []string{"b"}},
		{3.9, 2 * time.Second, []string{"a", "b"}},
		{60, 2 * time.Second, []string{"b"}}, // an outage leaves the last list
	} {
		if got := keys(d.view(at(c.now), c.lag)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("at %gs a caller %s behind knows %v, want %v", c.now, c.lag, got, c.want)
		}
	}
}

func TestBeforeTheFirstListNobodyKnowsAnything(t *testing.T) {
	d := &directory{keep: time.Second}
	if got := d.view(at(0), 0); got != nil {
		t.Errorf("an empty directory gave %v", got)
	}
	d.update(at(5), []Entry{{"a", "a:1"}}, nil)
	if got := d.view(at(5.5), time.Second); got != nil {
		t.Errorf("half a second after the first entry a caller one second behind knows %v", got)
	}
}

func TestChangesSayWhatCameAndWhatLeft(t *testing.T) {
	d := &directory{keep: time.Second}
	d.replace(at(0), []Entry{{"a", "a:1"}, {"b", "b:1"}})
	got := d.replace(at(1), []Entry{{"b", "b:2"}, {"c", "c:1"}})
	want := []Change{
		{Entry{"a", "a:1"}, at(1), false},
		{Entry{"b", "b:1"}, at(1), false}, // the same key at a new address is another instance
		{Entry{"b", "b:2"}, at(1), true},
		{Entry{"c", "c:1"}, at(1), true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("changes:\n got %v\nwant %v", got, want)
	}
	if got := d.update(at(2), []Entry{{"c", "c:1"}}, nil); len(got) != 0 {
		t.Errorf("writing the same entry again changed %v", got)
	}
	if got := d.update(at(2), nil, []string{"nobody"}); len(got) != 0 {
		t.Errorf("removing an unknown key changed %v", got)
	}
}

func TestUsableUntilTheSlowestCallerHasHeard(t *testing.T) {
	d := &directory{keep: time.Second}
	d.update(at(0), []Entry{{"a", "a:1"}}, nil)
	d.update(at(10), nil, []string{"a"})
	if d.lists("a:1") {
		t.Error("the entry was removed and is still listed")
	}
	if !d.usable(at(10.9), "a:1") {
		t.Error("0.9 s after it left, a caller one second behind still uses the entry")
	}
	if d.caughtUp(at(10.9)) {
		t.Error("0.9 s after it left, a caller one second behind has caught up")
	}
	if d.usable(at(11), "a:1") {
		t.Error("one second after it left, nobody uses the entry any more")
	}
	if !d.caughtUp(at(11)) {
		t.Error("one second after it left, a caller one second behind has not caught up")
	}
	if len(d.versions) != 1 {
		t.Errorf("%d versions are kept, want only the current one", len(d.versions))
	}
}

func TestReplaceKeepsItsOwnCopy(t *testing.T) {
	d := &directory{keep: time.Second}
	given := []Entry{{"b", "b:1"}, {"a", "a:1"}}
	d.replace(at(0), given)
	given[0] = Entry{"z", "z:1"}
	if got := keys(d.current()); !reflect.DeepEqual(got, []string{"a", "b"}) {
		t.Errorf("the caller's slice is shared: %v", got)
	}
}

// One instance leaves and another joins in one transaction: at no moment does a caller
// know no instance.
func TestAnUpdateIsSeenWhole(t *testing.T) {
	d := &directory{keep: time.Second}
	d.replace(at(0), []Entry{{"old", "a:1"}})
	changes := d.update(at(1), []Entry{{"new", "b:1"}}, []string{"old"})
	if len(changes) != 2 || len(d.versions) != 2 {
		t.Errorf("%d changes in %d versions, want both changes in one new version", len(changes), len(d.versions))
	}
	for _, now := range []float64{0.5, 1, 1.5} {
		if got := d.view(at(now), 0); len(got) != 1 {
			t.Errorf("at %gs callers know %v, want exactly one", now, got)
		}
	}
}

// The slowest caller lags behind by the whole delay.
func TestLagsReachTheWholeDelay(t *testing.T) {
	if got := lags(time.Second); got[0] != time.Second/callers || got[callers-1] != time.Second {
		t.Errorf("lags %v", got)
	}
}
